/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Noticing that nothing of a busy program comes by: a region is wanted, the process holds
 * more than 1 GiB of a device, and no allocation has been seen. One line in the log says why
 * that can be, and what to do. Asked at calls of the library and where hooks come by anyway;
 * no thread of its own. No lock.
 */
#ifndef SILENCE_H
#define SILENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "foreign.h"

struct region;

/* Less than this is not what keeps a program busy. */
enum { SILENCE_SMALL = 1 << 20 };

extern _Atomic bool silence_broken;

/* A hook has been asked for an allocation, in a region or not. */
static inline void silence_note_call(size_t size)
{
	if (size >= SILENCE_SMALL &&
		!atomic_load_explicit(&silence_broken, memory_order_relaxed))
		atomic_store_explicit(&silence_broken, true, memory_order_relaxed);
}

/* The program has pushed a region. */
void silence_note_push(void);

/* Memory by cuMemCreate() has been counted that was meant for `region`; `name` is the
 * maker's file. */
void silence_note_foreign(
	const struct region *region, enum foreign_maker maker, const char *name);

/* Looks, and says something at most once. Costs milliseconds while there is a reason to
 * look: silence_check(), for calls that are made often, does it ever more seldom. */
void silence_look(void);
void silence_check(void);

/* Why the region may be empty, to be put after that. */
void silence_why_empty(const struct region *region, char *buf, size_t size);

#endif
