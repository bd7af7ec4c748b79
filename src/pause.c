/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All devices at once. Each finds out what changed and copies it, batch by batch, while
 * host memory is still being got. From when the last device has its host memory, nothing
 * that a pause can run out of is missing, and batches are unmapped once they are copied.
 */
#include "pause.h"

#include <stdatomic.h>
#include <stdio.h>

#include "block.h"
#include "capture.h"
#include "change.h"
#include "clock.h"
#include "config.h"
#include "device.h"
#include "error.h"
#include "hostpool.h"
#include "idle.h"
#include "ipc_export.h"
#include "lock.h"
#include "log.h"
#include "operation.h"
#include "region.h"
#include "work.h"

enum { OTHERS_AT_ONCE = 8 };

static int synchronize(struct work *w)
{
	double start = clock_now();
	CUresult err = device_synchronize(w->device);

	clock_add(&w->report.seconds_sync, start);
	return err == CUDA_SUCCESS
		       ? STAYPUT_OK
		       : error_driver("cuCtxSynchronize", err,
				 "while waiting for work in flight; nothing was paused");
}

static int check_idle(struct work *w)
{
	return idle_check(w->device);
}

/* On every device, while nothing is captured. */
static int run_uncaptured(struct operation *op, int (*step)(struct work *w))
{
	bool held;
	int err;

	lock_take();
	held = capture_hold_locked();
	lock_drop();
	if (!held)
		return error_set(STAYPUT_ERR_BUSY, "a stream capture is in progress");
	err = work_run_all(op, step);
	lock_take();
	capture_unhold_locked();
	lock_drop();
	return err;
}

static bool is_worked_on(const struct operation *op, const struct device *device)
{
	for (size_t i = 0; i < op->work_count; i++)
		if (op->works[i].device == device)
			return true;
	return false;
}

/* Devices where the regions have had stream-ordered memory, but have nothing to pause. */
static size_t list_pool_devices(
	const struct operation *op, struct device *devices[DEVICE_MAX])
{
	bool listed[DEVICE_MAX] = {false};
	size_t count = 0;

	lock_take();
	for (size_t i = 0; i < op->region_count; i++)
		for (struct space *s = op->regions[i]->spaces; s; s = s->next) {
			if (!s->uses_pools || listed[s->device->ordinal] ||
				is_worked_on(op, s->device))
				continue;
			listed[s->device->ordinal] = true;
			devices[count++] = s->device;
		}
	lock_drop();
	return count;
}

/* Pools can let go of what was freed once the frees have been waited for, which has been
 * done where there is something to pause. Nothing here is an error. */
static void trim_pools(const struct operation *op)
{
	struct device *devices[DEVICE_MAX];
	size_t count = list_pool_devices(op, devices);
	bool held;

	for (size_t i = 0; i < op->work_count; i++)
		device_trim_pools(op->works[i].device);
	if (count == 0)
		return;
	lock_take();
	held = capture_hold_locked();
	lock_drop();
	for (size_t i = 0; i < count; i++) {
		if (held)
			device_synchronize(devices[i]);
		device_trim_pools(devices[i]);
	}
	lock_take();
	if (held)
		capture_unhold_locked();
	lock_drop();
}

static void unplace_all(struct operation *op, size_t count)
{
	for (size_t i = 0; i < count; i++)
		backup_unplace(&op->works[i].job);
}

/* Places for all works; *fresh is what has to be got from the system for them. */
static int place_all(struct operation *op, size_t *fresh)
{
	*fresh = 0;
	for (size_t i = 0; i < op->work_count; i++) {
		struct work *w = &op->works[i];
		int err;

		w->job = (struct backup_job){.device = w->device,
			.blocks = w->blocks,
			.count = w->host_count,
			.secured = true,
			.progress = &op->asker->done};
		err = w->host_count ? backup_place(&w->job, fresh) : STAYPUT_OK;
		if (err != STAYPUT_OK) {
			unplace_all(op, i);
			return err;
		}
	}
	return STAYPUT_OK;
}

/* Idle memory in which there was no place goes first, so that there is not twice as much
 * after a while as is needed. */
static void give_back_for(size_t fresh)
{
	size_t total;

	lock_take();
	total = fresh && hostpool_idle_locked() ? hostpool_total_locked() : 0;
	lock_drop();
	if (total > 0)
		hostpool_trim(total > fresh ? total - fresh : 0);
}

static void note_booking(struct operation *op)
{
	for (size_t i = 0; i < op->work_count; i++)
		op->works[i].job.booked = op->works[i].job.fresh_bytes;
}

/* When room is short, the places are taken anew after some has been made. */
static int find_room(struct operation *op)
{
	size_t fresh, lacking;
	int err = place_all(op, &fresh);

	if (err != STAYPUT_OK)
		return err;
	give_back_for(fresh);
	lacking = hostpool_book(fresh);
	if (lacking == 0) {
		note_booking(op);
		return STAYPUT_OK;
	}
	unplace_all(op, op->work_count);
	if (!backup_make_room(lacking))
		return STAYPUT_ERR_HOST_MEMORY;
	err = place_all(op, &fresh);
	if (err != STAYPUT_OK)
		return err;
	if (hostpool_book(fresh) > 0) {
		unplace_all(op, op->work_count);
		return STAYPUT_ERR_HOST_MEMORY;
	}
	note_booking(op);
	return STAYPUT_OK;
}

static uint64_t sum_sizes(const struct work *w, size_t first, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = first; i < first + count; i++)
		bytes += w->blocks[i]->size;
	return bytes;
}

/* Unmaps and releases blocks [first, end). What cannot be unmapped stays as it is. */
static CUresult release_blocks(struct work *w, size_t first, size_t end)
{
	double start = clock_now();
	size_t done;
	CUresult err = block_unmap_all(w->blocks + first, end - first, &done);

	for (size_t i = first; i < first + done; i++)
		w->report.bytes_released += w->blocks[i]->size;
	clock_add(&w->report.seconds_unmap, start);
	return err;
}

/* Adds to the sentence what has become of the blocks. */
static void say_what_is_paused(const struct work *w, int err)
{
	char sentence[WORK_SENTENCE];
	size_t paused = 0;

	for (size_t i = 0; i < w->count; i++)
		paused += !w->blocks[i]->mapped;
	error_save(sentence, sizeof sentence);
	error_set(err,
		"%.700s; on device %d, %zu blocks are paused, their contents safe, and "
		"%zu "
		"are active still (stayput_query() says which)",
		sentence, w->device->ordinal, paused, w->count - paused);
}

/* What has been copied, and with it a few of those that need no copy: little enough that
 * the copies in flight do not run out meanwhile. `all`: everything. */
static int release_some(struct work *w, bool all)
{
	const char *call = "copying to the host";
	size_t other = w->host_count + w->released, left = w->count - other;
	size_t first = 0, end = 0;
	CUresult err = CUDA_SUCCESS;

	w->releasing = true;
	if (w->host_count)
		err = backup_take_ended(&w->job, all, &first, &end);
	if (first < end) {
		CUresult unmapped = release_blocks(w, first, end);

		call = err == CUDA_SUCCESS ? "cuMemUnmap" : call;
		err = err == CUDA_SUCCESS ? unmapped : err;
	}
	if (err == CUDA_SUCCESS && left > 0) {
		size_t n = all || left < OTHERS_AT_ONCE ? left : OTHERS_AT_ONCE;

		call = "cuMemUnmap";
		err = release_blocks(w, other, other + n);
		w->released += n;
		operation_progress(w->operation, sum_sizes(w, other, n));
	}
	return err == CUDA_SUCCESS ? STAYPUT_OK : error_driver(call, err, "");
}

/* Memory that somebody else holds a handle to is not free yet. What others allocate at
 * that moment looks the same: it is no news while it is little, or the second time. */
static void tell_held(const struct work *w)
{
	static _Atomic bool told;
	const struct stayput_device_report *r = &w->report;

	if (r->bytes_released_driver >= r->bytes_released - r->bytes_released / 8)
		return;
	log_line(atomic_exchange(&told, true) ? LOG_INFO : LOG_WARN,
		"device %d: %llu bytes were released, but its free memory grew by %llu: "
		"another process allocated meanwhile, or somebody holds a handle to the "
		"memory (cuMemRetainAllocationHandle, an import)",
		r->device, (unsigned long long)r->bytes_released,
		(unsigned long long)r->bytes_released_driver);
}

static void mark_secured(struct work *w)
{
	lock_take();
	if (!w->secured)
		w->operation->secured++;
	w->secured = true;
	lock_notify();
	lock_drop();
}

/* Every device has all that its part needs, and none has failed: unmapping may begin, and
 * once it has begun here it goes on. */
static bool may_release(struct work *w, bool wait)
{
	struct operation *op = w->operation;
	bool may;

	if (w->releasing)
		return true;
	lock_take();
	while (wait && op->secured < op->work_count && !op->failed)
		lock_wait();
	may = op->secured == op->work_count && !op->failed;
	lock_drop();
	return may;
}

static int save(struct work *w)
{
	int err = backup_open(&w->job);

	while (err == STAYPUT_OK && w->job.begun < w->host_count) {
		err = backup_begin(&w->job);
		if (err == STAYPUT_OK)
			err = backup_secure(&w->job, false);
		if (err == STAYPUT_OK && w->job.secured)
			mark_secured(w);
		if (err == STAYPUT_OK && may_release(w, false))
			err = release_some(w, false);
	}
	return err == STAYPUT_OK ? backup_secure(&w->job, true) : err;
}

static int save_and_release(struct work *w)
{
	double start = clock_now();
	int err = w->host_count ? save(w) : STAYPUT_OK;

	if (err == STAYPUT_OK)
		mark_secured(w);
	if (err == STAYPUT_OK && may_release(w, true))
		err = release_some(w, true);
	if (err != STAYPUT_OK)
		operation_fail(w->operation);
	if (err != STAYPUT_OK && w->releasing)
		say_what_is_paused(w, err);
	if (w->host_count)
		clock_add(&w->report.seconds_copy, start);
	backup_close(&w->job);
	return err;
}

static void add_job_report(struct work *w)
{
	w->report.bytes_copied = w->job.bytes_copied;
	w->report.bytes_unchanged = w->job.bytes_unchanged;
	w->report.seconds_pin = w->job.seconds_pin;
	w->report.seconds_digest = w->job.seconds_digest;
	/* What is left of the time are copies, and waiting for them. */
	w->report.seconds_copy -=
		w->job.seconds_pin + w->job.seconds_digest + w->report.seconds_unmap;
	if (w->report.seconds_copy < 0 || w->host_count == 0)
		w->report.seconds_copy = 0;
}

static int pause_work(struct work *w)
{
	size_t before, after;
	int err = work_enter(w);

	if (err != STAYPUT_OK) {
		operation_fail(w->operation);
		backup_close(&w->job);
		return err;
	}
	before = device_free_memory();
	err = save_and_release(w);
	after = device_free_memory();
	device_leave();
	w->report.bytes_released_driver = after > before ? after - before : 0;
	add_job_report(w);
	tell_held(w);
	return err;
}

static int fill_all(struct operation *op)
{
	size_t threads = config()->threads / op->work_count;
	int err = STAYPUT_OK;

	for (size_t i = 0; i < op->work_count && err == STAYPUT_OK; i++)
		err = backup_fill(&op->works[i].job, threads ? threads : 1);
	if (err == STAYPUT_OK)
		return err;
	for (size_t i = 0; i < op->work_count; i++)
		backup_close(&op->works[i].job);
	return err;
}

enum { HELD_SENTENCE = 400 };

/* What others have imported; nothing: an empty text. */
static void write_imported(const struct holding *held, char text[HELD_SENTENCE])
{
	char who[48] = "in another process namespace", more[64] = "";

	*text = '\0';
	if (!held->region)
		return;
	if (held->pid)
		snprintf(who, sizeof who, "process %d", (int)held->pid);
	if (held->bytes > held->region_bytes)
		snprintf(more, sizeof more, ", and %llu bytes of other regions",
			(unsigned long long)(held->bytes - held->region_bytes));
	snprintf(text, HELD_SENTENCE,
		"%llu bytes of region %s are open by CUDA IPC in other processes, one "
		"of them %s%s",
		(unsigned long long)held->region_bytes, held->region->tag, who, more);
}

/* The same of what the program itself holds on to. */
static void write_own(const struct holding *held, char text[HELD_SENTENCE])
{
	*text = '\0';
	if (held->own_mappings)
		snprintf(text, HELD_SENTENCE,
			"%zu mappings of the program's own, %llu bytes, cannot be "
			"released, since %s",
			held->own_mappings, (unsigned long long)held->own_bytes,
			held->own_why);
}

static bool holds_anything(const struct operation *op)
{
	return op->held.region || op->held.own_mappings;
}

/* Keeps the sentence about all that is held. */
static int say_held(const struct operation *op, int code, const char *outcome)
{
	char imported[HELD_SENTENCE], own[HELD_SENTENCE];

	write_imported(&op->held, imported);
	write_own(&op->held, own);
	return error_set(code, "%s%s%s; %s", imported, *imported && *own ? "; " : "", own,
		outcome);
}

/* The same memory may be held at every pause: that is news once, of either kind. */
static void tell_left_active(const struct operation *op)
{
	static _Atomic bool told_imported, told_own;
	bool imported = op->held.region && !atomic_exchange(&told_imported, true);
	bool own = op->held.own_mappings && !atomic_exchange(&told_own, true);

	say_held(op, STAYPUT_OK, "they stay active");
	log_line(imported || own ? LOG_WARN : LOG_INFO, "%s", error_text());
}

static bool lists_nothing(const struct operation *op)
{
	for (size_t i = 0; i < op->work_count; i++)
		if (op->works[i].count > 0)
			return false;
	return true;
}

static int release_listed(struct operation *op)
{
	int err = op->only_if_idle ? run_uncaptured(op, check_idle) : STAYPUT_OK;

	if (err == STAYPUT_OK)
		err = change_open(op, false);
	if (err != STAYPUT_OK)
		return err;
	change_tell_releasing(op);
	err = run_uncaptured(op, synchronize);
	if (err == STAYPUT_OK)
		trim_pools(op);
	op->failed = false;
	if (err == STAYPUT_OK)
		err = find_room(op);
	if (err == STAYPUT_OK)
		err = fill_all(op);
	if (err == STAYPUT_OK)
		err = work_run_all(op, pause_work);
	if (err == STAYPUT_OK && op->failed)
		err = error_set(STAYPUT_ERR_HOST_MEMORY,
			"no thread could be started for each of %zu devices; nothing was "
			"paused",
			op->work_count);
	return err;
}

int pause_run(struct operation *op)
{
	int err = operation_check_supported(op);

	if (err != STAYPUT_OK)
		return err;
	/* Who has closed, or died, holds nothing. */
	ipc_export_settle();
	if (!operation_collect(op, STAYPUT_ACTIVE))
		return operation_no_memory();
	if (holds_anything(op) && op->fail_if_held)
		return say_held(op, STAYPUT_ERR_BUSY, "nothing was paused");
	if (lists_nothing(op))
		trim_pools(op);
	else
		err = release_listed(op);
	if (err == STAYPUT_OK && holds_anything(op))
		tell_left_active(op);
	return err;
}
