/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small allocations: segments of shared blocks. A block is divided into segments, free or
 * taken, linked by address so that neighbours can be joined. The fullest block with room
 * is used first, so that others run empty and can be given back. Table work only.
 */
#ifndef SLAB_H
#define SLAB_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

struct allocation;
struct block;
struct space;

enum {
	SLAB_LARGEST = 2 << 20, /* what is larger has a block of its own */
	SLAB_ALIGN = 512,
};

struct segment {
	struct allocation *owner; /* NULL: free, or being freed */
	size_t offset, size;
	bool taken;
	struct segment *prev, *next;           /* by address */
	struct segment *prev_free, *next_free; /* among the block's free ones */
};

/* The size of the next block for `size` bytes more: as much as the space's small
 * allocations take now, so that what is unused stays below what is used; 32 MiB at most,
 * and never less than `size` needs. */
size_t slab_block_size_locked(const struct space *space, size_t size);

/* Takes `size` bytes from an active block of the space; NULL when none has room, or no
 * memory for the record. */
struct segment *slab_take_locked(struct space *space, size_t size, struct block **block);

/* The same from this block. */
struct segment *slab_take_in_locked(struct block *block, size_t size);

/* The way back. True when the block holds nothing any more. */
bool slab_give_locked(struct block *block, struct segment *segment);

/* Makes the new `block` one free segment and adds it to its space. False without memory
 * for the record. */
bool slab_add_block_locked(struct block *block);

/* Takes an empty block out of its space and frees its records; the block stays. */
void slab_remove_block_locked(struct block *block);

/* The taken segment that `ptr` lies in, or NULL. */
struct segment *slab_segment_locked(const struct block *block, CUdeviceptr ptr);

#endif
