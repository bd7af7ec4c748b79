/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory. A block is what one cuMemCreate made, mapped whole; it holds one large
 * allocation, or many small ones (slab.h), and is what a pause releases and a resume
 * brings back: the state of an allocation is its block's.
 *
 * The functions here call the driver and want the caller to own the blocks, by a passing
 * state or because nobody else knows them yet.
 */
#ifndef BLOCK_H
#define BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

struct allocation;
struct digest;
struct mapping;
struct segment;
struct space;
struct span;

struct block {
	CUdeviceptr base;
	size_t size;
	struct span *span;       /* NULL: addresses of the program's */
	struct mapping *mapping; /* its own one there, or NULL */
	struct space *space;
	CUmemGenericAllocationHandle handle; /* while mapped */
	bool mapped;                         /* there is memory behind it */
	uint64_t allowed;                    /* device->peers at block_map() */
	int state;                           /* STAYPUT_ACTIVE ... STAYPUT_FREEING */
	int paused_as;                       /* the policy that the last pause applied */
	uint64_t generation;                 /* counts resumes */
	char *backup;                        /* a place for the contents in host memory */
	bool backup_good;                    /* they are there, see backup.c */
	bool fresh;                          /* the place has no memory behind it yet */
	unsigned leases;          /* held by processes that imported it: not released */
	unsigned exporting;       /* its handle is being exported: it stays until then */
	struct digest *digests;   /* of what the backup holds, or NULL */
	struct allocation *only;  /* the large allocation; NULL in a slab */
	struct segment *segments; /* slab: all, by address; NULL for a large one */
	struct segment *free_segments; /* slab: the free ones */
	size_t used;                   /* slab: bytes taken */
	struct block *prev, *next;     /* in its space */
};

/* Whom access is set for. */
enum access {
	ACCESS_OWNER,
	ACCESS_PEERS, /* the owner's peers, without it */
	ACCESS_ALL,
};

/* Physical memory for a block at its address, mapped and accessible. On an error nothing
 * is left. */
CUresult block_map(struct block *block);

/* Sets access again if device->peers has changed since block_map(): by whoever published
 * the new block, as peers_change() may have looked before. */
void block_allow_peers(struct block *block);

/* The way back: unmaps and releases. */
CUresult block_unmap(struct block *block);

/* The same for many blocks ordered by address, in steps: create, map, set access; and the
 * way back, which unmaps and releases. *done is the number of blocks, from the first, for
 * which it has succeeded. */
CUresult block_create_all(struct block *const *blocks, size_t count, size_t *done);
CUresult block_map_all(struct block *const *blocks, size_t count, size_t *done);
CUresult block_access_all(struct block *const *blocks, size_t count, enum access who);
CUresult block_unmap_all(struct block *const *blocks, size_t count, size_t *done);

/* For blocks that were created and not mapped. */
void block_release_all(struct block *const *blocks, size_t count);

#endif
