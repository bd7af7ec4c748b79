/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime's functions: ours? then alloc.c. Else the function that the caller
 * would have reached without us. Sizes of 0 and NULL arguments are the real one's to
 * answer. No state here.
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "alloc.h"
#include "capture.h"
#include "device.h"
#include "hook.h"
#include "real.h"
#include "region.h"
#include "release.h"

#if CUDART_VERSION < 12030
typedef struct cudaGraphEdgeData_st cudaGraphEdgeData;
STAYPUT_HOOK cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t,
	const cudaGraphNode_t *, const cudaGraphEdgeData *, size_t,
	enum cudaStreamCaptureMode);
#endif

/* The flavours that code compiled for per-thread default streams calls; the headers reach
 * them by a macro and do not declare them. */
STAYPUT_HOOK cudaError_t cudaFreeAsync_ptsz(void *, cudaStream_t);
STAYPUT_HOOK cudaError_t cudaStreamBeginCapture_ptsz(
	cudaStream_t, enum cudaStreamCaptureMode);
STAYPUT_HOOK cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t, cudaGraph_t,
	const cudaGraphNode_t *, const cudaGraphEdgeData *, size_t,
	enum cudaStreamCaptureMode);
STAYPUT_HOOK cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t, cudaGraph_t *);

/* The driver's codes and the runtime's agree in every number that we pass on. */
static cudaError_t runtime_error(CUresult err)
{
	return (cudaError_t)err;
}

/* ---- Allocating ---------------------------------------------------------------------- */

/* Makes the context current that the runtime would have used: it does so lazily, and
 * before CUDA 12 cudaSetDevice() alone leaves the old one current. */
static void make_context_current(void *caller)
{
	typeof(&cudaGetDevice) get_device = real_find("cudaGetDevice", caller);
	typeof(&cudaFree) free_nothing = real_find("cudaFree", caller);
	struct device *current;
	CUcontext ctx;
	int wanted;

	if (!get_device || !free_nothing || !driver_load())
		return;
	if (device_current(&current, &ctx) != CUDA_SUCCESS ||
		get_device(&wanted) != cudaSuccess || current->ordinal != wanted)
		free_nothing(NULL);
}

/* Allocates in the region, if there is one. False: the real function has to. */
static bool allocate(const struct choice *choice, size_t size, void *caller,
	CUdeviceptr *ptr, cudaError_t *answer)
{
	CUresult err;

	if (choice->policy == STAYPUT_KEEP)
		return false;
	make_context_current(caller);
	err = alloc_allocate(ptr, size, choice);
	*answer = runtime_error(err);
	return !hook_goes_native(err);
}

static void count_native(const struct choice *choice, const void *ptr, size_t size)
{
	alloc_count_native(
		(CUdeviceptr)ptr, size, choice, choice->policy == STAYPUT_KEEP);
}

STAYPUT_HOOK cudaError_t cudaMalloc(void **ptr, size_t size)
{
	void *caller = __builtin_return_address(0);
	typeof(&cudaMalloc) real;
	struct choice choice;
	bool in_region = ptr && size && region_choose(&choice);
	cudaError_t answer;
	CUdeviceptr ours;

	if (in_region && allocate(&choice, size, caller, &ours, &answer)) {
		if (answer == cudaSuccess)
			*ptr = (void *)ours;
		return answer;
	}
	real = REAL(cudaMalloc);
	answer = real ? real(ptr, size) : cudaErrorInitializationError;
	if (in_region && answer == cudaSuccess)
		count_native(&choice, *ptr, size);
	return answer;
}

/* Bytes of `rows` rows of `width`, and the pitch that they get. False on overflow. */
static bool pitched_size(size_t width, size_t rows, size_t *pitch, size_t *size)
{
	size_t align = 512;
	struct device *dev;
	CUcontext ctx;

	if (driver_load() && device_current(&dev, &ctx) == CUDA_SUCCESS)
		align = dev->pitch_align;
	if (__builtin_add_overflow(width, align - 1, pitch))
		return false;
	*pitch -= *pitch % align;
	return !__builtin_mul_overflow(*pitch, rows, size);
}

/* The same for rows; what overflows is more than any card has. */
static bool allocate_pitched(const struct choice *choice, size_t width, size_t rows,
	size_t *pitch, CUdeviceptr *ptr, void *caller, cudaError_t *answer)
{
	size_t size;

	if (choice->policy == STAYPUT_KEEP)
		return false;
	make_context_current(caller);
	if (!pitched_size(width, rows, pitch, &size)) {
		*answer = cudaErrorMemoryAllocation;
		return true;
	}
	return allocate(choice, size, caller, ptr, answer);
}

STAYPUT_HOOK cudaError_t cudaMallocPitch(
	void **ptr, size_t *pitch, size_t width, size_t height)
{
	void *caller = __builtin_return_address(0);
	typeof(&cudaMallocPitch) real;
	struct choice choice;
	bool in_region = ptr && pitch && width && height && region_choose(&choice);
	cudaError_t answer;
	CUdeviceptr ours;
	size_t got;

	if (in_region && allocate_pitched(&choice, width, height, &got, &ours, caller,
				 &answer)) {
		if (answer == cudaSuccess) {
			*ptr = (void *)ours;
			*pitch = got;
		}
		return answer;
	}
	real = REAL(cudaMallocPitch);
	answer = real ? real(ptr, pitch, width, height) : cudaErrorInitializationError;
	if (in_region && answer == cudaSuccess)
		count_native(&choice, *ptr, *pitch * height);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaMalloc3D(
	struct cudaPitchedPtr *ptr, struct cudaExtent extent)
{
	void *caller = __builtin_return_address(0);
	typeof(&cudaMalloc3D) real;
	struct choice choice;
	cudaError_t answer;
	CUdeviceptr ours;
	size_t rows = 0, pitch;
	bool in_region = ptr && extent.width &&
			 !__builtin_mul_overflow(extent.height, extent.depth, &rows) &&
			 rows && region_choose(&choice);

	if (in_region && allocate_pitched(&choice, extent.width, rows, &pitch, &ours,
				 caller, &answer)) {
		if (answer == cudaSuccess)
			*ptr = (struct cudaPitchedPtr){
				(void *)ours, pitch, extent.width, extent.height};
		return answer;
	}
	real = REAL(cudaMalloc3D);
	answer = real ? real(ptr, extent) : cudaErrorInitializationError;
	if (in_region && answer == cudaSuccess)
		count_native(&choice, ptr->ptr, ptr->pitch * rows);
	return answer;
}

/* ---- Freeing --------------------------------------------------------------------------- */

STAYPUT_HOOK cudaError_t cudaFree(void *ptr)
{
	CUresult err = release_pointer((CUdeviceptr)ptr);
	typeof(&cudaFree) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return runtime_error(err);
	real = REAL(cudaFree);
	return real ? real(ptr) : cudaErrorInitializationError;
}

STAYPUT_HOOK cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
	CUresult err = release_pointer((CUdeviceptr)ptr);
	typeof(&cudaFreeAsync) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return runtime_error(err);
	real = REAL(cudaFreeAsync);
	return real ? real(ptr, stream) : cudaErrorInitializationError;
}

STAYPUT_HOOK cudaError_t cudaFreeAsync_ptsz(void *ptr, cudaStream_t stream)
{
	CUresult err = release_pointer((CUdeviceptr)ptr);
	typeof(&cudaFreeAsync_ptsz) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return runtime_error(err);
	real = REAL(cudaFreeAsync_ptsz);
	return real ? real(ptr, stream) : cudaErrorInitializationError;
}

STAYPUT_HOOK cudaError_t cudaDeviceReset(void)
{
	typeof(&cudaGetDevice) get_device = REAL(cudaGetDevice);
	typeof(&cudaDeviceReset) real = REAL(cudaDeviceReset);
	int device;

	if (get_device && get_device(&device) == cudaSuccess)
		release_device(device);
	return real ? real() : cudaErrorInitializationError;
}

/* ---- Captures -------------------------------------------------------------------------- */

/* In the per-thread flavours, stream 0 is the thread's own. */
static CUstream per_thread(cudaStream_t stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

static bool still_capturing(cudaError_t answer)
{
	return answer == cudaErrorStreamCaptureWrongThread ||
	       answer == cudaErrorInvalidResourceHandle;
}

STAYPUT_HOOK cudaError_t cudaStreamBeginCapture(
	cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	typeof(&cudaStreamBeginCapture) real = REAL(cudaStreamBeginCapture);
	cudaError_t answer;

	if (!real)
		return cudaErrorInitializationError;
	capture_beginning(stream);
	answer = real(stream, mode);
	capture_began(stream, answer == cudaSuccess);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamBeginCapture_ptsz(
	cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	typeof(&cudaStreamBeginCapture_ptsz) real = REAL(cudaStreamBeginCapture_ptsz);
	cudaError_t answer;

	if (!real)
		return cudaErrorInitializationError;
	capture_beginning(per_thread(stream));
	answer = real(stream, mode);
	capture_began(per_thread(stream), answer == cudaSuccess);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream,
	cudaGraph_t graph, const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
	size_t count, enum cudaStreamCaptureMode mode)
{
	typeof(&cudaStreamBeginCaptureToGraph) real = REAL(cudaStreamBeginCaptureToGraph);
	cudaError_t answer;

	if (!real)
		return cudaErrorInitializationError;
	capture_beginning(stream);
	answer = real(stream, graph, nodes, edges, count, mode);
	capture_began(stream, answer == cudaSuccess);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream,
	cudaGraph_t graph, const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
	size_t count, enum cudaStreamCaptureMode mode)
{
	typeof(&cudaStreamBeginCaptureToGraph_ptsz) real =
		REAL(cudaStreamBeginCaptureToGraph_ptsz);
	cudaError_t answer;

	if (!real)
		return cudaErrorInitializationError;
	capture_beginning(per_thread(stream));
	answer = real(stream, graph, nodes, edges, count, mode);
	capture_began(per_thread(stream), answer == cudaSuccess);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	typeof(&cudaStreamEndCapture) real = REAL(cudaStreamEndCapture);
	cudaError_t answer = real ? real(stream, graph) : cudaErrorInitializationError;

	if (!still_capturing(answer))
		capture_ended(stream);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamEndCapture_ptsz(
	cudaStream_t stream, cudaGraph_t *graph)
{
	typeof(&cudaStreamEndCapture_ptsz) real = REAL(cudaStreamEndCapture_ptsz);
	cudaError_t answer = real ? real(stream, graph) : cudaErrorInitializationError;

	if (!still_capturing(answer))
		capture_ended(per_thread(stream));
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	typeof(&cudaStreamDestroy) real = REAL(cudaStreamDestroy);
	cudaError_t answer = real ? real(stream) : cudaErrorInitializationError;

	if (answer == cudaSuccess)
		capture_ended(stream);
	return answer;
}
