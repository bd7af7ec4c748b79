/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's functions, as hook_runtime.c has the runtime's: for programs that are
 * linked to libcuda. The runtime itself looks the driver up: it comes by here only where
 * hook_lookup.c answers that.
 */
#include <cuda.h>
#include <stdbool.h>
#include <string.h>

#include "adopt.h"
#include "alloc.h"
#include "device.h"
#include "hook.h"
#include "ipc_export.h"
#include "ipc_import.h"
#include "mapping.h"
#include "peers.h"
#include "real.h"
#include "release.h"
#include "table.h"

#if CUDA_VERSION < 12030
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
STAYPUT_HOOK CUresult cuStreamBeginCaptureToGraph(CUstream, CUgraph, const CUgraphNode *,
	const CUgraphEdgeData *, size_t, CUstreamCaptureMode);
#endif

/* Exported by the driver, but not declared by its headers. */
STAYPUT_HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);
STAYPUT_HOOK CUresult cuStreamBeginCapture_v2_ptsz(CUstream, CUstreamCaptureMode);
STAYPUT_HOOK CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream, CUgraph,
	const CUgraphNode *, const CUgraphEdgeData *, size_t, CUstreamCaptureMode);
STAYPUT_HOOK CUresult cuStreamEndCapture_ptsz(CUstream, CUgraph *);
#undef cuIpcOpenMemHandle
STAYPUT_HOOK CUresult cuIpcOpenMemHandle(CUdeviceptr *, CUipcMemHandle, unsigned int);
#undef cuDevicePrimaryCtxReset
STAYPUT_HOOK CUresult cuDevicePrimaryCtxReset(CUdevice);

static bool choose(size_t size, void *caller, struct choice *choice)
{
	const struct request request = {size, caller, hook_device, -1};

	return !hook_is_inside() && hook_choose(&request, choice);
}

STAYPUT_HOOK CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	typeof(&cuMemAlloc_v2) real;
	struct choice choice;
	struct place place;
	bool in_region =
		ptr && size && choose(size, __builtin_return_address(0), &choice);
	CUresult err;

	if (in_region && choice.policy != STAYPUT_KEEP) {
		err = hook_place(&place);
		if (err == CUDA_SUCCESS)
			err = alloc_allocate(ptr, size, &choice, &place);
		if (!hook_goes_native(err))
			return err;
	}
	real = REAL(cuMemAlloc_v2);
	err = real ? real(ptr, size) : CUDA_ERROR_NOT_INITIALIZED;
	if (in_region && err == CUDA_SUCCESS)
		alloc_count_native(*ptr, size, &choice);
	return err;
}

/* What overflows is more than any card has. */
static CUresult allocate_pitched(CUdeviceptr *ptr, size_t *pitch, size_t width,
	size_t height, const struct choice *choice)
{
	struct place place;
	size_t row, size;
	CUresult err = hook_place(&place);

	if (err == CUDA_SUCCESS &&
		!device_pitch(place.device, width, height, &row, &size))
		err = CUDA_ERROR_OUT_OF_MEMORY;
	if (err == CUDA_SUCCESS)
		err = alloc_allocate(ptr, size, choice, &place);
	if (err == CUDA_SUCCESS)
		*pitch = row;
	return err;
}

STAYPUT_HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width,
	size_t height, unsigned int element)
{
	typeof(&cuMemAllocPitch_v2) real;
	struct choice choice;
	bool valid = ptr && pitch && width && height &&
		     (element == 4 || element == 8 || element == 16);
	bool in_region = valid && choose(hook_area(width, height),
					  __builtin_return_address(0), &choice);
	CUresult err;

	if (in_region && choice.policy != STAYPUT_KEEP) {
		err = allocate_pitched(ptr, pitch, width, height, &choice);
		if (!hook_goes_native(err))
			return err;
	}
	real = REAL(cuMemAllocPitch_v2);
	err = real ? real(ptr, pitch, width, height, element)
		   : CUDA_ERROR_NOT_INITIALIZED;
	if (in_region && err == CUDA_SUCCESS)
		alloc_count_native(*ptr, *pitch * height, &choice);
	return err;
}

STAYPUT_HOOK CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	CUresult err = release_pointer(ptr);
	typeof(&cuMemFree_v2) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return err;
	real = REAL(cuMemFree_v2);
	return real ? real(ptr) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	CUresult err = release_pointer(ptr);
	typeof(&cuMemFreeAsync) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return err;
	real = REAL(cuMemFreeAsync);
	return real ? real(ptr, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
	CUresult err = release_pointer(ptr);
	typeof(&cuMemFreeAsync_ptsz) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return err;
	real = REAL(cuMemFreeAsync_ptsz);
	return real ? real(ptr, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	typeof(&cuDevicePrimaryCtxReset) real = REAL(cuDevicePrimaryCtxReset);

	release_device(device);
	return real ? real(device) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	typeof(&cuDevicePrimaryCtxReset_v2) real = REAL(cuDevicePrimaryCtxReset_v2);

	release_device(device);
	return real ? real(device) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	typeof(&cuCtxDestroy_v2) real = REAL(cuCtxDestroy_v2);

	release_context(ctx);
	return real ? real(ctx) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	typeof(&cuIpcGetMemHandle) real;
	struct ipc_handle ours;
	CUresult err = handle ? ipc_export(&ours, ptr) : CUDA_ERROR_NOT_FOUND;

	if (err == CUDA_SUCCESS)
		memcpy(handle, &ours, sizeof ours);
	if (err != CUDA_ERROR_NOT_FOUND)
		return err;
	real = REAL(cuIpcGetMemHandle);
	return real ? real(handle, ptr) : CUDA_ERROR_NOT_INITIALIZED;
}

/* Opens a handle of ours. False: the real function has to answer. */
static bool open_ours(CUdeviceptr *ptr, const CUipcMemHandle *handle, unsigned int flags,
	CUresult *answer)
{
	struct ipc_handle ours;
	struct place place;

	if (!ipc_is_ours(handle))
		return false;
	memcpy(&ours, handle, sizeof ours);
	*answer = CUDA_ERROR_INVALID_VALUE;
	if (!ptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return true;
	if (hook_place(&place) != CUDA_SUCCESS)
		return false;
	*answer = ipc_import_open(ptr, &ours, &place);
	return true;
}

STAYPUT_HOOK CUresult cuIpcOpenMemHandle(
	CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	typeof(&cuIpcOpenMemHandle) real;
	CUresult answer;

	if (open_ours(ptr, &handle, flags, &answer))
		return answer;
	real = REAL(cuIpcOpenMemHandle);
	return real ? real(ptr, handle, flags) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuIpcOpenMemHandle_v2(
	CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	typeof(&cuIpcOpenMemHandle_v2) real;
	CUresult answer;

	if (open_ours(ptr, &handle, flags, &answer))
		return answer;
	real = REAL(cuIpcOpenMemHandle_v2);
	return real ? real(ptr, handle, flags) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	CUresult err = ipc_import_close(ptr);
	typeof(&cuIpcCloseMemHandle) real;

	if (err != CUDA_ERROR_NOT_FOUND)
		return err;
	real = REAL(cuIpcCloseMemHandle);
	return real ? real(ptr) : CUDA_ERROR_NOT_INITIALIZED;
}

/* The driver would name the mapping or the whole reservation, and nothing while paused.
 */

static bool find_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size)
{
	return table_range(ptr, base, size) || ipc_import_range(ptr, base, size);
}

STAYPUT_HOOK CUresult cuMemGetAddressRange_v2(
	CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	typeof(&cuMemGetAddressRange_v2) real;
	CUdeviceptr our_base;
	size_t our_size;

	if (find_range(ptr, &our_base, &our_size) ||
		(mapping_any() && adopt_paused_range(ptr, &our_base, &our_size))) {
		if (base)
			*base = our_base;
		if (size)
			*size = our_size;
		return CUDA_SUCCESS;
	}
	real = REAL(cuMemGetAddressRange_v2);
	return real ? real(base, size, ptr) : CUDA_ERROR_NOT_INITIALIZED;
}

/* Answers the attribute when it is about the range. */
static bool answer_range(
	void *data, CUpointer_attribute attribute, CUdeviceptr base, size_t size)
{
	if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
		*(CUdeviceptr *)data = base;
	else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
		*(size_t *)data = size;
	else
		return false;
	return true;
}

STAYPUT_HOOK CUresult cuPointerGetAttribute(
	void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	typeof(&cuPointerGetAttribute) real;
	CUdeviceptr base;
	size_t size;

	if (data && find_range(ptr, &base, &size) &&
		answer_range(data, attribute, base, size))
		return CUDA_SUCCESS;
	real = REAL(cuPointerGetAttribute);
	return real ? real(data, attribute, ptr) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuPointerGetAttributes(
	unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
	typeof(&cuPointerGetAttributes) real = REAL(cuPointerGetAttributes);
	CUresult err =
		real ? real(count, attributes, data, ptr) : CUDA_ERROR_NOT_INITIALIZED;
	CUdeviceptr base;
	size_t size;
	unsigned int answered = 0;

	if (!attributes || !data || !find_range(ptr, &base, &size))
		return err;
	for (unsigned int i = 0; i < count; i++)
		answered += answer_range(data[i], attributes[i], base, size);
	return answered == count ? CUDA_SUCCESS : err;
}

static void note_peer(CUcontext owner, bool allowed)
{
	CUdevice accessor_device, owner_device;

	if (driver_load() && driver()->cuCtxGetDevice(&accessor_device) == CUDA_SUCCESS &&
		device_of_context(owner, &owner_device) == CUDA_SUCCESS)
		peers_change(accessor_device, owner_device, allowed);
}

STAYPUT_HOOK CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	typeof(&cuCtxEnablePeerAccess) real = REAL(cuCtxEnablePeerAccess);
	CUresult answer = real ? real(peer, flags) : CUDA_ERROR_NOT_INITIALIZED;

	if (answer == CUDA_SUCCESS || answer == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
		note_peer(peer, true);
	return answer;
}

STAYPUT_HOOK CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	typeof(&cuCtxDisablePeerAccess) real = REAL(cuCtxDisablePeerAccess);
	CUresult answer = real ? real(peer) : CUDA_ERROR_NOT_INITIALIZED;

	if (answer == CUDA_SUCCESS)
		note_peer(peer, false);
	return answer;
}

/* In the per-thread flavours, stream 0 is the thread's own. */
static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

static bool still_capturing(CUresult answer)
{
	return answer == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD ||
	       answer == CUDA_ERROR_INVALID_HANDLE;
}

STAYPUT_HOOK CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	typeof(&cuStreamBeginCapture_v2) real = REAL(cuStreamBeginCapture_v2);
	CUresult answer;

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	hook_capture_beginning(stream);
	answer = real(stream, mode);
	if (answer != CUDA_SUCCESS)
		hook_capture_ended(stream);
	return answer;
}

STAYPUT_HOOK CUresult cuStreamBeginCapture_v2_ptsz(
	CUstream stream, CUstreamCaptureMode mode)
{
	typeof(&cuStreamBeginCapture_v2_ptsz) real = REAL(cuStreamBeginCapture_v2_ptsz);
	CUresult answer;

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	hook_capture_beginning(per_thread(stream));
	answer = real(stream, mode);
	if (answer != CUDA_SUCCESS)
		hook_capture_ended(per_thread(stream));
	return answer;
}

STAYPUT_HOOK CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
	const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
	CUstreamCaptureMode mode)
{
	typeof(&cuStreamBeginCaptureToGraph) real = REAL(cuStreamBeginCaptureToGraph);
	CUresult answer;

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	hook_capture_beginning(stream);
	answer = real(stream, graph, nodes, edges, count, mode);
	if (answer != CUDA_SUCCESS)
		hook_capture_ended(stream);
	return answer;
}

STAYPUT_HOOK CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
	const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
	CUstreamCaptureMode mode)
{
	typeof(&cuStreamBeginCaptureToGraph_ptsz) real =
		REAL(cuStreamBeginCaptureToGraph_ptsz);
	CUresult answer;

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	hook_capture_beginning(per_thread(stream));
	answer = real(stream, graph, nodes, edges, count, mode);
	if (answer != CUDA_SUCCESS)
		hook_capture_ended(per_thread(stream));
	return answer;
}

STAYPUT_HOOK CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	typeof(&cuStreamEndCapture) real = REAL(cuStreamEndCapture);
	CUresult answer = real ? real(stream, graph) : CUDA_ERROR_NOT_INITIALIZED;

	if (!still_capturing(answer))
		hook_capture_ended(stream);
	return answer;
}

STAYPUT_HOOK CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	typeof(&cuStreamEndCapture_ptsz) real = REAL(cuStreamEndCapture_ptsz);
	CUresult answer = real ? real(stream, graph) : CUDA_ERROR_NOT_INITIALIZED;

	if (!still_capturing(answer))
		hook_capture_ended(per_thread(stream));
	return answer;
}

STAYPUT_HOOK CUresult cuStreamDestroy_v2(CUstream stream)
{
	typeof(&cuStreamDestroy_v2) real = REAL(cuStreamDestroy_v2);
	CUresult answer = real ? real(stream) : CUDA_ERROR_NOT_INITIALIZED;

	if (answer == CUDA_SUCCESS)
		hook_capture_ended(stream);
	return answer;
}
