/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pause secures everything that can run out before it unmaps anything; a resume that
 * cannot get all gives back what it got. Until operation_publish() the blocks are ours
 * alone, and no lock is held.
 */
#include "lifecycle.h"

#include <stdio.h>
#include <time.h>

#include "backup.h"
#include "block.h"
#include "capture.h"
#include "config.h"
#include "error.h"
#include "lock.h"
#include "log.h"
#include "nvml.h"
#include "operation.h"
#include "real.h"
#include "region.h"

enum { RETRY_MS = 20 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Adds the seconds since `start` to *total, and returns the time now. */
static double add_since(double *total, double start)
{
	double end = now();

	*total += end - start;
	return end;
}

static uint64_t sum_sizes(struct block *const *blocks, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += blocks[i]->size;
	return bytes;
}

/* ---- Reports ----------------------------------------------------------------------------- */

static void add_device(
	struct stayput_device_report *total, const struct stayput_device_report *part)
{
	total->bytes_released += part->bytes_released;
	total->bytes_released_driver += part->bytes_released_driver;
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

/* `paused`: what the operation wanted its blocks to be. */
static void fill_report(struct stayput_report *report, const struct operation *op,
	bool paused, double start)
{
	size_t size = report->struct_size;

	*report = (struct stayput_report){.struct_size = size, .total = {.device = -1}};
	for (size_t i = 0; i < op->work_count; i++) {
		const struct work *w = &op->works[i];

		if (i < STAYPUT_REPORT_DEVICES)
			report->device[i] = w->report;
		add_device(&report->total, &w->report);
		for (size_t at = 0; at < w->count; at++) {
			uint64_t bytes;
			uint64_t n = operation_allocations(w->blocks[at], &bytes);

			if (w->blocks[at]->mapped == !paused)
				report->allocations += n;
			else
				report->failed += n;
		}
	}
	report->device_count = op->work_count;
	report->seconds = now() - start;
}

static void log_report(const char *verb, int err, const struct stayput_report *r)
{
	if (err == STAYPUT_OK)
		log_line(LOG_INFO,
			"%s %llu allocations in %.1f ms: released %llu, restored %llu, "
			"copied %llu bytes",
			verb, (unsigned long long)r->allocations, r->seconds * 1e3,
			(unsigned long long)r->total.bytes_released,
			(unsigned long long)r->total.bytes_restored,
			(unsigned long long)r->total.bytes_copied);
	else
		log_line(LOG_INFO, "%s: %s: %s", verb, error_name(err), error_text());
}

/* ---- Pause ------------------------------------------------------------------------------- */

/* Says once of each region that nothing has ever come by. */
static void tell_empty(const struct operation *op)
{
	for (size_t i = 0; i < op->region_count; i++) {
		struct region *r = op->regions[i];
		bool tell;

		lock_take();
		tell = !r->was_used && !r->told_empty;
		r->told_empty |= tell;
		lock_drop();
		if (tell)
			log_line(LOG_WARN,
				"region %s is empty: nothing was allocated in it, or past "
				"this library (static CUDA runtime, cudaMallocAsync)",
				r->tag);
	}
}

static int check_supported(const struct operation *op)
{
	for (size_t i = 0; i < op->region_count; i++)
		if (op->regions[i]->unsupported)
			return error_set(STAYPUT_ERR_UNSUPPORTED,
				"region %s is native memory: its device has no virtual "
				"memory management",
				op->regions[i]->tag);
	return STAYPUT_OK;
}

/* No block's memory may go while work that uses it is in flight. */
static int synchronize_all(struct operation *op)
{
	bool held;
	int err = STAYPUT_OK;

	lock_take();
	held = capture_hold_locked();
	lock_drop();
	if (!held)
		return error_set(STAYPUT_ERR_BUSY, "a stream capture is in progress");
	for (size_t i = 0; i < op->work_count && err == STAYPUT_OK; i++) {
		struct work *w = &op->works[i];
		double start = now();
		CUresult result = device_synchronize(w->device);

		add_since(&w->report.seconds_sync, start);
		if (result != CUDA_SUCCESS)
			err = error_driver("cuCtxSynchronize", result,
				"while waiting for work in flight; nothing was paused");
	}
	lock_take();
	capture_unhold_locked();
	lock_drop();
	return err;
}

static void drop_backups(struct operation *op)
{
	for (size_t i = 0; i < op->work_count; i++)
		for (size_t at = 0; at < op->works[i].count; at++)
			if (op->works[i].blocks[at]->mapped)
				backup_drop(op->works[i].blocks[at]);
}

static int reserve_all(struct operation *op)
{
	int err = STAYPUT_OK;

	for (size_t i = 0; i < op->work_count && err == STAYPUT_OK; i++) {
		struct work *w = &op->works[i];
		double start = now();

		err = backup_reserve(w->blocks, w->host_count);
		add_since(&w->report.seconds_pin, start);
	}
	return err;
}

static int enter(struct work *w)
{
	CUresult err = device_enter(w->device);

	return err == CUDA_SUCCESS ? STAYPUT_OK
				   : error_driver("cuCtxPushCurrent", err,
					     "for a context that allocations were made in");
}

static int save(struct work *w)
{
	double start = now();
	CUresult err = backup_save(w->blocks, w->host_count, &w->report.bytes_copied);

	add_since(&w->report.seconds_copy, start);
	return err == CUDA_SUCCESS ? STAYPUT_OK
				   : error_driver("copying to the host", err,
					     "before anything was released");
}

static int save_all(struct operation *op)
{
	int err = STAYPUT_OK;

	for (size_t i = 0; i < op->work_count && err == STAYPUT_OK; i++) {
		struct work *w = &op->works[i];

		err = w->host_count ? enter(w) : STAYPUT_OK;
		if (err == STAYPUT_OK && w->host_count) {
			err = save(w);
			device_leave();
		}
	}
	return err;
}

/* Blocks that cannot be unmapped stay as they are: mapped, with their contents. */
static int release(struct work *w)
{
	size_t before = device_free_memory(), after, done;
	double start = now();
	CUresult err = block_unmap_all(w->blocks, w->count, &done);

	block_release_all(w->blocks, done);
	add_since(&w->report.seconds_unmap, start);
	after = device_free_memory();
	w->report.bytes_released = sum_sizes(w->blocks, done);
	w->report.bytes_released_driver = after > before ? after - before : 0;
	if (err == CUDA_SUCCESS)
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_DRIVER,
		"cuMemUnmap failed with %s (%d) on device %d: %zu blocks are paused, %zu "
		"are active still",
		error_cuda_name(err), (int)err, w->device->ordinal, done, w->count - done);
}

/* Memory that somebody else holds a handle to is not free yet. What others allocate at
 * that moment looks the same, and is no news while it is little. */
static void tell_held(const struct work *w)
{
	const struct stayput_device_report *r = &w->report;

	if (r->bytes_released_driver < r->bytes_released - r->bytes_released / 8)
		log_line(LOG_WARN,
			"device %d: %llu bytes were released, but its free memory grew by "
			"%llu: another process allocated meanwhile, or somebody holds a "
			"handle to the memory (cuMemRetainAllocationHandle, an import)",
			r->device, (unsigned long long)r->bytes_released,
			(unsigned long long)r->bytes_released_driver);
}

static int release_all(struct operation *op)
{
	int err = STAYPUT_OK;

	for (size_t i = 0; i < op->work_count && err == STAYPUT_OK; i++) {
		err = enter(&op->works[i]);
		if (err != STAYPUT_OK)
			break;
		err = release(&op->works[i]);
		device_leave();
		tell_held(&op->works[i]);
	}
	return err;
}

static int pause_blocks(struct operation *op)
{
	int err = check_supported(op);

	if (err != STAYPUT_OK)
		return err;
	if (!operation_collect(op, STAYPUT_ACTIVE))
		return operation_no_memory();
	if (op->work_count > 0) {
		err = synchronize_all(op);
		if (err == STAYPUT_OK)
			err = reserve_all(op);
		if (err == STAYPUT_OK)
			err = save_all(op);
		if (err == STAYPUT_OK)
			err = release_all(op);
		if (err != STAYPUT_OK)
			drop_backups(op);
	}
	return err;
}

int lifecycle_pause(const char *const *tags, size_t count,
	const struct stayput_options *options, struct stayput_report *report)
{
	struct operation op = {.policy = options->policy};
	double start = now();
	int err = operation_begin(&op, tags, count, options->no_block);

	if (err != STAYPUT_OK) {
		fill_report(report, &op, true, start);
		return err;
	}
	tell_empty(&op);
	err = pause_blocks(&op);
	fill_report(report, &op, true, start);
	operation_publish(&op);
	operation_end(&op);
	log_report("paused", err, report);
	return err;
}

/* ---- Resume ------------------------------------------------------------------------------ */

static void unmap(struct work *w, size_t mapped, size_t created)
{
	size_t done;

	block_unmap_all(w->blocks, mapped, &done);
	block_release_all(w->blocks, created);
}

static void wait_a_little(void)
{
	nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000}, NULL);
}

/* All of it, or none. Others may be letting go of the memory only now. */
static CUresult create(struct work *w, double deadline)
{
	uint64_t need = sum_sizes(w->blocks, w->count);
	CUresult err;
	size_t done;

	for (;;) {
		err = CUDA_ERROR_OUT_OF_MEMORY;
		if (device_free_memory() >= need) {
			err = block_create_all(w->blocks, w->count, &done);
			if (err == CUDA_SUCCESS)
				return CUDA_SUCCESS;
			block_release_all(w->blocks, done);
		}
		if (err != CUDA_ERROR_OUT_OF_MEMORY || now() >= deadline)
			return err;
		wait_a_little();
	}
}

static int say_out_of_memory(const struct work *w)
{
	char holders[512];
	uint64_t need = sum_sizes(w->blocks, w->count);
	size_t free_bytes = device_free_memory();

	nvml_holders(w->device->ordinal, holders, sizeof holders);
	return error_set(STAYPUT_ERR_DEVICE_MEMORY,
		"resuming region %s needs %llu bytes on device %d and %zu are free%s; all "
		"is paused still and the call can be repeated",
		w->blocks[0]->space->region->tag, (unsigned long long)need,
		w->device->ordinal, free_bytes, holders);
}

static int create_all(struct work *w, double deadline)
{
	double start = now();
	CUresult err = create(w, deadline);

	add_since(&w->report.seconds_create, start);
	if (err == CUDA_ERROR_OUT_OF_MEMORY)
		return say_out_of_memory(w);
	return err == CUDA_SUCCESS
		       ? STAYPUT_OK
		       : error_driver("cuMemCreate", err, "; all is paused still");
}

static int map_all(struct work *w)
{
	double start = now();
	const char *call = "cuMemMap";
	size_t mapped;
	CUresult err = block_map_all(w->blocks, w->count, &mapped);

	if (err == CUDA_SUCCESS) {
		call = "cuMemSetAccess";
		err = block_access_all(w->blocks, w->count);
	}
	add_since(&w->report.seconds_map, start);
	if (err == CUDA_SUCCESS)
		return STAYPUT_OK;
	unmap(w, mapped, w->count);
	return error_driver(call, err, "; all is paused still");
}

static CUresult zero(struct work *w)
{
	CUstream stream;
	CUresult err = driver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), end;

	if (err != CUDA_SUCCESS)
		return err;
	for (size_t i = w->host_count; i < w->count && err == CUDA_SUCCESS; i++) {
		struct block *b = w->blocks[i];

		if (b->paused_as != STAYPUT_ZERO)
			continue;
		err = driver()->cuMemsetD8Async(b->base, 0, b->size, stream);
		w->report.bytes_zeroed += b->size;
	}
	end = driver()->cuStreamSynchronize(stream);
	driver()->cuStreamDestroy_v2(stream);
	return err == CUDA_SUCCESS ? end : err;
}

static int fill_contents(struct work *w)
{
	double start = now();
	CUresult err = CUDA_SUCCESS;

	if (w->host_count > 0)
		err = backup_restore(w->blocks, w->host_count, &w->report.bytes_copied);
	if (err == CUDA_SUCCESS && w->host_count < w->count)
		err = zero(w);
	add_since(&w->report.seconds_copy, start);
	if (err == CUDA_SUCCESS)
		return STAYPUT_OK;
	unmap(w, w->count, w->count);
	return error_driver(
		"copying from the host", err, "; all is paused still, backups are good");
}

static int resume_work(struct work *w, double deadline)
{
	int err = enter(w);

	if (err != STAYPUT_OK)
		return err;
	err = create_all(w, deadline);
	if (err == STAYPUT_OK)
		err = map_all(w);
	if (err == STAYPUT_OK)
		err = fill_contents(w);
	if (err == STAYPUT_OK)
		w->report.bytes_restored = sum_sizes(w->blocks, w->count);
	device_leave();
	return err;
}

/* The first `count` works have been resumed, and are paused again. */
static void take_back(struct operation *op, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		unmap(&op->works[i], op->works[i].count, op->works[i].count);
		op->works[i].report.bytes_restored = 0;
	}
}

static double deadline_of(const struct stayput_options *options)
{
	int64_t wait_ms = options->wait_ms ? options->wait_ms : config()->resume_wait_ms;

	return now() + (wait_ms > 0 ? wait_ms * 1e-3 : 0);
}

static int resume_blocks(struct operation *op, double deadline)
{
	int err = STAYPUT_OK;

	if (!operation_collect(op, STAYPUT_PAUSED))
		return operation_no_memory();
	for (size_t i = 0; i < op->work_count; i++) {
		err = resume_work(&op->works[i], deadline);
		if (err != STAYPUT_OK) {
			take_back(op, i);
			return err;
		}
	}
	drop_backups(op);
	return STAYPUT_OK;
}

int lifecycle_resume(const char *const *tags, size_t count,
	const struct stayput_options *options, struct stayput_report *report)
{
	struct operation op = {.policy = STAYPUT_POLICY_DEFAULT};
	double start = now();
	double deadline = deadline_of(options);
	int err = operation_begin(&op, tags, count, options->no_block);

	if (err != STAYPUT_OK) {
		fill_report(report, &op, false, start);
		return err;
	}
	err = resume_blocks(&op, deadline);
	fill_report(report, &op, false, start);
	operation_publish(&op);
	operation_end(&op);
	log_report("resumed", err, report);
	return err;
}

int lifecycle_reserve(const char *const *tags, size_t count)
{
	struct operation op = {.policy = STAYPUT_POLICY_DEFAULT};
	int err = operation_begin(&op, tags, count, false);

	if (err != STAYPUT_OK)
		return err;
	err = operation_collect(&op, STAYPUT_ACTIVE) ? reserve_all(&op)
						     : operation_no_memory();
	operation_publish(&op);
	operation_end(&op);
	return err;
}
