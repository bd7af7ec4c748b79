/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 128 bits for each piece of 2 MiB of device memory, at the memory's speed: what is equal
 * then is taken to be unchanged. No protection against somebody who makes collisions on
 * purpose. Where the kernel cannot be loaded there are no digests, and everything counts
 * as changed.
 */
#ifndef DIGEST_H
#define DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

struct block;
struct device;

struct digest {
	uint64_t a, b;
};

/* The kernel of a device; under the lock. */
struct digester {
	bool loading;
	bool tried;
	CUcontext context; /* that it was loaded in; NULL: there is none to be had */
	CUfunction function;
};

/* How many pieces a block has. */
size_t digest_pieces(const struct block *block);

/* Loads the kernel of the device whose context device_enter() has made current, unless it
 * is there. NULL when there is none to be had. */
CUfunction digest_load(struct device *dev);

/* Digests of blocks' contents that are being computed, a part ahead of where they are
 * wanted. All zero: there are none. */
struct digesting {
	CUfunction function;
	CUstream stream;
	CUdeviceptr *list;      /* pieces; host memory that the kernel reads */
	struct digest *digests; /* and where it writes */
	size_t pieces;
	size_t launched, ended; /* pieces, from the first */
};

/* Inside device_enter(), as the next two. Begins; without the kernel, or memory, there
 * are no digests. */
void digest_begin(struct digesting *d, struct device *dev, struct block *const *blocks,
	size_t count);

/* The digests of pieces [first, first + count), in order; asked for in that order, too.
 * Waits for the kernel. NULL when there are none. */
const struct digest *digest_get(struct digesting *d, size_t first, size_t count);

/* Waits for the kernel and frees. Also of one that has not begun. */
void digest_end(struct digesting *d);

/* The device's contexts are going, and what was loaded in them with them. */
void digest_unload_locked(struct device *dev);
void digest_unload_context(CUcontext ctx);

#endif
