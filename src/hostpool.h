/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that backups live in: one pool a device, on its NUMA node. A pool is a
 * range of addresses; behind it are pieces, which are faulted in and pinned one by one
 * (hostfill.h), are kept from one pause to the next, and go back to the system when
 * nothing lies in them and they are not to be kept. What is taken is contiguous, whatever
 * pieces it lies in. The lists are under the lock.
 */
#ifndef HOSTPOOL_H
#define HOSTPOOL_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

struct device;
struct extent;

enum { HOSTPOOL_PIECE = 64 << 20 }; /* most that one piece holds */

struct piece {
	char *base;
	size_t size;
	size_t taken; /* bytes of backups that lie in it */
	bool pinned;  /* registered with CUDA: copies run at link speed */
	struct piece *next;
};

struct hostpool {
	char *base; /* the addresses; NULL until something is taken */
	size_t size;
	struct extent *bare; /* addresses without memory */
	struct extent *idle; /* memory that nothing lies in */
	struct piece *pieces;
	struct piece **at; /* the piece at each granule of the pool, or NULL */
	unsigned filling;  /* threads that add memory without an operation on a region */
	size_t filling_bytes; /* what they will add */
	size_t reserved;      /* idle memory that was asked for ahead of need */
};

/* Addresses for the device's pool, if it has none yet. False when the system refuses. */
bool hostpool_open(struct device *dev);

/* Books `size` bytes that will be taken from the system now. Answers how much is missing
 * for that, by STAYPUT_HOST_LIMIT or by what machine and cgroup leave: 0 when it has been
 * booked, else the sentence says why not, with numbers. */
size_t hostpool_book(size_t size);

/* Booked memory has become a piece, or has not been taken after all. */
void hostpool_unbook_locked(size_t size);

/* `size` bytes of idle memory, or NULL. */
char *hostpool_take_idle_locked(struct device *dev, size_t size);

/* Addresses only, for `size` bytes: pieces have to be put behind them. NULL when the pool
 * has none left. */
char *hostpool_take_bare_locked(struct device *dev, size_t size);
void hostpool_give_bare_locked(struct device *dev, char *base, size_t size);

/* Adds the records of the pieces that bare addresses make to the list. False without
 * memory for all of them. */
bool hostpool_divide(char *base, size_t size, struct piece **pieces, size_t *count);

/* Puts a filled piece behind bare addresses that were taken: its memory counts as taken.
 */
void hostpool_add_piece_locked(struct device *dev, struct piece *piece);

/* Memory that was taken becomes idle. */
void hostpool_give_locked(struct device *dev, char *base, size_t size);

/* The piece that `at` lies in. Without the lock by whoever has taken the memory there. */
struct piece *hostpool_piece(struct device *dev, const char *at);

/* Bytes of all pools: their memory, with what is booked, and of that what is idle. */
size_t hostpool_total_locked(void);
size_t hostpool_idle_locked(void);

/* Idle memory that somebody has asked for, which is not given back unasked. */
size_t hostpool_reserved_locked(void);

/* Gives pieces back that nothing lies in until the pools hold `keep` bytes or no such
 * piece is left. Not with the lock held. */
void hostpool_trim(size_t keep);

/* The same for the pieces of one device. */
void hostpool_trim_device(struct device *dev, size_t keep);

/* Waits until no thread fills the pool ahead of need. */
void hostpool_settle_locked(struct device *dev);

#endif
