/* SPDX-License-Identifier: Apache-2.0 */
/* Somebody else's preload: counts the calls it sees and passes them on. */
#include "libraries.h"

#include <dlfcn.h>
#include <stdatomic.h>

static atomic_int mallocs, frees;

cudaError_t cudaMalloc(void **ptr, size_t size)
{
	typeof(&cudaMalloc) next = (typeof(&cudaMalloc))dlsym(RTLD_NEXT, "cudaMalloc");

	mallocs++;
	return next ? next(ptr, size) : cudaErrorInitializationError;
}

cudaError_t cudaFree(void *ptr)
{
	typeof(&cudaFree) next = (typeof(&cudaFree))dlsym(RTLD_NEXT, "cudaFree");

	frees++;
	return next ? next(ptr) : cudaErrorInitializationError;
}

int shim_mallocs(void)
{
	return mallocs;
}

int shim_frees(void)
{
	return frees;
}
