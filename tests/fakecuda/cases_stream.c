/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about streams, events and captures. */
#include <pthread.h>

#include "cases.h"

static void pinned_copies_are_late_and_pageable_ones_are_not(void)
{
	CUdeviceptr at;
	char pageable = 1, *pinned;

	cases_start();
	at = cases_allocate(MIB2);
	CHECK_EQ(cuMemAllocHost((void **)&pinned, 1), 0);
	CHECK_EQ(cuMemsetD8(at, 9, 1), 0);
	*pinned = 1;
	cases_hold(NULL);
	CHECK_EQ(cuMemcpyDtoHAsync(pinned, at, 1, NULL), 0);
	CHECK_EQ(*pinned, 1);
	cases_post_later(&cases_go);
	CHECK_EQ(cuMemcpyDtoHAsync(&pageable, at, 1, NULL), 0);
	CHECK_EQ(pageable, 9);
	CHECK_EQ(*pinned, 9);
}

static void copies_into_unregistered_memory_are_faults(void)
{
	static char buffer[4096];
	CUdeviceptr at;

	cases_start();
	at = cases_allocate(MIB2);
	CHECK_EQ(cuMemHostRegister(buffer, sizeof buffer, 0), 0);
	cases_hold(NULL);
	CHECK_EQ(cuMemcpyDtoHAsync(buffer, at, sizeof buffer, NULL), 0);
	CHECK_EQ(cuMemHostUnregister(buffer), 0);
	sem_post(&cases_go);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void the_legacy_stream_joins_blocking_streams_only(void)
{
	CUstream blocking, free_running;

	cases_start();
	CHECK_EQ(cuStreamCreate(&blocking, CU_STREAM_DEFAULT), 0);
	CHECK_EQ(cuStreamCreate(&free_running, CU_STREAM_NON_BLOCKING), 0);
	cases_hold(blocking);
	cases_launch("nothing", 0, NULL);
	cases_launch("nothing", 0, free_running);
	CHECK_EQ(cuStreamSynchronize(free_running), 0);
	CHECK_EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	sem_post(&cases_go);
	CHECK_EQ(cuStreamSynchronize(NULL), 0);
	CHECK_EQ(cuStreamQuery(blocking), 0);
}

static void the_context_waits_for_every_stream(void)
{
	CUstream stream;

	cases_start();
	CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	cases_hold(stream);
	cases_post_later(&cases_go);
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(cuStreamQuery(stream), 0);
}

static void streams_wait_for_events(void)
{
	CUstream first, second;
	CUevent event;

	cases_start();
	CHECK_EQ(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING), 0);
	CHECK_EQ(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING), 0);
	CHECK_EQ(cuEventCreate(&event, 0), 0);
	cases_hold(first);
	CHECK_EQ(cuEventRecord(event, first), 0);
	CHECK_EQ(cuStreamWaitEvent(second, event, 0), 0);
	CHECK_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	CHECK_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
	cases_post_later(&cases_go);
	CHECK_EQ(cuStreamSynchronize(second), 0);
	CHECK_EQ(cuEventQuery(event), 0);
}

static void CUDA_CB ask_the_driver(void *answer)
{
	*(CUresult *)answer = cuCtxSynchronize();
}

static void host_functions_may_not_call_cuda(void)
{
	CUresult answer = CUDA_SUCCESS;

	cases_start();
	CHECK_EQ(cuLaunchHostFunc(NULL, ask_the_driver, &answer), 0);
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(answer, CUDA_ERROR_NOT_PERMITTED);
}

static void graphs_replay_on_new_memory(void)
{
	CUgraphExec exec;
	CUstream stream;
	CUdeviceptr at;
	int value = 0;

	cases_start();
	at = cases_allocate(MIB2);
	stream = cases_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	CHECK_EQ(cuMemsetD8Async(at, 0, 64, stream), 0);
	cases_launch("touch", at, stream);
	CHECK_EQ(cuMemcpyDtoDAsync(at + 128, at, 64, stream), 0);
	exec = cases_end_capture(stream);
	CHECK_EQ(cuMemUnmap(at, MIB2), 0);
	cases_map(at, MIB2, 0);
	CHECK_EQ(cases_access(at, MIB2, 0), 0);
	CHECK_EQ(cuGraphLaunch(exec, stream), 0);
	CHECK_EQ(cuStreamSynchronize(stream), 0);
	CHECK_EQ(cuMemcpyDtoH(&value, at + 128, sizeof value), 0);
	CHECK_EQ(value, 42);
}

static void *synchronize_elsewhere(void *err)
{
	cases_enter(0);
	*(CUresult *)err = cuCtxSynchronize();
	return NULL;
}

static void synchronising_kills_a_capture(void)
{
	cases_start();
	for (CUstreamCaptureMode mode = 0; mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
		mode++) {
		CUstream stream = cases_capture(mode);
		CUgraph graph = (CUgraph)1;
		pthread_t thread;
		CUresult err;

		CHECK_EQ(pthread_create(&thread, NULL, synchronize_elsewhere, &err), 0);
		pthread_join(thread, NULL);
		CHECK_EQ(err, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		CHECK_EQ(cuMemsetD8Async(cases_allocate(MIB2), 0, 1, stream),
			CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		CHECK_EQ(cuStreamEndCapture(stream, &graph),
			CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		CHECK(!graph);
		CHECK_EQ(cuCtxSynchronize(), 0);
	}
}

static void only_relaxed_captures_allow_native_allocation(void)
{
	cases_start();
	for (CUstreamCaptureMode mode = 0; mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
		mode++) {
		bool relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
		CUstream stream = cases_capture(mode);
		CUdeviceptr native;
		CUgraph graph;

		CHECK_EQ(cuMemUnmap(cases_allocate(MIB2), MIB2), 0);
		CHECK_EQ(cuMemAlloc(&native, 16),
			relaxed ? 0 : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		CHECK_EQ(cuStreamEndCapture(stream, &graph),
			relaxed ? 0 : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	}
}

static void a_thread_may_relax_itself(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUdeviceptr native;
	CUstream stream;

	cases_start();
	stream = cases_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	CHECK_EQ(cuThreadExchangeStreamCaptureMode(&mode), 0);
	CHECK_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
	CHECK_EQ(cuMemAlloc(&native, 16), 0);
	CHECK_EQ(cuMemFree(native), 0);
	cases_end_capture(stream);
}

static void *end_elsewhere(void *stream)
{
	CUgraph graph;

	cases_enter(0);
	CHECK_EQ(cuStreamEndCapture(stream, &graph),
		CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	return NULL;
}

static void another_thread_may_not_end_a_capture(void)
{
	CUstream stream;
	pthread_t thread;

	cases_start();
	stream = cases_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	CHECK_EQ(pthread_create(&thread, NULL, end_elsewhere, stream), 0);
	pthread_join(thread, NULL);
	cases_end_capture(stream);
}

static void the_legacy_stream_may_not_follow_a_capture(void)
{
	CUstream stream;
	CUgraph graph;

	cases_start();
	CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_DEFAULT), 0);
	CHECK_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
	CHECK_EQ(cuMemsetD8(cases_allocate(MIB2), 0, 1),
		CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	CHECK_EQ(cuStreamEndCapture(stream, &graph),
		CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void captured_allocations_are_addresses_of_the_graph(void)
{
	CUdeviceptr outside, inside = 0;
	CUstream stream;
	size_t used;

	cases_start();
	CHECK_EQ(cuMemAllocAsync(&outside, MIB2, NULL), 0);
	used = cases_report().bytes_used[0];
	stream = cases_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	CHECK_EQ(cuMemAllocAsync(&inside, MIB2, stream), 0);
	CHECK(inside && inside != outside);
	CHECK_EQ(cases_report().bytes_used[0], used);
	CHECK_EQ(cuMemFreeAsync(outside, stream), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemFreeAsync(inside, stream), 0);
	cases_end_capture(stream);
	CHECK_EQ(cuMemFreeAsync(inside, NULL), CUDA_ERROR_INVALID_VALUE);
}

static const struct test stream[] = {
	TEST(pinned_copies_are_late_and_pageable_ones_are_not),
	TEST(copies_into_unregistered_memory_are_faults),
	TEST(the_legacy_stream_joins_blocking_streams_only),
	TEST(the_context_waits_for_every_stream),
	TEST(streams_wait_for_events),
	TEST(host_functions_may_not_call_cuda),
	TEST(graphs_replay_on_new_memory),
	TEST(synchronising_kills_a_capture),
	TEST(only_relaxed_captures_allow_native_allocation),
	TEST(a_thread_may_relax_itself),
	TEST(another_thread_may_not_end_a_capture),
	TEST(the_legacy_stream_may_not_follow_a_capture),
	TEST(captured_allocations_are_addresses_of_the_graph),
};

const struct cases stream_cases = {stream, sizeof stream / sizeof *stream};
