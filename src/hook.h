/* SPDX-License-Identifier: Apache-2.0 */
/* What the hooks of runtime and driver share. */
#ifndef HOOK_H
#define HOOK_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>

#include "capture.h"
#include "device.h"
#include "fork.h"
#include "real.h"
#include "region.h"
#include "release.h"
#include "rules.h"
#include "silence.h"

/* A function of ours that programs reach instead of CUDA's; named in stayput.map. */
#define STAYPUT_HOOK __attribute__((visibility("default")))

/* Where the calling thread allocates in a region; CUDA_ERROR_NOT_SUPPORTED when it
 * cannot.
 */
static inline CUresult hook_place(struct place *place)
{
	if (fork_is_child() || !driver_load())
		return CUDA_ERROR_NOT_SUPPORTED;
	return device_current(place);
}

/* With this answer to a region allocation, the real function is to be asked: it makes
 * native memory, or says what is wrong in its own words. */
static inline bool hook_goes_native(CUresult err)
{
	return err == CUDA_ERROR_NOT_SUPPORTED || err == CUDA_ERROR_NOT_INITIALIZED ||
	       err == CUDA_ERROR_INVALID_CONTEXT ||
	       err == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* The real runtime calls the driver, where libstayput-deep.so sees it again. What a
 * thread asks of the driver between these two is part of a call that has been dealt with.
 */
extern __thread unsigned hook_depth;

static inline void hook_enter(void)
{
	hook_depth++;
}

static inline void hook_leave(void)
{
	hook_depth--;
}

static inline bool hook_is_inside(void)
{
	return hook_depth > 0;
}

/* The region of an allocation of the program's, which is seen to have come by. */
static inline bool hook_choose(const struct request *request, struct choice *choice)
{
	silence_note_call(request->size);
	return region_choose(request, choice);
}

/* The device of the calling thread's context, or -1: for a request to the driver. */
static inline int hook_device(const struct request *request)
{
	CUdevice device;

	(void)request;
	return !fork_is_child() && driver_load() &&
			       driver()->cuCtxGetDevice(&device) == CUDA_SUCCESS
		       ? device
		       : -1;
}

/* Bytes of `rows` rows, before the padding of rows that is not known yet. */
static inline size_t hook_area(size_t width, size_t rows)
{
	size_t bytes;

	return __builtin_mul_overflow(width, rows, &bytes) ? SIZE_MAX : bytes;
}

/* In libstayput-deep.so: replaces what a lookup in the driver has found by our hook for it.
 * In the other library there is no such function. */
void hook_replace(const char *name, void **function, int version, cuuint64_t flags)
	__attribute__((weak, visibility("hidden")));

/* The hooks cuMemCreate() and cuMemRelease(), to be given out. */
extern typeof(cuMemCreate) hook_vmm_create __attribute__((visibility("hidden")));
extern typeof(cuMemRelease) hook_vmm_release __attribute__((visibility("hidden")));

static inline void hook_capture_beginning(CUstream stream)
{
	CUcontext context = NULL;

	if (hook_is_inside())
		return;
	fork_watch();
	if (driver_loaded())
		driver()->cuCtxGetCurrent(&context);
	capture_beginning(stream, context);
}

/* A capture has ended, or its beginning has failed. */
static inline void hook_capture_ended(CUstream stream)
{
	if (!hook_is_inside() && capture_ended(stream))
		release_deferred();
}

#endif
