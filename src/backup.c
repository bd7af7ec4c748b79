/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule for block->backup_good: while it is set, the backup's bytes are what
 * block->digests are of (or what was saved last, without digests). It is cleared before
 * the first byte of a backup is overwritten, and set once the copies have ended.
 */
#include "backup.h"

#include <stdatomic.h>
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
#include "log.h"
#include "real.h"
#include "region.h"
#include "stayput.h"

/* A batch is unmapped after it has been copied: large enough to keep the copies going,
 * small enough that little is left to unmap after the last one, and that others who wait
 * for the context do not wait long. */
enum { BATCH_BYTES = 32 << 20, BATCH_BLOCKS = 32 };

enum { BACKUP_SENTENCE = 1024 };

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
			if (run && !hostpool_divide(run, end - run, job->pieces,
					   &job->piece_count))
				return false;
			run = end = b->backup;
		}
		end += b->size;
	}
	job->fresh_bytes = total;
	*fresh += total;
	return !run || hostpool_divide(run, end - run, job->pieces, &job->piece_count);
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
	hostpool_unbook_locked(job->booked);
	job->booked = 0;
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

/* What was reserved is not given back unasked. */
void backup_trim_to_environment(void)
{
	size_t keep = config()->host_keep;

	if (keep == SIZE_MAX)
		return;
	lock_take();
	keep += hostpool_reserved_locked();
	lock_drop();
	backup_trim(keep);
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

/* It is only there to save a copy: nothing is lost with it. */
static bool may_drop(const struct block *b)
{
	if (!b->backup)
		return false;
	return b->state == STAYPUT_ACTIVE ||
	       (b->state == STAYPUT_PAUSED && b->paused_as != STAYPUT_HOST);
}

/* Drops backups until *surplus bytes are gone; with `surplus` NULL it only counts.
 * Returns the bytes that were, or could be, dropped. */
static size_t drop_in_list_locked(struct block *list, const size_t *surplus)
{
	size_t dropped = 0;

	for (struct block *b = list; b; b = b->next) {
		if (!may_drop(b) || (surplus && dropped >= *surplus))
			continue;
		dropped += b->size;
		if (surplus)
			give_place_locked(b);
	}
	return dropped;
}

static size_t drop_locked(const size_t *surplus)
{
	size_t dropped = 0;

	for (struct region *r = region_first_locked(); r; r = r->next)
		for (struct space *s = r->spaces; s; s = s->next) {
			size_t left =
				surplus && *surplus > dropped ? *surplus - dropped : 0;

			dropped += drop_in_list_locked(s->large, surplus ? &left : NULL);
			left = surplus && *surplus > dropped ? *surplus - dropped : 0;
			dropped += drop_in_list_locked(s->shared, surplus ? &left : NULL);
		}
	return dropped;
}

/* Pieces that a backup stays in cannot go, so more may have to be dropped than is wanted.
 */
void backup_trim(size_t keep)
{
	size_t dropped, surplus, total;

	hostpool_trim(keep);
	do {
		lock_take();
		total = hostpool_total_locked();
		surplus = total > keep ? total - keep : 0;
		dropped = surplus ? drop_locked(&surplus) : 0;
		lock_drop();
		if (dropped > 0)
			hostpool_trim(keep);
	} while (dropped > 0);
}

bool backup_make_room(size_t lacking)
{
	size_t droppable, total;

	lock_take();
	droppable = drop_locked(NULL) + hostpool_idle_locked();
	total = hostpool_total_locked();
	lock_drop();
	if (lacking > droppable)
		return false;
	backup_trim(total > lacking ? total - lacking : 0);
	return true;
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

/* Which new piece `at` lies in. They follow each other mostly, but not always: places are
 * taken wherever there is room for one. */
static size_t piece_index(const struct backup_job *job, const char *at)
{
	for (size_t n = 0; n < job->piece_count; n++) {
		size_t i = (job->piece_at + n) % job->piece_count;
		const struct piece *p = job->pieces[i];

		if (at >= p->base && at < p->base + p->size)
			return i;
	}
	return job->piece_at;
}

/* The piece that `at` lies in, once it is filled; NULL when filling has failed. */
static struct piece *find_piece(struct backup_job *job, const struct block *b, char *at)
{
	double start = clock_now();
	bool filled;

	if (!b->fresh)
		return hostpool_piece(job->device, at);
	job->piece_at = piece_index(job, at);
	filled = hostfill_wait(&job->fill, job->piece_at);
	clock_add(&job->seconds_pin, start);
	return filled ? job->pieces[job->piece_at] : NULL;
}

static int say_out_of_host_memory(void)
{
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"the system ran out of host memory while it was taken for backups; "
		"nothing "
		"was paused");
}

static void note_progress(struct backup_job *job, uint64_t bytes)
{
	atomic_fetch_add_explicit(job->progress, bytes, memory_order_relaxed);
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
		if (err == CUDA_SUCCESS)
			err = transfer_pace(&job->transfer, n);
		offset += n;
		size -= n;
		job->bytes_copied += n;
		note_progress(job, n);
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
		note_progress(job, i < pieces ? DIGEST_PIECE : 0);
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
	hostpool_unbook_locked(job->booked);
	job->booked = 0;
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
	char sentence[BACKUP_SENTENCE];

	/* Whoever closes after an error has said why. */
	error_save(sentence, sizeof sentence);
	transfer_close(&job->transfer);
	if (!job->secured && backup_secure(job, true) != STAYPUT_OK)
		error_set(STAYPUT_OK, "%s", sentence);
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
		if (err == CUDA_SUCCESS)
			err = transfer_pace(&job->transfer, n);
		offset += n;
		job->bytes_copied += n;
		note_progress(job, n);
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

static void say_unverified(const struct device *dev)
{
	static _Atomic bool told;

	if (!atomic_exchange(&told, true))
		log_line(LOG_WARN,
			"STAYPUT_VERIFY: contents on device %d cannot be compared, since "
			"there are no digests",
			dev->ordinal);
}

int backup_verify(struct backup_job *job)
{
	int err = STAYPUT_OK;

	digest_begin(&job->digesting, job->device, job->blocks, job->count);
	if (!job->digesting.stream)
		say_unverified(job->device);
	for (size_t i = 0; i < job->count && err == STAYPUT_OK; i++) {
		const struct digest *now = next_digests(job, job->blocks[i]);

		err = now ? verify_block(job->blocks[i], now) : STAYPUT_OK;
	}
	digest_end(&job->digesting);
	return err;
}
