/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocating for PyTorch's CUDAPluggableAllocator on behalf of the code at `caller`, also in
 * a process that we were not loaded into before its runtime. Any thread.
 */
#ifndef COMPAT_TORCH_H
#define COMPAT_TORCH_H

#include <sys/types.h>

/* On that device, in the calling thread's region or native. NULL with the sentence set; the
 * thread's device is what it was. */
void *torch_allocate(ssize_t size, int device, void *caller);

/* What either allocator made. PyTorch cannot be told of errors: they go to the log. */
void torch_release(void *ptr, void *caller);

#endif
