/* SPDX-License-Identifier: Apache-2.0 */
/* A library that makes memory for mappings of its own, under several names. */
#include "libraries.h"

CUresult mapper_create(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop)
{
	return cuMemCreate(handle, size, prop, 0);
}
