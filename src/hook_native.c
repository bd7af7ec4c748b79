/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation that stays native, of runtime and driver, and is counted where a region is in
 * force: stream-ordered memory, and managed memory as if its policy were keep. Frees come by
 * hook_runtime.c and hook_driver.c. No state here but what has been told.
 *
 * On a stream that is being captured, stream-ordered calls make nodes of a graph, whose
 * memory comes and goes with launches: that is not counted.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "alloc.h"
#include "hook.h"
#include "log.h"
#include "real.h"

/* Exported, but not declared by the headers. */
STAYPUT_HOOK cudaError_t cudaMallocAsync_ptsz(void **, size_t, cudaStream_t);
STAYPUT_HOOK cudaError_t cudaMallocFromPoolAsync_ptsz(
	void **, size_t, cudaMemPool_t, cudaStream_t);
STAYPUT_HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
STAYPUT_HOOK CUresult cuMemAllocFromPoolAsync_ptsz(
	CUdeviceptr *, size_t, CUmemoryPool, CUstream);

/* In the per-thread flavours, stream 0 is the thread's own. */
static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

static bool is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status;

	return driver()->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* What the real function has allocated at `ptr`, for the hook's caller. */
static void count(CUdeviceptr ptr, size_t size, CUstream stream, void *caller)
{
	const struct request request = {size, caller, hook_device, -1};
	struct choice choice;

	if (ptr && size && hook_choose(&request, &choice) && !fork_is_child() &&
		driver_load() && !is_capturing(stream))
		alloc_count_ordered(ptr, size, &choice);
}

static cudaError_t finish_runtime(
	cudaError_t answer, void *const *ptr, size_t size, CUstream stream, void *caller)
{
	hook_leave();
	if (answer == cudaSuccess)
		count((CUdeviceptr)*ptr, size, stream, caller);
	return answer;
}

STAYPUT_HOOK cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t stream)
{
	typeof(&cudaMallocAsync) real = REAL(cudaMallocAsync);

	if (!real)
		return cudaErrorInitializationError;
	hook_enter();
	return finish_runtime(
		real(ptr, size, stream), ptr, size, stream, __builtin_return_address(0));
}

STAYPUT_HOOK cudaError_t cudaMallocAsync_ptsz(
	void **ptr, size_t size, cudaStream_t stream)
{
	typeof(&cudaMallocAsync_ptsz) real = REAL(cudaMallocAsync_ptsz);

	if (!real)
		return cudaErrorInitializationError;
	hook_enter();
	return finish_runtime(real(ptr, size, stream), ptr, size, per_thread(stream),
		__builtin_return_address(0));
}

STAYPUT_HOOK cudaError_t cudaMallocFromPoolAsync(
	void **ptr, size_t size, cudaMemPool_t pool, cudaStream_t stream)
{
	typeof(&cudaMallocFromPoolAsync) real = REAL(cudaMallocFromPoolAsync);

	if (!real)
		return cudaErrorInitializationError;
	hook_enter();
	return finish_runtime(real(ptr, size, pool, stream), ptr, size, stream,
		__builtin_return_address(0));
}

STAYPUT_HOOK cudaError_t cudaMallocFromPoolAsync_ptsz(
	void **ptr, size_t size, cudaMemPool_t pool, cudaStream_t stream)
{
	typeof(&cudaMallocFromPoolAsync_ptsz) real = REAL(cudaMallocFromPoolAsync_ptsz);

	if (!real)
		return cudaErrorInitializationError;
	hook_enter();
	return finish_runtime(real(ptr, size, pool, stream), ptr, size,
		per_thread(stream), __builtin_return_address(0));
}

/* What the runtime asks for, its own hook counts. */
static CUresult finish_driver(CUresult answer, const CUdeviceptr *ptr, size_t size,
	CUstream stream, void *caller)
{
	if (answer == CUDA_SUCCESS && !hook_is_inside())
		count(*ptr, size, stream, caller);
	return answer;
}

STAYPUT_HOOK CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	typeof(&cuMemAllocAsync) real = REAL(cuMemAllocAsync);
	CUresult answer = real ? real(ptr, size, stream) : CUDA_ERROR_NOT_INITIALIZED;

	return finish_driver(answer, ptr, size, stream, __builtin_return_address(0));
}

STAYPUT_HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	typeof(&cuMemAllocAsync_ptsz) real = REAL(cuMemAllocAsync_ptsz);
	CUresult answer = real ? real(ptr, size, stream) : CUDA_ERROR_NOT_INITIALIZED;

	return finish_driver(
		answer, ptr, size, per_thread(stream), __builtin_return_address(0));
}

STAYPUT_HOOK CUresult cuMemAllocFromPoolAsync(
	CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	typeof(&cuMemAllocFromPoolAsync) real = REAL(cuMemAllocFromPoolAsync);
	CUresult answer =
		real ? real(ptr, size, pool, stream) : CUDA_ERROR_NOT_INITIALIZED;

	return finish_driver(answer, ptr, size, stream, __builtin_return_address(0));
}

STAYPUT_HOOK CUresult cuMemAllocFromPoolAsync_ptsz(
	CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	typeof(&cuMemAllocFromPoolAsync_ptsz) real = REAL(cuMemAllocFromPoolAsync_ptsz);
	CUresult answer =
		real ? real(ptr, size, pool, stream) : CUDA_ERROR_NOT_INITIALIZED;

	return finish_driver(
		answer, ptr, size, per_thread(stream), __builtin_return_address(0));
}

static void count_managed(CUdeviceptr ptr, size_t size, void *caller)
{
	const struct request request = {size, caller, hook_device, -1};
	static _Atomic bool told;
	struct choice choice;

	if (!ptr || !size || !hook_choose(&request, &choice))
		return;
	choice.policy = STAYPUT_KEEP;
	alloc_count_native(ptr, size, &choice);
	if (!atomic_exchange(&told, true))
		log_line(LOG_WARN,
			"region %s: managed memory (cudaMallocManaged) that is allocated "
			"in regions stays native, and a pause does not release it",
			choice.region->tag);
}

STAYPUT_HOOK cudaError_t cudaMallocManaged(void **ptr, size_t size, unsigned int flags)
{
	typeof(&cudaMallocManaged) real = REAL(cudaMallocManaged);
	cudaError_t answer;

	if (!real)
		return cudaErrorInitializationError;
	hook_enter();
	answer = real(ptr, size, flags);
	hook_leave();
	if (answer == cudaSuccess)
		count_managed((CUdeviceptr)*ptr, size, __builtin_return_address(0));
	return answer;
}

STAYPUT_HOOK CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	typeof(&cuMemAllocManaged) real = REAL(cuMemAllocManaged);
	CUresult answer = real ? real(ptr, size, flags) : CUDA_ERROR_NOT_INITIALIZED;

	if (answer == CUDA_SUCCESS && !hook_is_inside())
		count_managed(*ptr, size, __builtin_return_address(0));
	return answer;
}
