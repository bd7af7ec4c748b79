/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event stands for the item that was last recorded into it; in a capture, for the
 * capture, which whoever waits for it joins.
 */
#include "fake.h"

#include <stdlib.h>
#include <time.h>

struct CUevent_st {
	struct CUevent_st *next;
	struct CUctx_st *ctx;
	unsigned flags, refs;
	struct CUstream_st *stream; /* where it was recorded, or NULL */
	uint64_t item;
	unsigned long long
		capture; /* the capture it was recorded in; stream is then NULL */
	struct CUstream_st *captured_in;
	double milliseconds; /* when the item ran */
};

static struct CUevent_st *events;

static bool is_known_locked(const struct CUevent_st *event)
{
	for (const struct CUevent_st *e = events; e; e = e->next)
		if (e == event)
			return true;
	return false;
}

static void forget_record_locked(struct CUevent_st *event)
{
	if (event->stream)
		stream_release_locked(event->stream);
	event->stream = NULL;
	event->capture = 0;
	event->captured_in = NULL;
}

void event_release_locked(struct CUevent_st *event)
{
	if (--event->refs)
		return;
	forget_record_locked(event);
	free(event);
}

void event_stamp_locked(struct CUevent_st *event, uint64_t item)
{
	struct timespec now;

	if (event->item != item)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	event->milliseconds = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static CUresult create(CUevent *made, unsigned flags)
{
	struct CUevent_st *event;

	if (!made || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	event = calloc(1, sizeof *event);
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->ctx = context_current();
	event->flags = flags;
	event->refs = 1;
	fake_lock();
	event->next = events;
	events = event;
	fake_unlock();
	*made = event;
	return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : create(event, flags), "%#x", flags);
}

static CUresult destroy(CUevent event)
{
	struct CUevent_st **at = &events;

	fake_lock();
	while (*at && *at != event)
		at = &(*at)->next;
	if (!*at) {
		fake_unlock();
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*at = event->next;
	event_release_locked(event);
	fake_unlock();
	return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : destroy(event), "%p", (void *)event);
}

API CUresult cuEventDestroy(CUevent event)
{
	return cuEventDestroy_v2(event);
}

static CUresult record_captured_locked(
	struct CUevent_st *event, struct CUstream_st *stream)
{
	if (stream->capture->is_invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	forget_record_locked(event);
	event->capture = stream->capture->id;
	event->captured_in = stream;
	return CUDA_SUCCESS;
}

static CUresult record_locked(struct CUevent_st *event, CUstream handle)
{
	struct op op = {.kind = OP_STAMP, .event = event};
	struct CUstream_st *stream;
	CUresult err = stream_resolve_locked(handle, &stream);

	if (err == CUDA_SUCCESS && !is_known_locked(event))
		err = CUDA_ERROR_INVALID_HANDLE;
	if (err == CUDA_SUCCESS && stream->is_legacy)
		err = capture_allow_legacy_locked(stream->ctx);
	if (err != CUDA_SUCCESS)
		return err;
	if (stream->capture)
		return record_captured_locked(event, stream);
	err = stream_queue_locked(stream, &op, NULL, 0);
	if (err != CUDA_SUCCESS)
		return err;
	event->refs++;
	stream_hold_locked(stream);
	forget_record_locked(event);
	event->stream = stream;
	event->item = stream->queued;
	return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream handle)
{
	CUresult err;

	fake_lock();
	err = record_locked(event, handle);
	fake_unlock();
	return err;
}

API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : record(event, stream), "%p, %p", (void *)event,
		(void *)stream);
}

API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return cuEventRecord(event, per_thread(stream));
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	(void)flags;
	return cuEventRecord(event, stream);
}

API CUresult cuEventRecordWithFlags_ptsz(
	CUevent event, CUstream stream, unsigned int flags)
{
	(void)flags;
	return cuEventRecord(event, per_thread(stream));
}

/* 0 done, NOT_READY, or why it may not be asked. */
static CUresult state_locked(struct CUevent_st *event)
{
	struct capture *capture;

	if (!is_known_locked(event))
		return CUDA_ERROR_INVALID_HANDLE;
	capture = capture_find_locked(event->capture);
	if (capture) {
		capture_invalidate_locked(capture);
		return CUDA_ERROR_CAPTURED_EVENT;
	}
	if (event->stream && event->stream->finished < event->item)
		return CUDA_ERROR_NOT_READY;
	return event->ctx->lost;
}

static CUresult query(CUevent event)
{
	CUresult err;

	fake_lock();
	err = state_locked(event);
	fake_unlock();
	return err;
}

API CUresult cuEventQuery(CUevent event)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : query(event), "%p", (void *)event);
}

static CUresult synchronize(CUevent event)
{
	CUresult err;

	fake_lock();
	while ((err = state_locked(event)) == CUDA_ERROR_NOT_READY)
		fake_wait_locked();
	fake_unlock();
	return err;
}

API CUresult cuEventSynchronize(CUevent event)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : synchronize(event), "%p", (void *)event);
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
	CUresult err;

	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = state_locked(start);
	err = err ? err : state_locked(end);
	if (err == CUDA_SUCCESS && (!start->stream || !end->stream ||
					   (start->flags & CU_EVENT_DISABLE_TIMING) ||
					   (end->flags & CU_EVENT_DISABLE_TIMING)))
		err = CUDA_ERROR_INVALID_HANDLE;
	if (err == CUDA_SUCCESS)
		*milliseconds = (float)(end->milliseconds - start->milliseconds);
	fake_unlock();
	return err;
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : elapsed(milliseconds, start, end), "%p, %p",
		(void *)start, (void *)end);
}

#if CUDA_VERSION >= 12080
API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	return cuEventElapsedTime(milliseconds, start, end);
}
#endif

static CUresult join_locked(struct CUstream_st *stream, struct CUevent_st *event)
{
	struct capture *capture = capture_find_locked(event->capture);

	if (!capture)
		return CUDA_SUCCESS;
	if (capture->is_invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->is_legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (stream->capture && stream->capture != capture) {
		capture_invalidate_locked(capture);
		capture_invalidate_locked(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!stream->capture) {
		stream->capture = capture;
		stream->is_unjoined = true;
	}
	/* What was captured before the record now leads on from this stream. */
	if (event->captured_in != stream)
		event->captured_in->is_unjoined = false;
	return CUDA_SUCCESS;
}

static CUresult wait_locked(CUstream handle, CUevent event)
{
	struct op nothing = {.kind = OP_NOTHING};
	struct CUstream_st *stream;
	CUresult err = stream_resolve_locked(handle, &stream);

	if (err == CUDA_SUCCESS && !is_known_locked(event))
		err = CUDA_ERROR_INVALID_HANDLE;
	if (err != CUDA_SUCCESS)
		return err;
	if (event->capture)
		return join_locked(stream, event);
	if (stream->is_legacy)
		err = capture_allow_legacy_locked(stream->ctx);
	if (err != CUDA_SUCCESS || !event->stream)
		return err;
	if (stream->capture) {
		capture_invalidate_locked(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	return stream_queue_locked(stream, &nothing, event->stream, event->item);
}

static CUresult wait(CUstream stream, CUevent event)
{
	CUresult err;

	fake_lock();
	err = wait_locked(stream, event);
	fake_unlock();
	return err;
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : wait(stream, event), "%p, %p, %#x",
		(void *)stream, (void *)event, flags);
}

API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	return cuStreamWaitEvent(per_thread(stream), event, flags);
}
