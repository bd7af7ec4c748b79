/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule for block->backup_good: while it is set, the backup's bytes are what
 * block->digests are of (or what was saved last, without digests). It is cleared before
 * the first byte of a backup is overwritten, and set once the copies have ended.
 */
#include "backup.h"

#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "clock.h"
#include "config.h"
#include "device.h"
#include "digest.h"
#include "digest_constants.h"
#include "error.h"
#include "hostpool.h"
#include "lock.h"
#include "real.h"
#include "region.h"
#include "stayput.h"

/* A batch is unmapped after it has been copied: large enough to keep the copies going,
 * small enough that little is left to unmap after the last one, and that others who wait
 * for the context do not wait long. */
enum { BATCH_BYTES = 32 << 20, BATCH_BLOCKS = 32 };

/* A run of fresh places that lie next to each other becomes pieces. */
static bool add_pieces(struct backup_job *job, char *base, size_t size)
{
	for (size_t at = 0; at < size; at += HOSTPOOL_PIECE) {
		struct piece *p = calloc(1, sizeof *p);

		if (!p)
			return false;
		p->base = base + at;
		p->size = size - at < HOSTPOOL_PIECE ? size - at : HOSTPOOL_PIECE;
		job->pieces[job->piece_count++] = p;
	}
	return true;
}

/* Places for all blocks; the fresh ones in block->fresh. */
static bool take_places_locked(struct backup_job *job)
{
	for (size_t i = 0; i < job->count; i++) {
		struct block *b = job->blocks[i];

		if (b->backup)
			continue;
		b->backup = hostpool_take_idle_locked(job->device, b->size);
		if (b->backup)
			continue;
		b->backup = hostpool_take_bare_locked(job->device, b->size);
		b->fresh = b->backup != NULL;
		if (!b->backup)
			return false;
	}
	return true;
}

static bool make_pieces(struct backup_job *job, size_t *fresh)
{
	char *run = NULL, *end = NULL;
	size_t most = 1, total = 0;

	for (size_t i = 0; i < job->count; i++)
		if (job->blocks[i]->fresh)
			most += 1 + job->blocks[i]->size / HOSTPOOL_PIECE + 1;
	job->pieces = calloc(most, sizeof(struct piece *));
	if (!job->pieces)
		return false;
	for (size_t i = 0; i < job->count; i++) {
		struct block *b = job->blocks[i];

		if (!b->fresh)
			continue;
		total += b->size;
		if (b->backup != end) {
			if (run && !add_pieces(job, run, end - run))
				return false;
			run = end = b->backup;
		}
		end += b->size;
	}
	*fresh += total;
	return !run || add_pieces(job, run, end - run);
}

int backup_place(struct backup_job *job, size_t *fresh)
{
	bool placed = false;

	if (hostpool_open(job->device)) {
		lock_take();
		hostpool_settle_locked(job->device);
		placed = take_places_locked(job);
		lock_drop();
	}
	if (placed && make_pieces(job, fresh))
		return STAYPUT_OK;
	backup_unplace(job);
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"the system refused addresses or records for backups on device %d",
		job->device->ordinal);
}

static void give_place_locked(struct block *b)
{
	struct device *dev = b->space->device;

	if (b->fresh)
		hostpool_give_bare_locked(dev, b->backup, b->size);
	else if (b->backup)
		hostpool_give_locked(dev, b->backup, b->size);
	b->backup = NULL;
	b->fresh = false;
	b->backup_good = false;
}

void backup_unplace(struct backup_job *job)
{
	lock_take();
	for (size_t i = 0; i < job->count; i++)
		if (!job->blocks[i]->backup_good)
			give_place_locked(job->blocks[i]);
	lock_drop();
	for (size_t i = 0; i < job->piece_count; i++)
		free(job->pieces[i]);
	free(job->pieces);
	job->pieces = NULL;
	job->piece_count = 0;
}

void backup_drop(struct block *block)
{
	lock_take();
	give_place_locked(block);
	lock_drop();
	free(block->digests);
	block->digests = NULL;
	if (config()->host_keep != SIZE_MAX)
		hostpool_trim(config()->host_keep);
}

static void drop_active_locked(struct block *list, size_t *surplus)
{
	for (struct block *b = list; b && *surplus > 0; b = b->next)
		if (b->backup && b->state == STAYPUT_ACTIVE) {
			*surplus -= b->size < *surplus ? b->size : *surplus;
			give_place_locked(b);
		}
}

void backup_trim(size_t keep)
{
	size_t used, surplus;

	lock_take();
	used = hostpool_total_locked() - hostpool_idle_locked();
	surplus = used > keep ? used - keep : 0;
	for (struct region *r = region_first_locked(); r; r = r->next)
		for (struct space *s = r->spaces; s; s = s->next) {
			drop_active_locked(s->large, &surplus);
			drop_active_locked(s->shared, &surplus);
		}
	lock_drop();
	hostpool_trim(keep);
}

int backup_fill(struct backup_job *job, size_t threads)
{
	job->secured = !hostfill_start(
		&job->fill, job->device, job->pieces, job->piece_count, threads);
	if (!job->secured)
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"no thread or memory to get %zu pieces of host memory", job->piece_count);
}

/* The piece that `at` lies in, once it is filled; NULL when filling has failed. */
static struct piece *find_piece(struct backup_job *job, const struct block *b, char *at)
{
	if (!b->fresh)
		return hostpool_piece(job->device, at);
	while (at >= job->pieces[job->piece_at]->base + job->pieces[job->piece_at]->size)
		job->piece_at++;
	return hostfill_wait(&job->fill, job->piece_at) ? job->pieces[job->piece_at]
							: NULL;
}

static int say_out_of_host_memory(void)
{
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"the system ran out of host memory while it was taken for backups; "
		"nothing "
		"was paused");
}

/* Begins to copy a part of a block, in as many copies as pieces it lies in: a copy must
 * not cross from one registration to the next. */
static int save_part(struct backup_job *job, struct block *b, size_t offset, size_t size)
{
	CUresult err = CUDA_SUCCESS;

	while (size > 0 && err == CUDA_SUCCESS) {
		char *at = b->backup + offset;
		struct piece *p = find_piece(job, b, at);
		size_t n;

		if (!p)
			return say_out_of_host_memory();
		n = p->base + p->size - at;
		if (n > size)
			n = size;
		err = transfer_save(&job->transfer, at, b->base + offset, n, p->pinned);
		offset += n;
		size -= n;
		job->bytes_copied += n;
	}
	return err == CUDA_SUCCESS ? STAYPUT_OK
				   : error_driver("copying to the host", err, "");
}

/* Copies the runs of pieces whose digests have moved. */
static int save_changed(struct backup_job *job, struct block *b, const struct digest *now)
{
	size_t pieces = digest_pieces(b), first = 0;
	int err = STAYPUT_OK;

	for (size_t i = 0; i <= pieces && err == STAYPUT_OK; i++) {
		bool changed = i < pieces && memcmp(&b->digests[i], &now[i], sizeof *now);

		if (changed)
			continue;
		if (i > first) {
			b->backup_good = false;
			err = save_part(
				job, b, first * DIGEST_PIECE, (i - first) * DIGEST_PIECE);
		}
		first = i + 1;
		job->bytes_unchanged += i < pieces ? DIGEST_PIECE : 0;
	}
	return err;
}

static int save_block(struct backup_job *job, struct block *b, const struct digest *now)
{
	int err;

	if (b->backup_good && b->digests && now) {
		err = save_changed(job, b, now);
	} else {
		b->backup_good = false;
		err = save_part(job, b, 0, b->size);
	}
	if (b->backup_good || err != STAYPUT_OK)
		return err;
	if (now && !b->digests)
		b->digests = malloc(digest_pieces(b) * sizeof *now);
	if (now && b->digests) {
		memcpy(b->digests, now, digest_pieces(b) * sizeof *now);
	} else {
		free(b->digests);
		b->digests = NULL;
	}
	return STAYPUT_OK;
}

static void add_pieces_to_pool(struct backup_job *job)
{
	lock_take();
	for (size_t i = 0; i < job->piece_count; i++)
		hostpool_add_piece_locked(job->device, job->pieces[i]);
	for (size_t i = 0; i < job->count; i++)
		job->blocks[i]->fresh = false;
	lock_drop();
	free(job->pieces);
	job->pieces = NULL;
	job->piece_count = 0;
}

int backup_secure(struct backup_job *job, bool wait)
{
	double start = clock_now();
	bool filled;

	if (job->secured || (!wait && !hostfill_done(&job->fill)))
		return STAYPUT_OK;
	filled = hostfill_finish(&job->fill);
	job->seconds_pin += clock_now() - start;
	job->secured = true;
	if (filled) {
		add_pieces_to_pool(job);
		return STAYPUT_OK;
	}
	transfer_close(&job->transfer);
	hostfill_empty(job->device, job->pieces, job->piece_count, config()->threads);
	return say_out_of_host_memory();
}

int backup_open(struct backup_job *job)
{
	double start = clock_now();
	CUresult err = transfer_open(&job->transfer);

	if (err != CUDA_SUCCESS)
		return error_driver("cuStreamCreate", err, "; nothing was paused");
	job->batch_end = calloc(job->count + 1, sizeof *job->batch_end);
	if (!job->batch_end)
		return error_set(STAYPUT_ERR_HOST_MEMORY,
			"no memory for the list of copies; nothing was paused");
	digest_begin(&job->digesting, job->device, job->blocks, job->count);
	job->seconds_digest += clock_now() - start;
	return STAYPUT_OK;
}

static const struct digest *next_digests(struct backup_job *job, const struct block *b)
{
	double start = clock_now();
	const struct digest *now =
		digest_get(&job->digesting, job->piece_digested, digest_pieces(b));

	job->piece_digested += digest_pieces(b);
	job->seconds_digest += clock_now() - start;
	return now;
}

int backup_begin(struct backup_job *job)
{
	uint64_t enough = job->bytes_copied + BATCH_BYTES;
	size_t blocks = 0;
	CUresult marked;

	while (job->begun < job->count && job->bytes_copied < enough &&
		blocks < BATCH_BLOCKS) {
		struct block *b = job->blocks[job->begun];
		int err = save_block(job, b, next_digests(job, b));

		if (err != STAYPUT_OK)
			return err;
		job->begun++;
		blocks++;
	}
	job->batch_end[job->transfer.begun] = job->begun;
	marked = transfer_mark(&job->transfer);
	return marked == CUDA_SUCCESS ? STAYPUT_OK
				      : error_driver("copying to the host", marked, "");
}

CUresult backup_take_ended(struct backup_job *job, bool wait, size_t *first, size_t *end)
{
	CUresult err = wait ? transfer_drain(&job->transfer) : CUDA_SUCCESS;
	size_t batches = job->transfer.ended;

	*first = job->ended;
	*end = batches ? job->batch_end[batches - 1] : 0;
	job->ended = *end;
	return err;
}

void backup_close(struct backup_job *job)
{
	transfer_close(&job->transfer);
	if (!job->secured)
		backup_secure(job, true);
	for (size_t i = 0; i < job->count; i++)
		if (!job->blocks[i]->mapped)
			job->blocks[i]->backup_good = true;
	backup_unplace(job);
	digest_end(&job->digesting);
	free(job->batch_end);
	job->batch_end = NULL;
}

static CUresult restore_block(struct backup_job *job, struct block *b)
{
	CUresult err = CUDA_SUCCESS;

	for (size_t offset = 0; offset < b->size && err == CUDA_SUCCESS;) {
		char *at = b->backup + offset;
		struct piece *p = hostpool_piece(job->device, at);
		size_t n = p->base + p->size - at;

		if (n > b->size - offset)
			n = b->size - offset;
		err = transfer_restore(
			&job->transfer, b->base + offset, at, n, p->pinned);
		offset += n;
		job->bytes_copied += n;
	}
	return err;
}

CUresult backup_restore(struct backup_job *job, size_t first, size_t count)
{
	CUresult err = CUDA_SUCCESS;

	for (size_t i = first; i < first + count && err == CUDA_SUCCESS; i++)
		err = restore_block(job, job->blocks[i]);
	return err;
}

static int say_corrupt(const struct block *b, size_t piece)
{
	CUdeviceptr base = b->base + piece * DIGEST_PIECE;

	return error_set(STAYPUT_ERR_CORRUPT,
		"region %s, device %d: the contents of 0x%llx to 0x%llx differ from what "
		"was saved; all is paused still",
		b->space->region->tag, b->space->device->ordinal,
		(unsigned long long)base, (unsigned long long)base + DIGEST_PIECE);
}

static int verify_block(const struct block *b, const struct digest *now)
{
	for (size_t at = 0; at < digest_pieces(b) && b->digests; at++)
		if (memcmp(&b->digests[at], &now[at], sizeof *now))
			return say_corrupt(b, at);
	return STAYPUT_OK;
}

int backup_verify(struct backup_job *job)
{
	int err = STAYPUT_OK;

	digest_begin(&job->digesting, job->device, job->blocks, job->count);
	for (size_t i = 0; i < job->count && err == STAYPUT_OK; i++) {
		const struct digest *now = next_digests(job, job->blocks[i]);

		err = now ? verify_block(job->blocks[i], now) : STAYPUT_OK;
	}
	digest_end(&job->digesting);
	return err;
}

struct reservation {
	struct device *device;
	struct piece **pieces;
	size_t count;
	char *base;
	size_t size;
};

static void end_reservation(struct reservation *r, bool filled)
{
	lock_take();
	for (size_t i = 0; i < r->count && filled; i++)
		hostpool_add_piece_locked(r->device, r->pieces[i]);
	if (filled)
		hostpool_give_locked(r->device, r->base, r->size);
	else
		hostpool_give_bare_locked(r->device, r->base, r->size);
	r->device->pool.filling--;
	lock_notify();
	lock_drop();
	for (size_t i = 0; i < r->count && !filled; i++)
		free(r->pieces[i]);
	free(r->pieces);
	free(r);
}

static void *fill_reservation(void *argument)
{
	struct reservation *r = argument;
	struct hostfill fill;
	bool filled = false;

	if (device_enter(r->device) == CUDA_SUCCESS) {
		digest_load(r->device);
		if (hostfill_start(
			    &fill, r->device, r->pieces, r->count, config()->threads))
			filled = hostfill_finish(&fill);
		if (!filled)
			hostfill_empty(r->device, r->pieces, r->count, 1);
		device_leave();
	}
	end_reservation(r, filled);
	return NULL;
}

/* Takes `r` over; false when it has come to nothing. */
static bool start_reservation(struct reservation *r)
{
	struct backup_job job = {.device = r->device};
	pthread_attr_t detached;
	pthread_t thread;
	bool started;

	lock_take();
	r->device->pool.filling++;
	lock_drop();
	job.pieces = calloc(r->size / HOSTPOOL_PIECE + 1, sizeof(struct piece *));
	started = job.pieces && add_pieces(&job, r->base, r->size);
	r->pieces = job.pieces;
	r->count = job.piece_count;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	started = started && pthread_create(&thread, &detached, fill_reservation, r) == 0;
	pthread_attr_destroy(&detached);
	if (!started)
		end_reservation(r, false);
	return started;
}

/* A record and addresses; NULL when there are none. */
static struct reservation *make_reservation(struct device *dev, size_t size)
{
	struct reservation *r = calloc(1, sizeof *r);

	if (!r || !hostpool_open(dev)) {
		free(r);
		return NULL;
	}
	*r = (struct reservation){.device = dev, .size = size};
	lock_take();
	r->base = hostpool_take_bare_locked(dev, size);
	lock_drop();
	if (!r->base) {
		free(r);
		return NULL;
	}
	return r;
}

int backup_reserve(struct device *dev, size_t size)
{
	struct reservation *r = make_reservation(dev, size);

	if (r && start_reservation(r))
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"the system refused addresses, records or a thread for %zu bytes of "
		"backups",
		size);
}
