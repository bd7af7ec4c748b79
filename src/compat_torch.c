/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch calls from code that is linked to its runtime, so that looking the runtime up for
 * the caller finds the right one although nothing was preloaded.
 */
#include "compat_torch.h"

#include <errno.h>
#include <stdbool.h>

#include "error.h"
#include "hook_runtime.h"
#include "log.h"
#include "real.h"
#include "stayput.h"

struct switched {
	typeof(&cudaSetDevice) set_device;
	int before; /* the thread's device */
	int device; /* where it is to allocate */
};

/* Setting the device that is set already could make a context that nobody wanted. */
static int enter(struct switched *s, int device, void *caller)
{
	typeof(&cudaGetDevice) get_device = real_find("cudaGetDevice", caller);
	cudaError_t err;

	s->set_device = real_find("cudaSetDevice", caller);
	s->device = device;
	if (!get_device || !s->set_device)
		return error_set(STAYPUT_ERR_UNSUPPORTED,
			"no CUDA runtime (libcudart.so) is loaded in this process");
	err = get_device(&s->before);
	if (err == cudaSuccess && s->before != device)
		err = s->set_device(device);
	if (err == cudaSuccess)
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_DRIVER, "device %d cannot be used: %s (%d)", device,
		error_cuda_name((CUresult)err), err);
}

static void leave(const struct switched *s)
{
	if (s->before != s->device)
		s->set_device(s->before);
}

void *torch_allocate(ssize_t size, int device, void *caller)
{
	int saved = errno;
	void *ptr = NULL;
	struct switched s;
	cudaError_t err;

	if (size <= 0) {
		error_set(STAYPUT_ERR_INVALID, "%zd bytes cannot be allocated", size);
		return NULL;
	}
	if (enter(&s, device, caller) == STAYPUT_OK) {
		err = hook_malloc(&ptr, size, caller);
		leave(&s);
		if (err != cudaSuccess) {
			ptr = NULL;
			error_set(err == cudaErrorMemoryAllocation
					  ? STAYPUT_ERR_DEVICE_MEMORY
					  : STAYPUT_ERR_DRIVER,
				"no %zd bytes on device %d: %s (%d)", size, device,
				error_cuda_name((CUresult)err), err);
		}
	}
	errno = saved;
	return ptr;
}

void torch_release(void *ptr, void *caller)
{
	cudaError_t err = ptr ? hook_free(ptr, caller) : cudaSuccess;

	/* A process that ends frees after its runtime has gone. */
	if (err != cudaSuccess && err != cudaErrorCudartUnloading)
		log_line(LOG_WARN, "%p was not freed: %s (%d)", ptr,
			error_cuda_name((CUresult)err), err);
}

STAYPUT_API void *stayput_torch_malloc(ssize_t size, int device, void *stream)
{
	(void)stream;
	return torch_allocate(size, device, __builtin_return_address(0));
}

STAYPUT_API void stayput_torch_free(void *ptr, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	(void)stream;
	torch_release(ptr, __builtin_return_address(0));
}
