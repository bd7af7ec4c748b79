/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of ours by its base address, and the answer to "what is at this
 * address". Records are made and freed by alloc.c; the table only finds them.
 */
#ifndef TABLE_H
#define TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <uthash.h>

struct block;
struct segment;
struct space;

struct allocation {
	CUdeviceptr base;
	size_t size; /* as asked for */
	struct space *space;
	struct block *block;     /* NULL: native, and only counted */
	bool ordered;            /* stream-ordered memory; native */
	struct segment *segment; /* its part of a shared block, or NULL */
	CUcontext context;       /* where it was made */
	uint64_t born;           /* the block's generation then */
	uint64_t export_id;      /* in handles for other processes; 0: none given out */
	struct allocation *next; /* among those whose freeing was put off */
	UT_hash_handle hh;
};

/* False without memory; the table is as before. */
bool table_add_locked(struct allocation *a);
void table_remove_locked(struct allocation *a);

/* The allocation that begins at `base`, or NULL. */
struct allocation *table_find_locked(CUdeviceptr base);

/* The allocation that `ptr` points into, or NULL. */
struct allocation *table_find_inside_locked(CUdeviceptr ptr);

/* Base and size, as asked for, of the allocation of ours, not native, that `ptr` points
 * into. False when there is none. Takes the lock only for an address in our spans. */
bool table_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size);

/* Any allocation, for going through all with `hh.next`. */
struct allocation *table_first_locked(void);

/* False: no allocation of ours begins there, and the lock need not be taken to know. */
bool table_may_hold(CUdeviceptr base);

#endif
