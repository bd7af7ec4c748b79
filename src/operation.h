/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one pause or resume works on: the regions it has claimed, and per device the
 * blocks that it owns meanwhile. One operation at a time has a region; its blocks are in
 * a passing state from operation_collect() to operation_publish().
 */
#ifndef OPERATION_H
#define OPERATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "device.h"
#include "stayput.h"
#include "work.h"

struct block;
struct range_list;
struct region;

/* What other processes have imported, or the program itself holds on to. */
struct holding {
	struct region *region; /* NULL: nothing; of several, the one met first */
	pid_t pid;             /* 0: it cannot be seen from here */
	uint64_t region_bytes; /* of that region */
	uint64_t bytes;        /* of all */
	size_t own_mappings;   /* the program's own that cannot be released */
	uint64_t own_bytes;
	const char *own_why; /* of the one met last */
};

/* Who wants an operation, and where they read, at any time, how far it is. */
struct asker {
	pid_t pid;              /* 0: this program itself */
	_Atomic uint64_t total; /* bytes of its blocks; 0 until it has its regions */
	_Atomic uint64_t done;  /* of them, those that are as good as ready */
};

struct operation {
	const char *verb; /* "pause", "resume" */
	struct asker *asker;
	double start;           /* on clock_now() */
	struct operation *next; /* under way too */
	int policy;             /* pause: instead of each block's own, when not 0 */
	bool fail_if_held;
	struct holding held; /* pause: what is therefore not listed */
	struct region **regions;
	size_t region_count;
	struct work *works;
	size_t work_count;
	struct block **blocks; /* what the works' lists are parts of */
	size_t secured;        /* pause: works that have all they need; under the lock */
	bool only_if_idle;     /* pause: not when a device has work in flight */
	bool failed;           /* pause: a work could not do its part; under the lock */
	bool resumed;          /* resume: all contents are in place */
	struct range_list *changes; /* change.c: NULL when nobody listens */
};

/* What these bytes are to the operation is begun or done. */
void operation_progress(struct operation *op, uint64_t bytes);

/* Claims the regions of `tags` (count 0: all), waiting for other operations unless
 * `no_block`. STAYPUT_OK, or a code with the sentence set and nothing claimed. Verb, asker,
 * start and policy are set before, the rest of *op is zero. */
int operation_begin(
	struct operation *op, const char *const *tags, size_t count, bool no_block);

/* Moves every block of the regions that is ACTIVE to PAUSING, or PAUSED to RESUMING, and
 * lists them by device. Blocks that are held by other processes stay as they are, and are
 * noted. False without memory: no block has moved. */
bool operation_collect(struct operation *op, int state);

/* What becomes of a block that was being paused: PAUSED when it is not mapped any more.
 * Of one that was being resumed: ACTIVE when the whole operation has succeeded, else
 * PAUSED, even if its memory could not be taken away again. */
bool operation_leaves_paused(const struct operation *op, const struct block *block);

/* Every listed block becomes what that says, and the counts of the regions follow. */
void operation_publish(struct operation *op);

/* STAYPUT_ERR_UNSUPPORTED, with the sentence, when a region is native for want of VMM. */
int operation_check_supported(const struct operation *op);

/* Pause: no work that has not begun to release shall do so any more. */
void operation_fail(struct operation *op);

/* Lets the regions go. */
void operation_end(struct operation *op);

/* How many allocations lie in a block that is in a passing state, and the bytes that they
 * asked for together. */
uint64_t operation_allocations(const struct block *block, uint64_t *bytes);

/* Sets the sentence for a list that found no memory. */
int operation_no_memory(void);

#endif
