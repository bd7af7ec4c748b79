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

/* Digests of the blocks' contents, in order; to be freed. Inside device_enter(); waits for
 * the kernel. NULL when that is not possible. */
struct digest *digest_blocks(
	struct device *dev, struct block *const *blocks, size_t count);

/* The device's contexts are going, and what was loaded in them with them. */
void digest_unload_locked(struct device *dev);

#endif
