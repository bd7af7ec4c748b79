/* SPDX-License-Identifier: Apache-2.0 */
#include "lifecycle.h"

#include <stdio.h>

#include "backup.h"
#include "block.h"
#include "change.h"
#include "clock.h"
#include "config.h"
#include "device.h"
#include "error.h"
#include "extent.h"
#include "history.h"
#include "hostpool.h"
#include "lock.h"
#include "log.h"
#include "operation.h"
#include "pause.h"
#include "region.h"
#include "reserve.h"
#include "resume.h"
#include "silence.h"
#include "work.h"

static void add_device(
	struct stayput_device_report *total, const struct stayput_device_report *part)
{
	total->bytes_released += part->bytes_released;
	total->bytes_released_driver += part->bytes_released_driver;
	total->bytes_held += part->bytes_held;
	total->bytes_restored += part->bytes_restored;
	total->bytes_copied += part->bytes_copied;
	total->bytes_unchanged += part->bytes_unchanged;
	total->bytes_zeroed += part->bytes_zeroed;
	total->seconds_sync += part->seconds_sync;
	total->seconds_pin += part->seconds_pin;
	total->seconds_digest += part->seconds_digest;
	total->seconds_copy += part->seconds_copy;
	total->seconds_unmap += part->seconds_unmap;
	total->seconds_create += part->seconds_create;
	total->seconds_map += part->seconds_map;
}

/* Devices copy at the same time, so the rate of all is a device's mean, not their sum. */
static void set_rate(struct stayput_device_report *r)
{
	/* Copies go on while memory is got, mapped and unmapped. */
	double seconds = r->seconds_copy + r->seconds_pin + r->seconds_digest +
			 r->seconds_unmap + r->seconds_create + r->seconds_map;

	if (r->bytes_copied > 0 && seconds > 0)
		r->copied_per_second = r->bytes_copied / seconds;
}

static uint64_t ordered_bytes(const struct operation *op)
{
	uint64_t bytes = 0;

	lock_take();
	for (size_t i = 0; i < op->region_count; i++)
		bytes += op->regions[i]->bytes_ordered;
	lock_drop();
	return bytes;
}

/* `paused`: what the operation wanted its blocks to be. */
static void fill_report(struct stayput_report *report, const struct operation *op,
	bool paused, double start)
{
	size_t size = report->struct_size;

	*report = (struct stayput_report){.struct_size = size, .total = {.device = -1}};
	for (size_t i = 0; i < op->work_count; i++) {
		const struct work *w = &op->works[i];

		if (i < STAYPUT_REPORT_DEVICES) {
			report->device[i] = w->report;
			set_rate(&report->device[i]);
		}
		add_device(&report->total, &w->report);
		for (size_t at = 0; at < w->count; at++) {
			uint64_t bytes;
			uint64_t n = operation_allocations(w->blocks[at], &bytes);

			if (operation_leaves_paused(op, w->blocks[at]) == paused)
				report->allocations += n;
			else
				report->failed += n;
		}
	}
	set_rate(&report->total);
	report->device_count = op->work_count;
	report->bytes_stream_ordered = ordered_bytes(op);
	report->seconds = clock_now() - start;
}

static void log_report(const char *verb, int err, const struct stayput_report *r)
{
	char rest[80] = "";

	if (r->bytes_stream_ordered)
		snprintf(rest, sizeof rest,
			"; %llu bytes of stream-ordered memory stay on the device",
			(unsigned long long)r->bytes_stream_ordered);
	if (err == STAYPUT_OK)
		log_line(LOG_INFO,
			"%s %llu allocations in %.1f ms: released %llu, restored %llu, "
			"copied %llu, unchanged %llu bytes%s",
			verb, (unsigned long long)r->allocations, r->seconds * 1e3,
			(unsigned long long)r->total.bytes_released,
			(unsigned long long)r->total.bytes_restored,
			(unsigned long long)r->total.bytes_copied,
			(unsigned long long)r->total.bytes_unchanged, rest);
	else
		log_line(LOG_INFO, "not %s: %s: %s", verb, error_name(err), error_text());
}

/* Says once of each region that nothing has ever come by. */
static void tell_empty(const struct operation *op)
{
	for (size_t i = 0; i < op->region_count; i++) {
		struct region *r = op->regions[i];
		char why[240];
		bool tell;

		lock_take();
		tell = !r->was_used && !r->told_empty;
		r->told_empty |= tell;
		lock_drop();
		if (!tell)
			continue;
		silence_why_empty(r, why, sizeof why);
		log_line(LOG_WARN, "region %s is empty: %s", r->tag, why);
	}
}

/* Says once of each region that part of what was meant for it is not in it. */
static void tell_ordered(const struct operation *op)
{
	for (size_t i = 0; i < op->region_count; i++) {
		struct region *r = op->regions[i];
		uint64_t bytes;
		bool tell;

		lock_take();
		bytes = r->bytes_ordered;
		tell = bytes > 0 && !r->told_ordered;
		r->told_ordered |= tell;
		lock_drop();
		if (tell)
			log_line(LOG_WARN,
				"region %s: %llu bytes that were allocated in it are "
				"stream-ordered memory (cudaMallocAsync, a memory pool), "
				"which a pause does not release",
				r->tag, (unsigned long long)bytes);
	}
}

/* The end of every operation that began. */
static void finish(struct operation *op, const char *verb, int err,
	const struct stayput_report *report)
{
	change_note_restored(op);
	operation_publish(op);
	history_note(op, err, report);
	change_tell_restored(op);
	change_close(op);
	operation_end(op);
	log_report(verb, err, report);
}

int lifecycle_pause(const char *const *tags, size_t count,
	const struct stayput_options *options, struct asker *asker,
	struct stayput_report *report)
{
	struct asker own = {.pid = 0};
	double start = clock_now();
	struct operation op = {.verb = "pause",
		.asker = asker ? asker : &own,
		.start = start,
		.policy = options->policy,
		.fail_if_held = options->fail_if_held,
		.only_if_idle = options->only_if_idle};
	int err = operation_begin(&op, tags, count, options->no_block);

	if (err != STAYPUT_OK) {
		fill_report(report, &op, true, start);
		return err;
	}
	tell_empty(&op);
	if (op.region_count > 0)
		change_warn_of_nccl(op.regions[0]->tag);
	tell_ordered(&op);
	err = pause_run(&op);
	fill_report(report, &op, true, start);
	finish(&op, "paused", err, report);
	if (err != STAYPUT_OK)
		backup_trim_to_environment();
	return err;
}

static double deadline_of(const struct stayput_options *options)
{
	int64_t wait_ms = options->wait_ms ? options->wait_ms : config()->resume_wait_ms;

	return clock_now() + (wait_ms > 0 ? wait_ms * 1e-3 : 0);
}

int lifecycle_resume(const char *const *tags, size_t count,
	const struct stayput_options *options, struct asker *asker,
	struct stayput_report *report)
{
	struct asker own = {.pid = 0};
	double start = clock_now(), deadline = deadline_of(options);
	struct operation op = {
		.verb = "resume", .asker = asker ? asker : &own, .start = start};
	int err = operation_begin(&op, tags, count, options->no_block);

	if (err != STAYPUT_OK) {
		fill_report(report, &op, false, start);
		return err;
	}
	err = resume_run(&op, deadline);
	fill_report(report, &op, false, start);
	finish(&op, "resumed", err, report);
	if (err == STAYPUT_OK) {
		backup_trim_to_environment();
		report->seconds = clock_now() - start;
	}
	return err;
}

static size_t missing_in(const struct block *list)
{
	size_t missing = 0;

	for (const struct block *b = list; b; b = b->next)
		if (b->state == STAYPUT_ACTIVE && !b->backup)
			missing += b->size;
	return missing;
}

/* What the backups of all regions that have been reserved for need on a device, beyond
 * the memory that is idle or on its way. */
static size_t missing_on(const struct device *dev)
{
	size_t missing = 0, there;

	lock_take();
	there = dev->pool.filling_bytes;
	for (struct region *r = region_first_locked(); r; r = r->next)
		for (struct space *s = r->spaces; s && r->reserved; s = s->next)
			if (s->device == dev && s->policy == STAYPUT_HOST)
				missing += missing_in(s->large) + missing_in(s->shared);
	for (const struct extent *e = dev->pool.idle; e; e = e->next)
		there += e->size;
	lock_drop();
	return missing > there ? missing - there : 0;
}

static int reserve_on(struct device *dev)
{
	size_t size = missing_on(dev), lacking = size ? hostpool_book(size) : 0;

	if (lacking > 0) {
		if (!backup_make_room(lacking))
			return STAYPUT_ERR_HOST_MEMORY;
		size = missing_on(dev);
		if (size && hostpool_book(size) > 0)
			return STAYPUT_ERR_HOST_MEMORY;
	}
	return size ? reserve_start(dev, size) : STAYPUT_OK;
}

static void note_reserved(struct operation *op)
{
	lock_take();
	for (size_t i = 0; i < op->region_count; i++)
		op->regions[i]->reserved = true;
	lock_drop();
}

int lifecycle_reserve(const char *const *tags, size_t count)
{
	struct asker own = {.pid = 0};
	struct operation op = {.verb = "reserve", .asker = &own, .start = clock_now()};
	int err = operation_begin(&op, tags, count, false);

	if (err != STAYPUT_OK)
		return err;
	err = operation_check_supported(&op);
	if (err == STAYPUT_OK)
		note_reserved(&op);
	for (struct device *dev = device_first(); dev && err == STAYPUT_OK;
		dev = device_next(dev))
		err = reserve_on(dev);
	operation_end(&op);
	return err;
}
