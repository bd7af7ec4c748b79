/* SPDX-License-Identifier: Apache-2.0 */
/* A library that uses the runtime it is linked to, as an extension module does. */
#include "libraries.h"

cudaError_t consumer_malloc(void **ptr, size_t size)
{
	return cudaMalloc(ptr, size);
}

cudaError_t consumer_free(void *ptr)
{
	return cudaFree(ptr);
}

int consumer_runtime(void)
{
	int version = 0;

	cudaRuntimeGetVersion(&version);
	return version / 1000;
}

cudaError_t consumer_last_error(void)
{
	return cudaGetLastError();
}
