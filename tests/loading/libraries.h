/* SPDX-License-Identifier: Apache-2.0 */
/* What the libraries here export, each from the .c of that name. */
#ifndef LIBRARIES_H
#define LIBRARIES_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/types.h>

cudaError_t consumer_malloc(void **ptr, size_t size);
cudaError_t consumer_free(void *ptr);

/* Major version of the runtime that it is linked to. */
int consumer_runtime(void);

/* The last error that this runtime noted, which is then forgotten. It is how to see whose
 * cudaMalloc() was called: each runtime notes its own failures alone. */
cudaError_t consumer_last_error(void);

/* Calls such functions as PyTorch calls those of a CUDAPluggableAllocator. */
typedef void *torch_malloc(ssize_t size, int device, void *stream);
typedef void torch_free(void *ptr, ssize_t size, int device, void *stream);
void *consumer_allocate(torch_malloc *allocate, ssize_t size, int device);
void consumer_release(torch_free *release, void *ptr, ssize_t size, int device);

int consumer_device(void);
cudaError_t consumer_set_device(int device);
cudaError_t consumer_write(void *ptr, int value, size_t size);
cudaError_t consumer_read(void *host, const void *ptr, size_t size);

cudaError_t outer_malloc(void **ptr, size_t size);
cudaError_t outer_free(void *ptr);

/* Memory of a device by virtual memory management, whose functions are looked up through
 * the runtime as PyTorch does it. */
CUresult pool_create(CUmemGenericAllocationHandle *handle, size_t size, int device);
CUresult pool_release(CUmemGenericAllocationHandle handle);

/* What the constructor allocated, or NULL. */
void *early_memory(void);

/* The program's own, if it has one: called by the constructor before it allocates. */
void early_hold(void);

/* How the destructor ends the process when it was given something: with the driver gone
 * and all freed, else with what was wrong. */
enum { LATE_FREED = 40, LATE_FAILED = 41, LATE_TOO_EARLY = 42 };

void late_keep(void *ptr);

CUresult mapper_create(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop);

/* How many calls have come by. */
int shim_mallocs(void);
int shim_frees(void);

#endif
