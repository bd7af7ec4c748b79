/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream is a queue and, once it has had work, a thread. An item may wait for items of
 * other streams: that is how events work, and how the legacy default stream and the
 * blocking ones wait for each other.
 */
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* Another stream has to have finished its item of that number first. */
struct dependency {
	struct CUstream_st *stream;
	uint64_t item;
};

struct item {
	struct item *next;
	struct op op;
	uint64_t number;
	size_t count;
	struct dependency after[];
};

void stream_hold_locked(struct CUstream_st *stream)
{
	stream->refs++;
}

void stream_release_locked(struct CUstream_st *stream)
{
	if (--stream->refs == 0)
		free(stream);
}

static struct CUstream_st *new_stream_locked(struct CUctx_st *ctx, unsigned flags)
{
	struct CUstream_st *stream = calloc(1, sizeof *stream);

	if (!stream)
		return NULL;
	stream->ctx = ctx;
	stream->flags = flags;
	stream->refs = 1;
	stream->id = fake_next_id();
	stream->next = ctx->streams;
	ctx->streams = stream;
	return stream;
}

static void close_locked(struct CUstream_st *stream)
{
	struct CUstream_st **at = &stream->ctx->streams;

	capture_abandon_locked(stream);
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	if (stream->ctx->legacy == stream)
		stream->ctx->legacy = NULL;
	stream->is_closed = true;
	fake_progress_locked();
	stream_release_locked(stream);
}

void stream_close_all_locked(struct CUctx_st *ctx)
{
	while (ctx->streams)
		close_locked(ctx->streams);
}

static struct CUstream_st *find_owned_locked(
	struct CUctx_st *ctx, const struct thread *owner)
{
	for (struct CUstream_st *s = ctx->streams; s; s = s->next)
		if (s->owner == owner)
			return s;
	return NULL;
}

void stream_leave_thread(const struct thread *thread)
{
	fake_lock();
	for (struct CUctx_st *ctx = context_first_locked(); ctx; ctx = ctx->next) {
		struct CUstream_st *own = find_owned_locked(ctx, thread);

		if (own)
			close_locked(own);
	}
	fake_unlock();
}

static struct CUstream_st *legacy_locked(struct CUctx_st *ctx)
{
	if (!ctx->legacy)
		ctx->legacy = new_stream_locked(ctx, 0);
	if (ctx->legacy)
		ctx->legacy->is_legacy = true;
	return ctx->legacy;
}

static struct CUstream_st *own_locked(struct CUctx_st *ctx)
{
	struct CUstream_st *own = find_owned_locked(ctx, thread_self());

	if (!own) {
		own = new_stream_locked(ctx, 0);
		if (own)
			own->owner = thread_self();
	}
	return own;
}

static bool is_known_locked(const struct CUstream_st *stream)
{
	for (struct CUctx_st *ctx = context_first_locked(); ctx; ctx = ctx->next)
		for (const struct CUstream_st *s = ctx->streams; s; s = s->next)
			if (s == stream)
				return true;
	return false;
}

CUresult stream_resolve_locked(CUstream handle, struct CUstream_st **stream)
{
	struct CUctx_st *ctx = context_current();

	if (!handle || handle == CU_STREAM_LEGACY)
		*stream = legacy_locked(ctx);
	else if (handle == CU_STREAM_PER_THREAD)
		*stream = own_locked(ctx);
	else if (is_known_locked(handle))
		*stream = handle;
	else
		return CUDA_ERROR_INVALID_HANDLE;
	if (!*stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return context_check_locked((*stream)->ctx);
}

static bool is_ready_locked(const struct item *item)
{
	for (size_t i = 0; i < item->count; i++)
		if (item->after[i].stream->finished < item->after[i].item)
			return false;
	return true;
}

static void drop_item_locked(struct item *item)
{
	for (size_t i = 0; i < item->count; i++)
		stream_release_locked(item->after[i].stream);
	op_drop_locked(&item->op);
	free(item);
}

static void run_item_locked(struct CUstream_st *stream, struct item *item)
{
	bool skip = stream->ctx->lost != CUDA_SUCCESS || fake_exiting();
	unsigned delay = settings()->delay_us;
	CUresult err = CUDA_SUCCESS;

	if (!skip) {
		fake_unlock();
		if (delay)
			usleep(delay);
		err = op_run(&item->op, stream->ctx);
		fake_lock();
	}
	if (err != CUDA_SUCCESS) {
		report_fault_locked();
		context_lose_locked(stream->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
	}
	if (item->op.kind == OP_STAMP)
		event_stamp_locked(item->op.event, item->number);
	stream->head = item->next;
	if (!stream->head)
		stream->tail = NULL;
	stream->finished = item->number;
	drop_item_locked(item);
	fake_progress_locked();
}

static void *work(void *arg)
{
	struct CUstream_st *stream = arg;
	struct thread *thread = thread_self();

	fake_lock();
	if (thread)
		thread->is_worker = true;
	while (stream->head || !stream->is_closed) {
		if (stream->head && is_ready_locked(stream->head))
			run_item_locked(stream, stream->head);
		else
			fake_wait_locked();
	}
	stream_release_locked(stream);
	fake_unlock();
	return NULL;
}

static CUresult start_worker_locked(struct CUstream_st *stream)
{
	pthread_attr_t attr;
	pthread_t thread;
	int failed;

	if (stream->has_worker)
		return CUDA_SUCCESS;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	failed = pthread_create(&thread, &attr, work, stream);
	pthread_attr_destroy(&attr);
	if (failed)
		return CUDA_ERROR_OPERATING_SYSTEM;
	stream->has_worker = true;
	stream_hold_locked(stream);
	return CUDA_SUCCESS;
}

static bool is_blocking(const struct CUstream_st *stream)
{
	return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* Whether work handed in on `stream` waits for what `other` has queued. */
static bool joins(const struct CUstream_st *stream, const struct CUstream_st *other)
{
	if (stream == other || other->finished == other->queued)
		return false;
	if (stream->is_legacy)
		return is_blocking(other);
	return is_blocking(stream) && other->is_legacy;
}

static void add_dependency(struct item *item, struct CUstream_st *stream, uint64_t number)
{
	stream_hold_locked(stream);
	item->after[item->count++] = (struct dependency){stream, number};
}

static struct item *new_item_locked(
	struct CUstream_st *stream, const struct op *op, struct CUstream_st *after)
{
	size_t count = after != NULL;
	struct item *item;

	for (struct CUstream_st *s = stream->ctx->streams; s; s = s->next)
		count += joins(stream, s);
	item = calloc(1, sizeof *item + count * sizeof *item->after);
	if (!item)
		return NULL;
	item->op = *op;
	for (struct CUstream_st *s = stream->ctx->streams; s; s = s->next)
		if (joins(stream, s))
			add_dependency(item, s, s->queued);
	return item;
}

CUresult stream_queue_locked(struct CUstream_st *stream, const struct op *op,
	struct CUstream_st *after, uint64_t after_item)
{
	CUresult err = start_worker_locked(stream);
	struct item *item;

	if (err != CUDA_SUCCESS)
		return err;
	item = new_item_locked(stream, op, after);
	if (!item)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (after)
		add_dependency(item, after, after_item);
	item->number = ++stream->queued;
	if (stream->tail)
		stream->tail->next = item;
	else
		stream->head = item;
	stream->tail = item;
	fake_progress_locked();
	return CUDA_SUCCESS;
}

/* Waits until the stream has finished that item. */
static CUresult wait_item_locked(struct CUstream_st *stream, uint64_t number)
{
	CUresult err;

	stream_hold_locked(stream);
	while (stream->finished < number)
		fake_wait_locked();
	err = stream->ctx->lost;
	stream_release_locked(stream);
	return err;
}

/* Takes the op over when it succeeds. */
static CUresult enqueue_locked(
	CUstream handle, struct op *op, struct CUstream_st **stream)
{
	CUresult err = stream_resolve_locked(handle, stream);

	if (err == CUDA_SUCCESS && (*stream)->is_legacy)
		err = capture_allow_legacy_locked((*stream)->ctx);
	if (err == CUDA_SUCCESS)
		err = op_check_locked(op, (*stream)->ctx);
	if (err != CUDA_SUCCESS)
		return err;
	if ((*stream)->capture)
		return capture_add_locked(*stream, op);
	return stream_queue_locked(*stream, op, NULL, 0);
}

CUresult stream_enqueue(CUstream handle, struct op *op, bool waits)
{
	struct CUstream_st *stream;
	CUresult err;

	fake_lock();
	err = enqueue_locked(handle, op, &stream);
	if (err != CUDA_SUCCESS)
		op_drop_locked(op);
	else if (waits && !stream->capture)
		err = wait_item_locked(stream, stream->queued);
	fake_unlock();
	return err;
}

bool stream_captures(CUstream handle)
{
	struct CUstream_st *stream;
	bool captures;

	fake_lock();
	captures =
		stream_resolve_locked(handle, &stream) == CUDA_SUCCESS && stream->capture;
	fake_unlock();
	return captures;
}

static CUresult wait_default_locked(CUstream handle)
{
	struct CUstream_st *stream;
	struct op nothing = {.kind = OP_NOTHING};
	struct item *marker;
	CUresult err = stream_resolve_locked(handle, &stream);

	if (err == CUDA_SUCCESS && stream->is_legacy)
		err = capture_allow_legacy_locked(stream->ctx);
	if (err != CUDA_SUCCESS)
		return err;
	if (stream->capture) {
		capture_invalidate_locked(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	marker = new_item_locked(stream, &nothing, stream);
	if (!marker)
		return CUDA_ERROR_OUT_OF_MEMORY;
	add_dependency(marker, stream, stream->queued);
	while (!is_ready_locked(marker))
		fake_wait_locked();
	drop_item_locked(marker);
	return stream->ctx->lost;
}

CUresult stream_wait_for_default(CUstream handle)
{
	CUresult err;

	fake_lock();
	err = wait_default_locked(handle);
	fake_unlock();
	return err;
}

static struct CUstream_st *busy_locked(struct CUctx_st *ctx)
{
	for (struct CUstream_st *s = ctx->streams; s; s = s->next)
		if (s->finished < s->queued)
			return s;
	return NULL;
}

CUresult stream_wait_context(struct CUctx_st *ctx)
{
	struct CUstream_st *stream;
	CUresult err;

	fake_lock();
	while ((stream = busy_locked(ctx)) != NULL)
		wait_item_locked(stream, stream->queued);
	err = ctx->lost;
	fake_unlock();
	return err;
}

static CUresult create(CUstream *made, unsigned flags, int priority)
{
	struct CUstream_st *stream;

	if (!made || (flags & ~CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	stream = new_stream_locked(context_current(), flags);
	if (stream)
		stream->priority = priority;
	fake_unlock();
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = stream;
	return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : create(stream, flags, 0), "%#x", flags);
}

API CUresult cuStreamCreateWithPriority(
	CUstream *stream, unsigned int flags, int priority)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : create(stream, flags, priority);
	return done(__func__, err, "%#x, %d", flags, priority);
}

/* Work already handed in still runs. */
static CUresult destroy(CUstream handle)
{
	struct CUstream_st *stream;
	CUresult err = CUDA_ERROR_INVALID_HANDLE;

	fake_lock();
	if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
		err = stream_resolve_locked(handle, &stream);
	if (err == CUDA_SUCCESS)
		close_locked(stream);
	fake_unlock();
	return err;
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : destroy(stream), "%p", (void *)stream);
}

API CUresult cuStreamDestroy(CUstream stream)
{
	return cuStreamDestroy_v2(stream);
}

/* Waits, and so kills a capture that it would have to wait for. */
static CUresult allow_wait_locked(struct CUstream_st *stream)
{
	if (stream->is_legacy)
		return capture_allow_legacy_locked(stream->ctx);
	if (!stream->capture)
		return CUDA_SUCCESS;
	capture_invalidate_locked(stream->capture);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

API CUresult cuStreamSynchronize(CUstream handle)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : stream_wait_for_default(handle), "%p",
		(void *)handle);
}

API CUresult cuStreamSynchronize_ptsz(CUstream handle)
{
	return cuStreamSynchronize(per_thread(handle));
}

static CUresult query(CUstream handle)
{
	struct CUstream_st *stream;
	CUresult err;

	fake_lock();
	err = stream_resolve_locked(handle, &stream);
	if (err == CUDA_SUCCESS)
		err = allow_wait_locked(stream);
	if (err == CUDA_SUCCESS && stream->finished < stream->queued)
		err = CUDA_ERROR_NOT_READY;
	fake_unlock();
	return err;
}

API CUresult cuStreamQuery(CUstream handle)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : query(handle), "%p", (void *)handle);
}

API CUresult cuStreamQuery_ptsz(CUstream handle)
{
	return cuStreamQuery(per_thread(handle));
}
