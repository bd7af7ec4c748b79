/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses. A span is one large reservation that the blocks of one space get their
 * addresses from: reserving per allocation costs ten times more, and neighbours in a span
 * can be mapped and unmapped by one driver call. Knows devices and addresses, not tags.
 */
#ifndef SPAN_H
#define SPAN_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

struct block;
struct device;

struct span {
	CUdeviceptr base;
	size_t size; /* 0: retired */
	size_t retired_size;
	struct device *device;
	struct extent *free;    /* ordered by address, no two adjacent */
	struct block **granule; /* the block at each granule of the span, or NULL */
	struct span *next;      /* of the same space */
	struct span *next_all;
};

/* Reserves a span with room for `size` bytes at least: twice the card's memory and 64 GiB
 * or more as long as the system allows it. Nothing is left behind on an error. */
CUresult span_reserve(struct device *dev, size_t size, struct span **span);

/* An empty span that has left its list is found by nobody from here on; then its addresses
 * are given back, even if the driver refuses, as it does after a device reset. */
void span_retire_locked(struct span *span);
void span_unreserve(struct span *span);

/* From the first of `spans` that has room: its address, and which span. 0 when none. */
CUdeviceptr span_take_locked(struct span *spans, size_t size, struct span **span);

/* The way back. False when memory for the record ran out: the addresses stay unused. */
bool span_give_locked(struct span *span, CUdeviceptr base, size_t size);

/* Nothing has been taken, or all of it given back. */
bool span_empty_locked(const struct span *span);

/* Which block lies at an address is noted here. */
void span_note_block_locked(struct span *span, struct block *block);
void span_forget_block_locked(struct span *span, struct block *block);

/* The block at `ptr`, in any span; NULL when none is there. */
struct block *span_block_locked(CUdeviceptr ptr);

/* `ptr` lies in a span of ours, so that no other memory can be there. Lock-free. */
bool span_owns(CUdeviceptr ptr);

#endif
