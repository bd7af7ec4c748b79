/* SPDX-License-Identifier: Apache-2.0 */
/* cudaMalloc() and cudaFree() on behalf of the code at `caller`, whose runtime is used. */
#ifndef HOOK_RUNTIME_H
#define HOOK_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stddef.h>

cudaError_t hook_malloc(void **ptr, size_t size, void *caller);
cudaError_t hook_free(void *ptr, void *caller);

#endif
