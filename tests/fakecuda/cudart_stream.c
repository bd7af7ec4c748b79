/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, captures and graphs: each in the flavours that the driver has. */
#include "cudart.h"

static cudaError_t create_stream(cudaStream_t *stream, unsigned flags, int priority)
{
	cudaError_t err = runtime_enter();

	if (err == cudaSuccess)
		err = translate(
			CALL(cuStreamCreateWithPriority)(stream, flags, priority));
	return runtime_leave(err);
}

RUNTIME(cudaStreamCreate, cudaStream_t *stream)
{
	return create_stream(stream, 0, 0);
}

RUNTIME(cudaStreamCreateWithFlags, cudaStream_t *stream, unsigned int flags)
{
	return create_stream(stream, flags, 0);
}

RUNTIME(cudaStreamCreateWithPriority, cudaStream_t *stream, unsigned int flags,
	int priority)
{
	return create_stream(stream, flags, priority);
}

RUNTIME(cudaStreamDestroy, cudaStream_t stream)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuStreamDestroy)(stream)));
}

static cudaError_t stream_synchronize(cudaStream_t stream, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL_AS(flavour, cuStreamSynchronize)(stream));
	return runtime_leave(err);
}

RUNTIME(cudaStreamSynchronize, cudaStream_t stream)
{
	return stream_synchronize(stream, LEGACY);
}

RUNTIME(cudaStreamSynchronize_ptsz, cudaStream_t stream)
{
	return stream_synchronize(stream, PER_THREAD);
}

static cudaError_t stream_query(cudaStream_t stream, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL_AS(flavour, cuStreamQuery)(stream));
	return runtime_leave(err);
}

RUNTIME(cudaStreamQuery, cudaStream_t stream)
{
	return stream_query(stream, LEGACY);
}

RUNTIME(cudaStreamQuery_ptsz, cudaStream_t stream)
{
	return stream_query(stream, PER_THREAD);
}

static cudaError_t stream_wait_event(
	cudaStream_t stream, cudaEvent_t event, unsigned int flags, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err
		  : translate(CALL_AS(flavour, cuStreamWaitEvent)(stream, event, flags));
	return runtime_leave(err);
}

RUNTIME(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
	return stream_wait_event(stream, event, flags, LEGACY);
}

RUNTIME(cudaStreamWaitEvent_ptsz, cudaStream_t stream, cudaEvent_t event,
	unsigned int flags)
{
	return stream_wait_event(stream, event, flags, PER_THREAD);
}

static cudaError_t launch_host_func(
	cudaStream_t stream, cudaHostFn_t fn, void *user, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL_AS(flavour, cuLaunchHostFunc)(stream, fn, user));
	return runtime_leave(err);
}

RUNTIME(cudaLaunchHostFunc, cudaStream_t stream, cudaHostFn_t fn, void *user)
{
	return launch_host_func(stream, fn, user, LEGACY);
}

RUNTIME(cudaLaunchHostFunc_ptsz, cudaStream_t stream, cudaHostFn_t fn, void *user)
{
	return launch_host_func(stream, fn, user, PER_THREAD);
}

static cudaError_t create_event(cudaEvent_t *event, unsigned flags)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuEventCreate)(event, flags)));
}

RUNTIME(cudaEventCreate, cudaEvent_t *event)
{
	return create_event(event, 0);
}

RUNTIME(cudaEventCreateWithFlags, cudaEvent_t *event, unsigned int flags)
{
	return create_event(event, flags);
}

RUNTIME(cudaEventDestroy, cudaEvent_t event)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuEventDestroy)(event)));
}

RUNTIME(cudaEventQuery, cudaEvent_t event)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuEventQuery)(event)));
}

RUNTIME(cudaEventSynchronize, cudaEvent_t event)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuEventSynchronize)(event)));
}

RUNTIME(cudaEventElapsedTime, float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL(cuEventElapsedTime)(milliseconds, start, end));
	return runtime_leave(err);
}

static cudaError_t event_record(
	cudaEvent_t event, cudaStream_t stream, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL_AS(flavour, cuEventRecord)(event, stream));
	return runtime_leave(err);
}

RUNTIME(cudaEventRecord, cudaEvent_t event, cudaStream_t stream)
{
	return event_record(event, stream, LEGACY);
}

RUNTIME(cudaEventRecord_ptsz, cudaEvent_t event, cudaStream_t stream)
{
	return event_record(event, stream, PER_THREAD);
}
