/* SPDX-License-Identifier: Apache-2.0 */
/* What the hooks of runtime and driver share. */
#ifndef HOOK_H
#define HOOK_H

#include <cuda.h>

/* A function of ours that programs reach instead of CUDA's; named in stayput.map. */
#define STAYPUT_HOOK __attribute__((visibility("default")))

/* The answer of alloc_allocate() means that the real function is to be asked: it makes
 * native memory, or says what is wrong in its own words. */
static inline int hook_goes_native(CUresult err)
{
	return err == CUDA_ERROR_NOT_SUPPORTED || err == CUDA_ERROR_NOT_INITIALIZED ||
	       err == CUDA_ERROR_INVALID_CONTEXT || err == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

#endif
