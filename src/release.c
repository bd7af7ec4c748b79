/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A record leaves the table before its memory or address goes, so that whoever gets the
 * address next finds no stale record.
 */
#include "release.h"

#include <errno.h>
#include <stdlib.h>

#include "adopt.h"
#include "alloc.h"
#include "backup.h"
#include "block.h"
#include "capture.h"
#include "change.h"
#include "device.h"
#include "fork.h"
#include "hostpool.h"
#include "ipc_export.h"
#include "ipc_import.h"
#include "lock.h"
#include "log.h"
#include "real.h"
#include "region.h"
#include "slab.h"
#include "span.h"
#include "stayput.h"
#include "table.h"

/* Frees that wait for captures to end. */
static struct allocation *deferred;

/* Nobody is pausing, resuming or exporting the block. */
static bool is_settled(const struct block *block)
{
	return block->state != STAYPUT_PAUSING && block->state != STAYPUT_RESUMING &&
	       block->exporting == 0;
}

/* Waits for that. */
static void settle_locked(struct block *block)
{
	while (!is_settled(block))
		lock_wait();
}

/* Takes the block out of its space, so that its owner can destroy it. */
static void detach_block_locked(struct block *block)
{
	ipc_export_forget_block_locked(block);
	span_forget_block_locked(block->span, block);
	if (block->segments)
		slab_remove_block_locked(block);
	else
		region_unlink_large_locked(block);
	block->state = STAYPUT_FREEING;
}

/* Drops a record that has left the table: its segment, and its block when nothing else is
 * in it. All work that used it has finished. */
static CUresult drop(struct allocation *a, bool unhold)
{
	struct block *block = a->block;
	bool last;

	lock_take();
	if (unhold)
		capture_unhold_locked();
	if (a->segment)
		settle_locked(block);
	last = a->segment ? slab_give_locked(block, a->segment) : true;
	if (last)
		detach_block_locked(block);
	lock_drop();
	free(a);
	if (!last)
		return CUDA_SUCCESS;
	backup_drop(block);
	return alloc_destroy_block(block);
}

/* After the driver's own end, frees succeed and do nothing. */
static CUresult forgive_exit(CUresult err)
{
	return err == CUDA_ERROR_DEINITIALIZED ? CUDA_SUCCESS : err;
}

/* How a free goes on after its record has left the table. */
enum release_way {
	RELEASE_NATIVE,   /* the real function has to free it */
	RELEASE_AT_ONCE,  /* no memory behind it, so no work can use it */
	RELEASE_DEFERRED, /* after the capture */
	RELEASE_SYNCED,   /* after its work; captures are held off */
	RELEASE_REFUSED,  /* not in a callback of the operation that has it */
};

static enum release_way choose_way_locked(struct allocation *a)
{
	if (!a->block)
		return RELEASE_NATIVE;
	if (a->block->state == STAYPUT_PAUSED)
		return RELEASE_AT_ONCE;
	if (capture_hold_locked())
		return RELEASE_SYNCED;
	a->next = deferred;
	deferred = a;
	return RELEASE_DEFERRED;
}

/* Takes a settled allocation out of the table. A large block becomes the caller's; a
 * shared one goes on for the others. */
static void forget_locked(struct allocation *a)
{
	table_remove_locked(a);
	region_count_locked(a, -1);
	if (a->segment) {
		a->segment->owner = NULL;
	} else if (a->block) {
		a->block->only = NULL;
		a->block->state = STAYPUT_FREEING;
	}
}

/* Waits for the work that uses it, then drops it. Captures are held off until then. */
static CUresult finish(struct allocation *a, bool unhold)
{
	CUresult sync = device_synchronize_context(a->context);
	CUresult err = drop(a, unhold);

	return forgive_exit(sync == CUDA_SUCCESS ? err : sync);
}

static bool is_passing(const struct allocation *a)
{
	return a->block && (a->block->state == STAYPUT_PAUSING ||
				   a->block->state == STAYPUT_RESUMING);
}

static bool is_exporting(const struct allocation *a)
{
	return a->block && a->block->exporting > 0;
}

/* The settled allocation at `ptr`, or NULL. In a callback, which the operation waits for,
 * it may not have settled. */
static struct allocation *find_settled_locked(CUdeviceptr ptr)
{
	struct allocation *a = table_find_locked(ptr);

	while (a && ((is_passing(a) && !change_is_telling()) || is_exporting(a))) {
		lock_wait();
		a = table_find_locked(ptr);
	}
	return a;
}

static CUresult release(CUdeviceptr ptr)
{
	enum release_way way = RELEASE_NATIVE;
	struct allocation *a;

	lock_take();
	a = find_settled_locked(ptr);
	if (a && is_passing(a)) {
		way = RELEASE_REFUSED;
	} else if (a) {
		way = choose_way_locked(a);
		forget_locked(a);
	}
	lock_drop();
	switch (way) {
	case RELEASE_REFUSED:
		return CUDA_ERROR_NOT_PERMITTED;
	case RELEASE_NATIVE:
		free(a);
		return CUDA_ERROR_NOT_FOUND;
	case RELEASE_DEFERRED:
		return CUDA_SUCCESS;
	case RELEASE_AT_ONCE:
		return forgive_exit(drop(a, false));
	case RELEASE_SYNCED:
		break;
	}
	return finish(a, true);
}

CUresult release_pointer(CUdeviceptr ptr)
{
	int saved = errno;
	CUresult err;

	if (!ptr || !table_may_hold(ptr))
		return CUDA_ERROR_NOT_FOUND;
	if (fork_is_child())
		return span_owns(ptr) ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_FOUND;
	err = release(ptr);
	if (err == CUDA_ERROR_NOT_FOUND && span_owns(ptr))
		log_line(LOG_WARN,
			"a free of 0x%llx: region memory may be there, but no allocation "
			"begins there (freed twice, or an address inside of one)",
			(unsigned long long)ptr);
	errno = saved;
	return err;
}

void release_deferred(void)
{
	struct allocation *list = NULL, *a;

	lock_take();
	if (deferred && capture_hold_locked()) {
		list = deferred;
		deferred = NULL;
	}
	lock_drop();
	while ((a = list)) {
		list = a->next;
		finish(a, !list);
	}
	ipc_import_close_deferred();
}

/* What an operation has that waits for this callback is left to it. */
static bool belongs(const struct allocation *a, const struct device *dev, CUcontext ctx)
{
	if (is_passing(a) && change_is_telling())
		return false;
	return dev ? a->space->device == dev : a->context == ctx;
}

/* Takes one allocation of the device or context out of the table. */
static struct allocation *take_any(const struct device *dev, CUcontext ctx)
{
	struct allocation *found, *a = NULL;

	lock_take();
	do {
		found = table_first_locked();
		while (found && !belongs(found, dev, ctx))
			found = found->hh.next;
		/* While it settles, another thread may free it. */
		if (found)
			a = find_settled_locked(found->base);
	} while (found && !a);
	if (a)
		forget_locked(a);
	lock_drop();
	return a;
}

static void release_all(const struct device *dev, CUcontext ctx)
{
	struct allocation *a;

	while ((a = take_any(dev, ctx))) {
		if (a->block)
			drop(a, false);
		else
			free(a);
	}
}

static struct span *take_empty_span(struct region *r, const struct device *dev)
{
	for (struct space *s = r->spaces; s; s = s->next)
		for (struct span **at = &s->spans; s->device == dev && *at;
			at = &(*at)->next)
			if (span_empty_locked(*at)) {
				struct span *span = *at;

				*at = span->next;
				span_retire_locked(span);
				return span;
			}
	return NULL;
}

/* After a reset the driver no longer takes addresses back, so this comes before it. */
static void unreserve_spans(const struct device *dev)
{
	struct span *span;

	do {
		span = NULL;
		lock_take();
		for (struct region *r = region_first_locked(); r && !span; r = r->next)
			span = take_empty_span(r, dev);
		lock_drop();
		if (span)
			span_unreserve(span);
	} while (span);
}

void release_device(CUdevice ordinal)
{
	struct device *dev;

	if (fork_is_child() || !driver_loaded() ||
		device_get(ordinal, &dev) != CUDA_SUCCESS)
		return;
	device_note_reset();
	lock_take();
	for (size_t i = 0; i < dev->context_count; i++)
		capture_forget_context_locked(dev->contexts[i]);
	lock_drop();
	release_deferred();
	device_synchronize(dev);
	ipc_import_close_device(dev);
	release_all(dev, NULL);
	adopt_reset(dev);
	unreserve_spans(dev);
	lock_take();
	hostpool_settle_locked(dev);
	lock_drop();
	hostpool_trim_device(dev, 0);
	lock_take();
	digest_unload_locked(dev);
	dev->context_count = 0;
	lock_drop();
}

void release_context(CUcontext ctx)
{
	if (fork_is_child() || !driver_loaded() || !device_knows_context(ctx))
		return;
	lock_take();
	capture_forget_context_locked(ctx);
	lock_drop();
	release_deferred();
	device_synchronize_context(ctx);
	ipc_import_close_context(ctx);
	release_all(NULL, ctx);
	/* Host memory that was pinned in it is not any more. */
	hostpool_trim(0);
	digest_unload_context(ctx);
	device_forget_context(ctx);
}
