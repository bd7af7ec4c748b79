/* SPDX-License-Identifier: Apache-2.0 */
/* Stream captures and the graphs they make. */
#include "cudart.h"

static cudaError_t stream_begin_capture(
	cudaStream_t stream, enum cudaStreamCaptureMode mode, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err
		  : translate(CALL_AS(flavour, cuStreamBeginCapture)(
			    stream, (CUstreamCaptureMode)mode));
	return runtime_leave(err);
}

RUNTIME(cudaStreamBeginCapture, cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	return stream_begin_capture(stream, mode, LEGACY);
}

RUNTIME(cudaStreamBeginCapture_ptsz, cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	return stream_begin_capture(stream, mode, PER_THREAD);
}

static cudaError_t stream_end_capture(
	cudaStream_t stream, cudaGraph_t *graph, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL_AS(flavour, cuStreamEndCapture)(stream, graph));
	return runtime_leave(err);
}

RUNTIME(cudaStreamEndCapture, cudaStream_t stream, cudaGraph_t *graph)
{
	return stream_end_capture(stream, graph, LEGACY);
}

RUNTIME(cudaStreamEndCapture_ptsz, cudaStream_t stream, cudaGraph_t *graph)
{
	return stream_end_capture(stream, graph, PER_THREAD);
}

static cudaError_t stream_is_capturing(
	cudaStream_t stream, enum cudaStreamCaptureStatus *status, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err
		  : translate(CALL_AS(flavour, cuStreamIsCapturing)(
			    stream, (CUstreamCaptureStatus *)status));
	return runtime_leave(err);
}

RUNTIME(cudaStreamIsCapturing, cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	return stream_is_capturing(stream, status, LEGACY);
}

RUNTIME(cudaStreamIsCapturing_ptsz, cudaStream_t stream,
	enum cudaStreamCaptureStatus *status)
{
	return stream_is_capturing(stream, status, PER_THREAD);
}

#if FAKE_RUNTIME >= 12030 && CUDA_VERSION >= 12030
static cudaError_t begin_to_graph(cudaStream_t stream, cudaGraph_t graph,
	enum cudaStreamCaptureMode mode, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	if (err == cudaSuccess && !CALL_AS(flavour, cuStreamBeginCaptureToGraph))
		err = cudaErrorCallRequiresNewerDriver;
	if (err == cudaSuccess)
		err = translate(CALL_AS(flavour, cuStreamBeginCaptureToGraph)(
			stream, graph, NULL, NULL, 0, (CUstreamCaptureMode)mode));
	return runtime_leave(err);
}

RUNTIME(cudaStreamBeginCaptureToGraph, cudaStream_t stream, cudaGraph_t graph,
	const cudaGraphNode_t *nodes, const void *edges, size_t count,
	enum cudaStreamCaptureMode mode)
{
	(void)nodes;
	(void)edges;
	(void)count;
	return begin_to_graph(stream, graph, mode, LEGACY);
}

RUNTIME(cudaStreamBeginCaptureToGraph_ptsz, cudaStream_t stream, cudaGraph_t graph,
	const cudaGraphNode_t *nodes, const void *edges, size_t count,
	enum cudaStreamCaptureMode mode)
{
	(void)nodes;
	(void)edges;
	(void)count;
	return begin_to_graph(stream, graph, mode, PER_THREAD);
}
#endif

RUNTIME(cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *mode)
{
	cudaError_t err = runtime_load();
	CUstreamCaptureMode exchanged;

	if (err == cudaSuccess && !mode)
		err = cudaErrorInvalidValue;
	if (err != cudaSuccess)
		return runtime_leave(err);
	exchanged = (CUstreamCaptureMode)*mode;
	err = translate(CALL(cuThreadExchangeStreamCaptureMode)(&exchanged));
	*mode = (enum cudaStreamCaptureMode)exchanged;
	return runtime_leave(err);
}

RUNTIME(cudaGraphCreate, cudaGraph_t *graph, unsigned int flags)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuGraphCreate)(graph, flags)));
}

RUNTIME(cudaGraphDestroy, cudaGraph_t graph)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuGraphDestroy)(graph)));
}

RUNTIME(cudaGraphGetNodes, cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(
		err ? err : translate(CALL(cuGraphGetNodes)(graph, nodes, count)));
}

static cudaError_t instantiate(
	cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	cudaError_t err = runtime_enter();

	err = err ? err
		  : translate(CALL(cuGraphInstantiateWithFlags)(exec, graph, flags));
	return runtime_leave(err);
}

#if FAKE_RUNTIME < 12000
RUNTIME(cudaGraphInstantiate, cudaGraphExec_t *exec, cudaGraph_t graph,
	cudaGraphNode_t *error_node, char *log, size_t size)
{
	if (error_node)
		*error_node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(exec, graph, 0);
}
#else
RUNTIME(cudaGraphInstantiate, cudaGraphExec_t *exec, cudaGraph_t graph,
	unsigned long long flags)
{
	return instantiate(exec, graph, flags);
}
#endif

RUNTIME(cudaGraphInstantiateWithFlags, cudaGraphExec_t *exec, cudaGraph_t graph,
	unsigned long long flags)
{
	return instantiate(exec, graph, flags);
}

RUNTIME(cudaGraphExecDestroy, cudaGraphExec_t exec)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuGraphExecDestroy)(exec)));
}

static cudaError_t graph_launch(
	cudaGraphExec_t exec, cudaStream_t stream, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL_AS(flavour, cuGraphLaunch)(exec, stream));
	return runtime_leave(err);
}

RUNTIME(cudaGraphLaunch, cudaGraphExec_t exec, cudaStream_t stream)
{
	return graph_launch(exec, stream, LEGACY);
}

RUNTIME(cudaGraphLaunch_ptsz, cudaGraphExec_t exec, cudaStream_t stream)
{
	return graph_launch(exec, stream, PER_THREAD);
}
