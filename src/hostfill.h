/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faulting in and pinning host memory, and the way back, by several threads: one thread
 * does 2 GB/s, sixteen do 33. Nobody else may know the pieces meanwhile.
 */
#ifndef HOSTFILL_H
#define HOSTFILL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct device;
struct piece;

enum { HOSTFILL_THREADS = 256 };

struct hostfill {
	struct device *device;
	struct piece **pieces; /* in the order in which they are wanted */
	size_t count;
	pthread_t threads[HOSTFILL_THREADS];
	size_t thread_count;
	_Atomic size_t next; /* piece to be filled */
	_Atomic bool failed; /* memory ran out: the rest is left */
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool *filled; /* under the mutex */
	size_t filled_count;
};

/* Begins to fill `count` pieces, with `threads` of its own; when none can be had, fills
 * them before it returns. False without memory: nothing is left. */
bool hostfill_start(struct hostfill *fill, struct device *dev, struct piece **pieces,
	size_t count, size_t threads);

/* Waits until piece number `index` is filled. False when filling has failed. */
bool hostfill_wait(struct hostfill *fill, size_t index);

/* All is filled, or filling has failed: hostfill_finish() would not wait long. */
bool hostfill_done(struct hostfill *fill);

/* Ends it: waits for the threads. True when every piece is filled. */
bool hostfill_finish(struct hostfill *fill);

/* The way back, for pieces that are filled or not: unpins them and gives the memory to
 * the system. Waits for it. */
void hostfill_empty(
	struct device *dev, struct piece **pieces, size_t count, size_t threads);

#endif
