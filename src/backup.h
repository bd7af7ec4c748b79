/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contents of blocks in host memory. A backup stays with its block after a resume, with
 * digests of what it holds, so that the next pause copies only the pieces that have
 * changed; it may be dropped whenever its block is active.
 *
 * A saving or restoring is of one device's blocks, which the caller owns by a passing
 * state, in steps, so that mapping and unmapping can go on beside the copies. Steps that
 * say "inside" are called between device_enter() and device_leave().
 */
#ifndef BACKUP_H
#define BACKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include "digest.h"
#include "hostfill.h"
#include "transfer.h"

struct block;
struct device;

struct backup_job {
	struct device *device;
	struct block *const *blocks;
	size_t count;
	struct piece **pieces; /* new host memory, in the order of the blocks */
	size_t piece_count;
	size_t piece_at; /* the one that was looked for last */
	struct hostfill fill;
	struct transfer transfer;
	struct digesting digesting; /* of the blocks' contents */
	size_t piece_digested;      /* of all blocks' 2 MiB pieces, those looked at */
	size_t *batch_end;          /* the block after each batch of the transfer */
	size_t begun;               /* blocks whose copies have been begun */
	size_t ended;               /* blocks that backup_take_ended() has told of */
	bool secured;               /* no place is being filled any more */
	size_t fresh_bytes;         /* of host memory, that the places need */
	size_t booked;              /* of them, those that are not in the pool yet */
	uint64_t bytes_copied, bytes_unchanged;
	_Atomic uint64_t *progress; /* grows by what either does */
	double seconds_pin, seconds_digest;
};

/* Gives every block without a backup a place for one; *fresh grows by what has no memory
 * behind it yet. STAYPUT_ERR_HOST_MEMORY: nothing has been given. */
int backup_place(struct backup_job *job, size_t *fresh);

/* Takes places back that hold nothing good. */
void backup_unplace(struct backup_job *job);

/* Gives host memory back to the system until the pools hold `keep` bytes: what nothing
 * lies in, then backups of active blocks. */
void backup_trim(size_t keep);

/* The same as STAYPUT_HOST_KEEP wants it. */
void backup_trim_to_environment(void);

/* Gives that many bytes back, at the cost of backups of active blocks, which only save
 * copies. False, and nothing given, when there are not as many. */
bool backup_make_room(size_t lacking);

/* Lets go of a block's backup, if it has one. */
void backup_drop(struct block *block);

/* Begins to get memory for the places, with that many threads. backup_close() follows,
 * also after an error. */
int backup_fill(struct backup_job *job, size_t threads);

/* Inside. Finds out what has changed. */
int backup_open(struct backup_job *job);

/* Inside. Begins the copies of the next batch of blocks: job->begun moves on. Waits for
 * their places, and for earlier copies. */
int backup_begin(struct backup_job *job);

/* Inside. Waits until all places have memory behind them, or with `wait` false only
 * looks: job->secured. */
int backup_secure(struct backup_job *job, bool wait);

/* Inside. Blocks [*first, *end) have been copied since the last call; with `wait`, all
 * that have been begun. */
CUresult backup_take_ended(struct backup_job *job, bool wait, size_t *first, size_t *end);

/* Inside. The end of a saving, also of one that failed on its way after backup_fill():
 * blocks that are not mapped any more have a good backup; of the others, those that were
 * not touched. */
void backup_close(struct backup_job *job);

/* Inside. Begins to copy the contents of blocks [first, first + count) back. The transfer
 * has been opened. */
CUresult backup_restore(struct backup_job *job, size_t first, size_t count);

/* Inside. Compares the blocks' contents with their digests. STAYPUT_ERR_CORRUPT with tag
 * and range in the sentence, or STAYPUT_OK, also when there are no digests. */
int backup_verify(struct backup_job *job);

#endif
