/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On all devices at once: one thread creates and maps memory, batch by batch, another
 * fills what has been mapped. Backups stay until every device has made it, so that
 * whatever fails can be taken back.
 */
#include "resume.h"

#include <pthread.h>
#include <time.h>

#include "block.h"
#include "clock.h"
#include "config.h"
#include "device.h"
#include "error.h"
#include "nvml.h"
#include "operation.h"
#include "real.h"
#include "region.h"
#include "work.h"

enum {
	RETRY_MS = 20,
	MAP_BLOCKS = 16, /* mapped at once */
	BATCH_BLOCKS = 32,
	BATCH_BYTES = 32 << 20, /* copied at once */
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
		err = block_access_all(blocks, count);
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
	return err == CUDA_SUCCESS ? transfer_mark(&w->job.transfer) : err;
}

/* A thread that fills what has been mapped: the driver's lock, which mapping waits for
 * when several devices do it, must not hold up the copies. */
struct filler {
	struct work *work;
	pthread_t thread;
	bool started;
	pthread_mutex_t mutex; /* guards the rest */
	pthread_cond_t changed;
	size_t mapped; /* blocks, from the first, that may be filled */
	bool ended;    /* no more will be mapped */
	bool abandoned;
	CUresult err;
};

/* The blocks to fill next, from `first`; 0 when there are none and will be none. */
static size_t next_to_fill(struct filler *f, size_t first)
{
	size_t bytes = 0, n = 0;

	pthread_mutex_lock(&f->mutex);
	while (f->mapped == first && !f->ended)
		pthread_cond_wait(&f->changed, &f->mutex);
	while (!f->abandoned && first + n < f->mapped && n < BATCH_BLOCKS &&
		bytes < BATCH_BYTES)
		bytes += f->work->blocks[first + n++]->size;
	pthread_mutex_unlock(&f->mutex);
	return n;
}

static void *fill_mapped(void *argument)
{
	struct filler *f = argument;
	CUresult err = device_enter(f->work->device);
	bool entered = err == CUDA_SUCCESS;
	size_t first = 0, n;

	while (err == CUDA_SUCCESS && (n = next_to_fill(f, first)) > 0) {
		err = fill_batch(f->work, first, n);
		first += n;
	}
	if (entered)
		device_leave();
	pthread_mutex_lock(&f->mutex);
	f->err = err;
	pthread_mutex_unlock(&f->mutex);
	return NULL;
}

/* With several devices, cuMemSetAccess waits for the copies of its device while it keeps
 * the driver's lock from the others: then everything is mapped first, and no thread
 * started. */
static void filler_start(struct filler *f, struct work *w)
{
	*f = (struct filler){.work = w};
	pthread_mutex_init(&f->mutex, NULL);
	pthread_cond_init(&f->changed, NULL);
	f->started = w->operation->work_count == 1 &&
		     pthread_create(&f->thread, NULL, fill_mapped, f) == 0;
}

/* Blocks up to `mapped` may be filled. Returns what has become of filling so far. */
static CUresult filler_go_on(struct filler *f, size_t mapped)
{
	CUresult err;

	pthread_mutex_lock(&f->mutex);
	f->mapped = mapped;
	err = f->err;
	pthread_cond_signal(&f->changed);
	pthread_mutex_unlock(&f->mutex);
	return err;
}

/* Waits until all that was mapped has been begun to fill, or what is being filled when
 * that is of no use any more. Without a thread it is done here and now. */
static CUresult filler_end(struct filler *f, bool abandoned)
{
	pthread_mutex_lock(&f->mutex);
	f->ended = true;
	f->abandoned = abandoned;
	pthread_cond_signal(&f->changed);
	pthread_mutex_unlock(&f->mutex);
	if (f->started)
		pthread_join(f->thread, NULL);
	else
		fill_mapped(f);
	pthread_mutex_destroy(&f->mutex);
	pthread_cond_destroy(&f->changed);
	return f->err;
}

/* Ends the copies, then takes all memory away again. What the driver does not let go
 * stays mapped, and the block paused: its contents are not in place. */
static void take_back(struct work *w, size_t count)
{
	transfer_close(&w->job.transfer);
	unmap(w->blocks, count, count);
	w->report.bytes_restored = 0;
}

/* Maps batch after batch, larger ones as it goes on: the first copy begins at once. */
static CUresult map_blocks(
	struct work *w, struct filler *f, size_t *mapped, const char **call)
{
	CUresult err = CUDA_SUCCESS;
	size_t n;

	*mapped = 0;
	for (size_t most = 1; *mapped < w->count && err == CUDA_SUCCESS;
		most = most < MAP_BLOCKS ? 2 * most : MAP_BLOCKS) {
		n = w->count - *mapped < most ? w->count - *mapped : most;
		err = map_batch(w, *mapped, n, call);
		if (err != CUDA_SUCCESS)
			break;
		*mapped += n;
		*call = "copying from the host";
		err = filler_go_on(f, *mapped);
	}
	return err;
}

/* Whose mapping it is, where devices map one after another: the first can copy while the
 * next one maps. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

/* All blocks once: on an error what was got is given back. */
static CUresult try_to_map(struct work *w, const char **call)
{
	struct filler f;
	size_t mapped;
	CUresult err, filled;

	w->job.bytes_copied = 0;
	w->report.bytes_zeroed = 0;
	*call = "cuStreamCreate";
	err = transfer_open(&w->job.transfer);
	if (err != CUDA_SUCCESS)
		return err;
	filler_start(&f, w);
	if (!f.started)
		pthread_mutex_lock(&turn);
	err = map_blocks(w, &f, &mapped, call);
	if (!f.started)
		pthread_mutex_unlock(&turn);
	filled = filler_end(&f, err != CUDA_SUCCESS);
	if (err == CUDA_SUCCESS)
		err = filled;
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

	for (;;) {
		CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

		*call = "cuMemCreate";
		if (device_free_memory() >= need)
			err = try_to_map(w, call);
		if (err != CUDA_ERROR_OUT_OF_MEMORY || clock_now() >= w->deadline)
			return err;
		nanosleep(&pause, NULL);
	}
}

static int say_out_of_memory(const struct work *w)
{
	char holders[512];

	nvml_holders(w->device->ordinal, holders, sizeof holders);
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
	return err;
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

int resume_run(struct operation *op, double deadline)
{
	char sentence[WORK_SENTENCE];
	int err;

	if (!operation_collect(op, STAYPUT_PAUSED))
		return operation_no_memory();
	for (size_t i = 0; i < op->work_count; i++) {
		struct work *w = &op->works[i];

		w->deadline = deadline;
		w->job = (struct backup_job){
			.device = w->device, .blocks = w->blocks, .count = w->host_count};
	}
	err = work_run_all(op, bring_back);
	if (err == STAYPUT_OK)
		err = work_run_all(op, wait_for_contents);
	op->resumed = err == STAYPUT_OK;
	if (op->resumed)
		return STAYPUT_OK;
	error_save(sentence, sizeof sentence);
	work_run_all(op, take_back_if_mapped);
	return error_set(err, "%s", sentence);
}
