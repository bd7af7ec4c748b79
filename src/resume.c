/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On all devices at once, batch by batch: memory is created and mapped ahead of the copies
 * that fill it. Backups stay until every device has made it, so that whatever fails can be
 * taken back.
 */
#include "resume.h"

#include <pthread.h>
#include <time.h>

#include "block.h"
#include "change.h"
#include "clock.h"
#include "config.h"
#include "device.h"
#include "error.h"
#include "mapping.h"
#include "nvml.h"
#include "operation.h"
#include "real.h"
#include "region.h"
#include "work.h"

enum {
	RETRY_MS = 20,
	BATCH_BLOCKS = 32,
	BATCH_BYTES = 32 << 20, /* mapped and copied at once */
};

static uint64_t sum_sizes(struct block *const *blocks, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += blocks[i]->size;
	return bytes;
}

/* What a batch got is given back. */
static void unmap(struct block *const *blocks, size_t mapped, size_t created)
{
	size_t done;

	block_unmap_all(blocks, mapped, &done);
	block_release_all(blocks + mapped, created - mapped);
}

/* Memory for blocks [first, first + count), mapped and accessible; or none of it. */
static CUresult map_batch(struct work *w, size_t first, size_t count, const char **call)
{
	struct block *const *blocks = w->blocks + first;
	double start = clock_now();
	size_t created, mapped = 0;
	CUresult err = block_create_all(blocks, count, &created);

	*call = "cuMemCreate";
	clock_add(&w->report.seconds_create, start);
	start = clock_now();
	if (err == CUDA_SUCCESS) {
		*call = "cuMemMap";
		err = block_map_all(blocks, count, &mapped);
	}
	if (err == CUDA_SUCCESS) {
		*call = "cuMemSetAccess";
		err = block_access_all(blocks, count,
			w->operation->work_count == 1 ? ACCESS_ALL : ACCESS_OWNER);
	}
	clock_add(&w->report.seconds_map, start);
	if (err != CUDA_SUCCESS)
		unmap(blocks, mapped, created);
	return err;
}

static CUresult zero_batch(struct work *w, size_t first, size_t count)
{
	CUresult err = CUDA_SUCCESS;

	for (size_t i = first; i < first + count && err == CUDA_SUCCESS; i++) {
		struct block *b = w->blocks[i];

		if (b->paused_as != STAYPUT_ZERO)
			continue;
		err = driver()->cuMemsetD8Async(
			b->base, 0, b->size, w->job.transfer.stream);
		w->report.bytes_zeroed += b->size;
	}
	return err;
}

static void count_filled(struct work *w, uint64_t bytes)
{
	w->filled += bytes;
	operation_progress(w->operation, bytes);
}

/* Contents for a batch: begun, not waited for. */
static CUresult fill_batch(struct work *w, size_t first, size_t count)
{
	size_t end = first + count;
	size_t host_end = end < w->host_count ? end : w->host_count;
	size_t other = first > w->host_count ? first : w->host_count;
	CUresult err = CUDA_SUCCESS;

	if (first < host_end)
		err = backup_restore(&w->job, first, host_end - first);
	if (err == CUDA_SUCCESS && other < end)
		err = zero_batch(w, other, end - other);
	if (other < end)
		count_filled(w, sum_sizes(w->blocks + other, end - other));
	return err == CUDA_SUCCESS ? transfer_mark(&w->job.transfer) : err;
}

static size_t batch_size(const struct work *w, size_t first)
{
	size_t bytes = 0, n = 0;

	while (first + n < w->count && n < BATCH_BLOCKS && bytes < BATCH_BYTES)
		bytes += w->blocks[first + n++]->size;
	return n;
}

/* Ends the copies, then takes all memory away again. What the driver does not let go
 * stays mapped, and the block paused: its contents are not in place. */
static void take_back(struct work *w, size_t count)
{
	transfer_close(&w->job.transfer);
	unmap(w->blocks, count, count);
	w->report.bytes_restored = 0;
	operation_progress(w->operation, -(w->filled + w->job.bytes_copied));
	w->filled = 0;
	w->job.bytes_copied = 0;
}

/* Goes through all blocks, batch by batch: maps them, or fills them, or both. *mapped grows
 * by what has been mapped. */
static CUresult go_through(
	struct work *w, bool map, bool fill, size_t *mapped, const char **call)
{
	CUresult err = CUDA_SUCCESS;
	size_t n;

	for (size_t first = 0; first < w->count && err == CUDA_SUCCESS; first += n) {
		n = batch_size(w, first);
		if (map) {
			err = map_batch(w, first, n, call);
			*mapped += err == CUDA_SUCCESS ? n : 0;
		}
		if (fill && err == CUDA_SUCCESS) {
			*call = "copying from the host";
			err = fill_batch(w, first, n);
		}
	}
	return err;
}

/* cuMemSetAccess may wait for the copies of its device while it keeps the driver's lock from
 * the others. So several devices map everything first, one after another: the first copies
 * while the next one maps. */
static CUresult map_in_turn(struct work *w, size_t *mapped, const char **call)
{
	static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
	CUresult err;

	pthread_mutex_lock(&turn);
	err = go_through(w, true, false, mapped, call);
	pthread_mutex_unlock(&turn);
	return err == CUDA_SUCCESS ? go_through(w, false, true, mapped, call) : err;
}

/* All blocks once: on an error what was got is given back. */
static CUresult try_to_map(struct work *w, const char **call)
{
	size_t mapped = 0;
	CUresult err;

	w->job.bytes_copied = 0;
	w->report.bytes_zeroed = 0;
	*call = "cuStreamCreate";
	err = transfer_open(&w->job.transfer);
	if (err != CUDA_SUCCESS)
		return err;
	if (w->operation->work_count == 1)
		err = go_through(w, true, true, &mapped, call);
	else
		err = map_in_turn(w, &mapped, call);
	if (err != CUDA_SUCCESS)
		take_back(w, mapped);
	return err;
}

/* Others may be letting go of the memory only now. Nothing is held while waiting: two
 * that hold half and wait for the other half would wait for ever. */
static CUresult map_until(struct work *w, const char **call)
{
	const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000};
	uint64_t need = sum_sizes(w->blocks, w->count);
	double start;

	for (;;) {
		CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

		*call = "cuMemCreate";
		if (device_free_memory() >= need)
			err = try_to_map(w, call);
		if (err != CUDA_ERROR_OUT_OF_MEMORY || clock_now() >= w->deadline)
			return err;
		start = clock_now();
		nanosleep(&pause, NULL);
		clock_add(&w->report.seconds_create, start);
	}
}

static int say_out_of_memory(const struct work *w)
{
	char holders[512];

	nvml_holders(w->device->uuid, holders, sizeof holders);
	return error_set(STAYPUT_ERR_DEVICE_MEMORY,
		"resuming region %s needs %llu bytes on device %d and %zu are free%s; "
		"all "
		"is paused still and the call can be repeated",
		w->blocks[0]->space->region->tag,
		(unsigned long long)sum_sizes(w->blocks, w->count), w->device->ordinal,
		device_free_memory(), holders);
}

static int say_failed(const struct work *w, const char *call, CUresult err)
{
	if (err == CUDA_ERROR_OUT_OF_MEMORY)
		return say_out_of_memory(w);
	return error_driver(call, err, "; all is paused still, backups are good");
}

/* An earlier resume may have failed to take memory back. */
static CUresult unmap_leftovers(struct work *w)
{
	CUresult err = CUDA_SUCCESS;

	for (size_t i = 0; i < w->count && err == CUDA_SUCCESS; i++)
		if (w->blocks[i]->mapped)
			err = block_unmap(w->blocks[i]);
	return err;
}

static int bring_back(struct work *w)
{
	const char *call = "cuMemUnmap";
	double start = clock_now();
	CUresult result;
	int err = work_enter(w);

	if (err != STAYPUT_OK)
		return err;
	result = unmap_leftovers(w);
	if (result == CUDA_SUCCESS)
		result = map_until(w, &call);
	if (result == CUDA_SUCCESS)
		w->report.bytes_restored = sum_sizes(w->blocks, w->count);
	else
		err = say_failed(w, call, result);
	device_leave();
	/* What is left of the time are copies, and waiting for them. */
	clock_add(&w->report.seconds_copy, start);
	w->report.seconds_copy -= w->report.seconds_create + w->report.seconds_map;
	return err;
}

/* Setting access for a peer waits for the copies of that one as well, so of several devices
 * none sets it before its copies have ended. */
static int let_peers_in(struct work *w)
{
	double start = clock_now();
	CUresult err = block_access_all(w->blocks, w->count, ACCESS_PEERS);

	clock_add(&w->report.seconds_map, start);
	return err == CUDA_SUCCESS ? STAYPUT_OK : say_failed(w, "cuMemSetAccess", err);
}

static int wait_for_contents(struct work *w)
{
	double start = clock_now();
	int err = work_enter(w);
	CUresult result;

	if (err != STAYPUT_OK)
		return err;
	result = transfer_close(&w->job.transfer);
	clock_add(&w->report.seconds_copy, start);
	w->report.bytes_copied = w->job.bytes_copied;
	if (result != CUDA_SUCCESS)
		err = say_failed(w, "copying from the host", result);
	if (err == STAYPUT_OK && w->operation->work_count > 1)
		err = let_peers_in(w);
	start = clock_now();
	if (err == STAYPUT_OK && config()->verify && w->host_count > 0)
		err = backup_verify(&w->job);
	clock_add(&w->report.seconds_digest, start);
	device_leave();
	return err;
}

static int take_back_if_mapped(struct work *w)
{
	bool entered = device_enter(w->device) == CUDA_SUCCESS;

	if (w->report.bytes_restored > 0)
		take_back(w, w->count);
	if (entered)
		device_leave();
	return STAYPUT_OK;
}

/* Access that was only for filling ends. */
static void restrict_all(const struct operation *op)
{
	for (size_t i = 0; i < op->work_count; i++)
		for (size_t at = 0; at < op->works[i].count; at++)
			if (mapping_is_restricted(op->works[i].blocks[at]))
				mapping_restrict(op->works[i].blocks[at]);
}

int resume_run(struct operation *op, double deadline)
{
	char sentence[WORK_SENTENCE];
	int err;

	if (!operation_collect(op, STAYPUT_PAUSED))
		return operation_no_memory();
	err = change_open(op, true);
	if (err != STAYPUT_OK)
		return err;
	for (size_t i = 0; i < op->work_count; i++) {
		struct work *w = &op->works[i];

		w->deadline = deadline;
		w->job = (struct backup_job){.device = w->device,
			.blocks = w->blocks,
			.count = w->host_count,
			.progress = &op->asker->done};
	}
	err = work_run_all(op, bring_back);
	if (err == STAYPUT_OK)
		err = work_run_all(op, wait_for_contents);
	op->resumed = err == STAYPUT_OK;
	if (op->resumed) {
		restrict_all(op);
		return STAYPUT_OK;
	}
	error_save(sentence, sizeof sentence);
	work_run_all(op, take_back_if_mapped);
	return error_set(err, "%s", sentence);
}
