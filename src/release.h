/* SPDX-License-Identifier: Apache-2.0 */
/* Every way to free comes here. Any thread, in a region or not; errno is kept. */
#ifndef RELEASE_H
#define RELEASE_H

#include <cuda.h>

/*
 * Frees what begins at `ptr`, after the work in its context has finished, or once no
 * capture is in progress.
 *
 *   CUDA_ERROR_NOT_FOUND         not ours (any more): the real function's to answer
 *   CUDA_ERROR_NOT_INITIALIZED   ours, but this is a forked child
 *   others                       the driver's; the allocation is gone all the same
 */
CUresult release_pointer(CUdeviceptr ptr);

/* Frees what was put off, unless a capture is in progress. */
void release_deferred(void);

/* The memory of a device that is being reset, or of a context that is being destroyed,
 * goes with it. */
void release_device(CUdevice ordinal);
void release_context(CUcontext ctx);

#endif
