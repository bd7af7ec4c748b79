/* SPDX-License-Identifier: Apache-2.0 */
#include "libraries.h"

#if CUDART_VERSION < 12050
cudaError_t cudaGetDriverEntryPointByVersion(
	const char *, void **, unsigned, unsigned long long, void *);
#endif

static void *entry_point(const char *name)
{
	void *function = NULL;
	int found;

	cudaGetDriverEntryPointByVersion(
		name, &function, 12000, cudaEnableDefault, (void *)&found);
	return function;
}

CUresult pool_create(CUmemGenericAllocationHandle *handle, size_t size, int device)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	typeof(&cuMemCreate) create = (typeof(&cuMemCreate))entry_point("cuMemCreate");

	return create(handle, size, &prop, 0);
}

CUresult pool_release(CUmemGenericAllocationHandle handle)
{
	typeof(&cuMemRelease) release =
		(typeof(&cuMemRelease))entry_point("cuMemRelease");

	return release(handle);
}
