/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime's functions: ours? then alloc.c. Else the function that the caller
 * would have reached without us. Sizes of 0 and NULL arguments are the real one's to
 * answer. No state here.
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <string.h>

#include "alloc.h"
#include "device.h"
#include "hook.h"
#include "hook_runtime.h"
#include "ipc_export.h"
#include "ipc_import.h"
#include "peers.h"
#include "real.h"
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

/* Asking the runtime makes no context. */
static int device_of_runtime(const struct request *request)
{
	typeof(&cudaGetDevice) get_device = real_find("cudaGetDevice", request->caller);
	int device;

	return get_device && get_device(&device) == cudaSuccess ? device : -1;
}

static bool choose(size_t size, void *caller, struct choice *choice)
{
	const struct request request = {size, caller, device_of_runtime, -1};

	return hook_choose(&request, choice);
}

/* Since CUDA 12, cudaSetDevice() makes the device's context current. Before, it may leave
 * the old one current until the next call that needs one. */
static bool sets_device_lazily(void *caller)
{
	typeof(&cudaRuntimeGetVersion) get_version =
		real_find("cudaRuntimeGetVersion", caller);
	int version = 0;

	return !get_version || get_version(&version) != cudaSuccess || version < 12000;
}

/* The runtime's current device is the one of the context that is current. Asking costs a
 * tenth of a small allocation, so a runtime that need not be asked is remembered. */
static bool is_current(const struct place *place, typeof(&cudaFree) runtime, void *caller)
{
	static __thread typeof(&cudaFree) eager_runtime;
	typeof(&cudaGetDevice) get_device;
	int wanted;

	if (runtime == eager_runtime)
		return true;
	if (!sets_device_lazily(caller)) {
		eager_runtime = runtime;
		return true;
	}
	get_device = real_find("cudaGetDevice", caller);
	return get_device && get_device(&wanted) == cudaSuccess &&
	       place->device->ordinal == wanted;
}

/* Makes the context current that the runtime would have used. */
static CUresult make_current(void *caller, struct place *place)
{
	typeof(&cudaFree) free_nothing = real_find("cudaFree", caller);
	CUresult err = hook_place(place);

	if (!free_nothing)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (err == CUDA_SUCCESS && is_current(place, free_nothing, caller))
		return CUDA_SUCCESS;
	free_nothing(NULL);
	return hook_place(place);
}

/* Allocates in the region, if there is one. False: the real function has to. */
static bool allocate(const struct choice *choice, size_t size, void *caller,
	CUdeviceptr *ptr, cudaError_t *answer)
{
	struct place place;
	CUresult err;

	if (choice->policy == STAYPUT_KEEP)
		return false;
	err = make_current(caller, &place);
	if (err == CUDA_SUCCESS)
		err = alloc_allocate(ptr, size, choice, &place);
	*answer = runtime_error(err);
	return !hook_goes_native(err);
}

cudaError_t hook_malloc(void **ptr, size_t size, void *caller)
{
	typeof(&cudaMalloc) real;
	struct choice choice;
	bool in_region = ptr && size && choose(size, caller, &choice);
	cudaError_t answer;
	CUdeviceptr ours;

	if (in_region && allocate(&choice, size, caller, &ours, &answer)) {
		if (answer == cudaSuccess)
			*ptr = (void *)ours;
		return answer;
	}
	real = real_find("cudaMalloc", caller);
	hook_enter();
	answer = real ? real(ptr, size) : cudaErrorInitializationError;
	hook_leave();
	if (in_region && answer == cudaSuccess)
		alloc_count_native((CUdeviceptr)*ptr, size, &choice);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaMalloc(void **ptr, size_t size)
{
	return hook_malloc(ptr, size, __builtin_return_address(0));
}

struct rows {
	size_t width, count;
	size_t pitch; /* out */
};

/* The same for rows; what overflows is more than any card has. */
static bool allocate_rows(const struct choice *choice, struct rows *rows, void *caller,
	CUdeviceptr *ptr, cudaError_t *answer)
{
	struct place place;
	CUresult err;
	size_t size;

	if (choice->policy == STAYPUT_KEEP)
		return false;
	err = make_current(caller, &place);
	if (err == CUDA_SUCCESS && !device_pitch(place.device, rows->width, rows->count,
					   &rows->pitch, &size))
		err = CUDA_ERROR_OUT_OF_MEMORY;
	if (err == CUDA_SUCCESS)
		err = alloc_allocate(ptr, size, choice, &place);
	*answer = runtime_error(err);
	return !hook_goes_native(err);
}

STAYPUT_HOOK cudaError_t cudaMallocPitch(
	void **ptr, size_t *pitch, size_t width, size_t height)
{
	void *caller = __builtin_return_address(0);
	typeof(&cudaMallocPitch) real;
	struct choice choice;
	bool in_region = ptr && pitch && width && height &&
			 choose(hook_area(width, height), caller, &choice);
	cudaError_t answer;
	CUdeviceptr ours;
	struct rows rows = {.width = width, .count = height};

	if (in_region && allocate_rows(&choice, &rows, caller, &ours, &answer)) {
		if (answer == cudaSuccess) {
			*ptr = (void *)ours;
			*pitch = rows.pitch;
		}
		return answer;
	}
	real = REAL(cudaMallocPitch);
	hook_enter();
	answer = real ? real(ptr, pitch, width, height) : cudaErrorInitializationError;
	hook_leave();
	if (in_region && answer == cudaSuccess)
		alloc_count_native((CUdeviceptr)*ptr, *pitch * height, &choice);
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
	struct rows rows = {.width = extent.width};
	bool in_region =
		ptr && extent.width &&
		!__builtin_mul_overflow(extent.height, extent.depth, &rows.count) &&
		rows.count && choose(hook_area(rows.width, rows.count), caller, &choice);

	if (in_region && allocate_rows(&choice, &rows, caller, &ours, &answer)) {
		if (answer == cudaSuccess)
			*ptr = (struct cudaPitchedPtr){
				(void *)ours, rows.pitch, extent.width, extent.height};
		return answer;
	}
	real = REAL(cudaMalloc3D);
	hook_enter();
	answer = real ? real(ptr, extent) : cudaErrorInitializationError;
	hook_leave();
	if (in_region && answer == cudaSuccess)
		alloc_count_native(
			(CUdeviceptr)ptr->ptr, ptr->pitch * rows.count, &choice);
	return answer;
}

cudaError_t hook_free(void *ptr, void *caller)
{
	CUresult err = release_pointer((CUdeviceptr)ptr);
	typeof(&cudaFree) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return runtime_error(err);
	real = real_find("cudaFree", caller);
	return real ? real(ptr) : cudaErrorInitializationError;
}

STAYPUT_HOOK cudaError_t cudaFree(void *ptr)
{
	return hook_free(ptr, __builtin_return_address(0));
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

STAYPUT_HOOK cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
	typeof(&cudaIpcGetMemHandle) real;
	struct ipc_handle ours;
	CUresult err =
		handle ? ipc_export(&ours, (CUdeviceptr)ptr) : CUDA_ERROR_NOT_FOUND;

	if (err == CUDA_SUCCESS)
		memcpy(handle, &ours, sizeof ours);
	if (err != CUDA_ERROR_NOT_FOUND)
		return runtime_error(err);
	real = REAL(cudaIpcGetMemHandle);
	return real ? real(handle, ptr) : cudaErrorInitializationError;
}

/* Opens a handle of ours. False: the real function has to answer. */
static bool open_ours(void **ptr, const cudaIpcMemHandle_t *handle, unsigned int flags,
	void *caller, cudaError_t *answer)
{
	struct ipc_handle ours;
	struct place place;
	CUdeviceptr opened;
	CUresult err;

	if (!ipc_is_ours(handle))
		return false;
	memcpy(&ours, handle, sizeof ours);
	*answer = cudaErrorInvalidValue;
	if (!ptr || flags != cudaIpcMemLazyEnablePeerAccess)
		return true;
	err = make_current(caller, &place);
	if (err != CUDA_SUCCESS)
		return false;
	err = ipc_import_open(&opened, &ours, &place);
	*answer = runtime_error(err);
	if (err == CUDA_SUCCESS)
		*ptr = (void *)opened;
	return true;
}

STAYPUT_HOOK cudaError_t cudaIpcOpenMemHandle(
	void **ptr, cudaIpcMemHandle_t handle, unsigned int flags)
{
	typeof(&cudaIpcOpenMemHandle) real;
	cudaError_t answer;

	if (open_ours(ptr, &handle, flags, __builtin_return_address(0), &answer))
		return answer;
	real = REAL(cudaIpcOpenMemHandle);
	return real ? real(ptr, handle, flags) : cudaErrorInitializationError;
}

STAYPUT_HOOK cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
	CUresult err = ipc_import_close((CUdeviceptr)ptr);
	typeof(&cudaIpcCloseMemHandle) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return runtime_error(err);
	real = REAL(cudaIpcCloseMemHandle);
	return real ? real(ptr) : cudaErrorInitializationError;
}

static void note_peer(int owner, bool allowed, typeof(&cudaGetDevice) get_device)
{
	int accessor;

	if (get_device && get_device(&accessor) == cudaSuccess)
		peers_change(accessor, owner, allowed);
}

STAYPUT_HOOK cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
	typeof(&cudaDeviceEnablePeerAccess) real = REAL(cudaDeviceEnablePeerAccess);
	cudaError_t answer = real ? real(peer, flags) : cudaErrorInitializationError;

	if (answer == cudaSuccess || answer == cudaErrorPeerAccessAlreadyEnabled)
		note_peer(peer, true, REAL(cudaGetDevice));
	return answer;
}

STAYPUT_HOOK cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
	typeof(&cudaDeviceDisablePeerAccess) real = REAL(cudaDeviceDisablePeerAccess);
	cudaError_t answer = real ? real(peer) : cudaErrorInitializationError;

	if (answer == cudaSuccess)
		note_peer(peer, false, REAL(cudaGetDevice));
	return answer;
}

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
	hook_capture_beginning(stream);
	hook_enter();
	answer = real(stream, mode);
	hook_leave();
	if (answer != cudaSuccess)
		hook_capture_ended(stream);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamBeginCapture_ptsz(
	cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	typeof(&cudaStreamBeginCapture_ptsz) real = REAL(cudaStreamBeginCapture_ptsz);
	cudaError_t answer;

	if (!real)
		return cudaErrorInitializationError;
	hook_capture_beginning(per_thread(stream));
	hook_enter();
	answer = real(stream, mode);
	hook_leave();
	if (answer != cudaSuccess)
		hook_capture_ended(per_thread(stream));
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
	hook_capture_beginning(stream);
	hook_enter();
	answer = real(stream, graph, nodes, edges, count, mode);
	hook_leave();
	if (answer != cudaSuccess)
		hook_capture_ended(stream);
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
	hook_capture_beginning(per_thread(stream));
	hook_enter();
	answer = real(stream, graph, nodes, edges, count, mode);
	hook_leave();
	if (answer != cudaSuccess)
		hook_capture_ended(per_thread(stream));
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	typeof(&cudaStreamEndCapture) real = REAL(cudaStreamEndCapture);
	cudaError_t answer;

	hook_enter();
	answer = real ? real(stream, graph) : cudaErrorInitializationError;
	hook_leave();
	if (!still_capturing(answer))
		hook_capture_ended(stream);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamEndCapture_ptsz(
	cudaStream_t stream, cudaGraph_t *graph)
{
	typeof(&cudaStreamEndCapture_ptsz) real = REAL(cudaStreamEndCapture_ptsz);
	cudaError_t answer;

	hook_enter();
	answer = real ? real(stream, graph) : cudaErrorInitializationError;
	hook_leave();
	if (!still_capturing(answer))
		hook_capture_ended(per_thread(stream));
	return answer;
}

STAYPUT_HOOK cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	typeof(&cudaStreamDestroy) real = REAL(cudaStreamDestroy);
	cudaError_t answer;

	hook_enter();
	answer = real ? real(stream) : cudaErrorInitializationError;
	hook_leave();
	if (answer == cudaSuccess)
		hook_capture_ended(stream);
	return answer;
}
