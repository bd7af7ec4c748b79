/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture. A capture that was invalidated stays on its streams, where every call
 * says so, until it is ended.
 */
#include "fake.h"

#include <stdlib.h>

static struct capture *captures;

struct capture *capture_find_locked(unsigned long long id)
{
	for (struct capture *c = captures; c; c = c->next)
		if (c->id == id)
			return c;
	return NULL;
}

void capture_invalidate_locked(struct capture *capture)
{
	capture->is_invalid = true;
}

/* Whether `capture` forbids an unsafe call to a thread that is in `mode`. */
static bool forbids(const struct capture *capture, const struct thread *thread)
{
	if (thread->mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->is_invalid)
		return false;
	if (capture->thread == thread)
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return thread->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_allow_unsafe(void)
{
	CUresult err = CUDA_SUCCESS;

	fake_lock();
	for (struct capture *c = captures; c; c = c->next) {
		if (!forbids(c, thread_self()))
			continue;
		capture_invalidate_locked(c);
		err = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	fake_unlock();
	return err;
}

CUresult capture_allow_wait_locked(const struct CUctx_st *ctx)
{
	CUresult err = CUDA_SUCCESS;

	for (struct capture *c = captures; c; c = c->next) {
		if (c->ctx != ctx)
			continue;
		capture_invalidate_locked(c);
		err = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return err;
}

CUresult capture_allow_legacy_locked(const struct CUctx_st *ctx)
{
	CUresult err = CUDA_SUCCESS;

	for (struct CUstream_st *s = ctx->streams; s; s = s->next) {
		if (!s->capture || (s->flags & CU_STREAM_NON_BLOCKING))
			continue;
		capture_invalidate_locked(s->capture);
		err = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return err;
}

CUresult capture_add_locked(struct CUstream_st *stream, const struct op *op)
{
	CUresult err;

	if (stream->capture->is_invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	err = graph_append_locked(stream->capture->graph, op);
	if (err == CUDA_SUCCESS && stream != stream->capture->origin)
		stream->is_unjoined = true;
	return err;
}

static CUresult begin_locked(CUstream handle, CUgraph graph, CUstreamCaptureMode mode)
{
	struct CUstream_st *stream;
	CUresult err = stream_resolve_locked(handle, &stream);
	struct capture *capture;

	if (err != CUDA_SUCCESS)
		return err;
	if (stream->is_legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	capture = calloc(1, sizeof *capture);
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*capture = (struct capture){.next = captures,
		.ctx = stream->ctx,
		.origin = stream,
		.thread = thread_self(),
		.mode = mode,
		.graph = graph,
		.owns_graph = !graph,
		.id = fake_next_id()};
	if (!graph)
		err = graph_create_locked(&capture->graph);
	if (err != CUDA_SUCCESS) {
		free(capture);
		return err;
	}
	captures = capture;
	stream->capture = capture;
	return CUDA_SUCCESS;
}

static CUresult begin(CUstream handle, CUgraph graph, CUstreamCaptureMode mode)
{
	CUresult err = CUDA_SUCCESS;

	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	if (graph && !graph_is_known_locked(graph))
		err = CUDA_ERROR_INVALID_VALUE;
	err = err ? err : begin_locked(handle, graph, mode);
	fake_unlock();
	return err;
}

/* True when `stream` joined and was not waited for. */
static bool leave_locked(struct CUstream_st *stream, const struct capture *capture)
{
	bool is_unjoined = stream != capture->origin && stream->is_unjoined;

	if (stream->capture != capture)
		return false;
	stream->capture = NULL;
	stream->is_unjoined = false;
	return is_unjoined;
}

static bool detach_locked(struct capture *capture)
{
	struct capture **at = &captures;
	bool is_unjoined = false;

	for (struct CUctx_st *ctx = context_first_locked(); ctx; ctx = ctx->next)
		for (struct CUstream_st *s = ctx->streams; s; s = s->next)
			is_unjoined |= leave_locked(s, capture);
	while (*at != capture)
		at = &(*at)->next;
	*at = capture->next;
	return is_unjoined;
}

void capture_abandon_locked(struct CUstream_st *stream)
{
	struct capture *capture = stream->capture;

	if (!capture)
		return;
	capture_invalidate_locked(capture);
	stream->capture = NULL;
	if (capture->origin != stream)
		return;
	detach_locked(capture);
	if (capture->owns_graph)
		graph_destroy_locked(capture->graph);
	free(capture);
}

static CUresult check_end_locked(const struct CUstream_st *stream)
{
	const struct capture *capture = stream->capture;

	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
		capture->thread != thread_self())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	return CUDA_SUCCESS;
}

static CUresult end_locked(CUstream handle, CUgraph *graph)
{
	struct CUstream_st *stream;
	struct capture *capture;
	CUresult err = stream_resolve_locked(handle, &stream);

	err = err ? err : check_end_locked(stream);
	if (err != CUDA_SUCCESS)
		return err;
	capture = stream->capture;
	if (detach_locked(capture))
		err = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (capture->is_invalid)
		err = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (err == CUDA_SUCCESS)
		*graph = capture->graph;
	else if (capture->owns_graph)
		graph_destroy_locked(capture->graph);
	free(capture);
	return err;
}

static CUresult end(CUstream handle, CUgraph *graph)
{
	CUresult err;

	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	fake_lock();
	err = end_locked(handle, graph);
	fake_unlock();
	return err;
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : begin(stream, NULL, mode), "%p, %d",
		(void *)stream, (int)mode);
}

API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	return cuStreamBeginCapture_v2(per_thread(stream), mode);
}

API CUresult cuStreamBeginCapture(CUstream stream)
{
	return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

API CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return cuStreamBeginCapture(per_thread(stream));
}

#if CUDA_VERSION >= 12030
API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
	const CUgraphNode *dependencies, const CUgraphEdgeData *data, size_t count,
	CUstreamCaptureMode mode)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	/* Nodes run in the order they were added, so any dependency is kept already. */
	(void)dependencies;
	(void)data;
	(void)count;
	if (err == CUDA_SUCCESS && !graph)
		err = CUDA_ERROR_INVALID_VALUE;
	return done(__func__, err ? err : begin(stream, graph, mode), "%p, %p, %d",
		(void *)stream, (void *)graph, (int)mode);
}

API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
	const CUgraphNode *dependencies, const CUgraphEdgeData *data, size_t count,
	CUstreamCaptureMode mode)
{
	return cuStreamBeginCaptureToGraph(
		per_thread(stream), graph, dependencies, data, count, mode);
}
#endif

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : end(stream, graph), "%p", (void *)stream);
}

API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return cuStreamEndCapture(per_thread(stream), graph);
}

static bool blocking_captures_locked(const struct CUctx_st *ctx)
{
	for (const struct CUstream_st *s = ctx->streams; s; s = s->next)
		if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING))
			return true;
	return false;
}

static CUresult info_locked(
	CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph)
{
	struct CUstream_st *stream;
	CUresult err = stream_resolve_locked(handle, &stream);

	if (err != CUDA_SUCCESS)
		return err;
	if (stream->is_legacy && blocking_captures_locked(stream->ctx))
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	if (!stream->capture)
		return CUDA_SUCCESS;
	*status = stream->capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
					      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (id)
		*id = stream->capture->id;
	if (graph)
		*graph = stream->capture->graph;
	return CUDA_SUCCESS;
}

static CUresult info(
	CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph)
{
	CUresult err;

	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = info_locked(stream, status, id, graph);
	fake_unlock();
	return err;
}

API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : info(stream, status, NULL, NULL);
	return done(__func__, err, "%p", (void *)stream);
}

API CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
	return cuStreamIsCapturing(per_thread(stream), status);
}

API CUresult cuStreamGetCaptureInfo(
	CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : info(stream, status, id, NULL), "%p",
		(void *)stream);
}

API CUresult cuStreamGetCaptureInfo_ptsz(
	CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return cuStreamGetCaptureInfo(per_thread(stream), status, id);
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
	cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	/* Which nodes come before the next one is not kept: all that are there do. */
	if (nodes)
		*nodes = NULL;
	if (count)
		*count = 0;
	return done(__func__, err ? err : info(stream, status, id, graph), "%p",
		(void *)stream);
}

API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream,
	CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **nodes, size_t *count)
{
	return cuStreamGetCaptureInfo_v2(
		per_thread(stream), status, id, graph, nodes, count);
}

#if CUDA_VERSION >= 12030
API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
	cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
	const CUgraphEdgeData **edges, size_t *count)
{
	if (edges)
		*edges = NULL;
	return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream,
	CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
	const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count)
{
	if (edges)
		*edges = NULL;
	return cuStreamGetCaptureInfo_v2(
		per_thread(stream), status, id, graph, nodes, count);
}
#endif

static CUresult exchange(CUstreamCaptureMode *mode)
{
	struct thread *thread = thread_self();
	CUstreamCaptureMode old = thread->mode;

	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread->mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : exchange(mode), " ");
}
