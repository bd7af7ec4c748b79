/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tags and policies: which region an allocation belongs to, and each thread's stack of
 * pushes. Regions are few and are never removed; what hangs on them is under the lock.
 */
#ifndef REGION_H
#define REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stayput.h"

struct allocation;
struct block;
struct device;
struct request;
struct span;

/* The part of a region on one device under one policy. */
struct space {
	struct region *region;
	struct device *device;
	int policy;
	struct span *spans;
	uint64_t bytes_active, bytes_paused, bytes_kept; /* as asked for */
	struct block *large;    /* blocks of one allocation each, in no order */
	struct block *shared;   /* blocks of small allocations, the fullest first */
	uint64_t bytes_ordered; /* under policy keep: stream-ordered memory */
	bool uses_pools;        /* there has been some */
	struct space *next;
};

struct region {
	char tag[STAYPUT_TAG_SIZE];
	struct space *spaces;
	bool operating;    /* a pause or resume is under way */
	bool unsupported;  /* some of it had to be native: a device without VMM */
	bool was_used;     /* something has been allocated */
	bool reserved;     /* host memory was asked for ahead of need */
	bool told_empty;   /* the log has said that nothing is in it */
	bool told_ordered; /* the log has said that stream-ordered memory stays */
	uint64_t count_active, count_paused, count_kept;
	uint64_t bytes_ordered, count_ordered; /* stream-ordered memory */
	uint64_t bytes_foreign, count_foreign; /* that others made by cuMemCreate() */
	struct region *next;
};

/* What the next allocation of a thread becomes. */
struct choice {
	struct region *region;
	int policy; /* STAYPUT_HOST ... STAYPUT_KEEP */
};

/* The region of an allocation, by the thread's pushes, else the environment's rules, else
 * its default, unless the caller is excluded. False: native. Never fails; costs a few loads
 * when no region is in force. */
bool region_choose(const struct request *request, struct choice *choice);

/* What a thread without a push has asked for through another library's functions that we
 * stand in for; a choice without a region is native. False: nothing, and so it is
 * everywhere but in libstayput-tms.so. */
bool region_choose_compat(struct choice *choice);

/* The choice that a push of these would make. STAYPUT_ERR_*, with the sentence set. */
int region_prepare(const char *tag, int policy, struct choice *choice);

/* The calling thread's stack. STAYPUT_ERR_*, with the sentence set. */
int region_push(const char *tag, int policy);
int region_push_native(void);
int region_pop(void);

/* The region of that tag, or NULL. */
struct region *region_find_locked(const char *tag);

/* The first region; its `next` leads to the others. */
struct region *region_first_locked(void);

/* The space of (region, device, policy), made when it is new; NULL without memory. */
struct space *region_space_locked(const struct choice *choice, struct device *device);

/* Among the large blocks of its space. */
void region_link_large_locked(struct block *block);
void region_unlink_large_locked(struct block *block);

/* Counts an allocation in its region (sign 1), as active, paused or native, whatever it
 * is now, or takes it out of that count (-1). */
void region_count_locked(const struct allocation *a, int sign);

/* Adds the space's bytes and mappings. */
void region_add_space_locked(const struct space *s, struct stayput_region_info *info);

void region_fill_info_locked(
	const struct region *region, struct stayput_region_info *info);

/* The policy of `tag` when code asks for `asked`: STAYPUT_REGIONS wins. */
int region_policy(const char *tag, int asked);

#endif
