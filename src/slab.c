/* SPDX-License-Identifier: Apache-2.0 */
#include "slab.h"

#include <stdlib.h>

#include "block.h"
#include "device.h"
#include "region.h"

enum { BLOCK_MAX = 32 << 20 };

static size_t round_up(size_t size, size_t to)
{
	return (size + to - 1) / to * to;
}

size_t slab_block_size_locked(const struct space *space, size_t size)
{
	size_t granule = space->device->granule;
	size_t used = 0, want = granule;

	for (const struct block *b = space->shared; b; b = b->next)
		used += b->used;
	while (want * 2 <= used && want * 2 <= BLOCK_MAX)
		want *= 2;
	return want > size ? want : round_up(size, granule);
}

static void add_free(struct block *block, struct segment *s)
{
	s->prev_free = NULL;
	s->next_free = block->free_segments;
	if (s->next_free)
		s->next_free->prev_free = s;
	block->free_segments = s;
}

static void remove_free(struct block *block, struct segment *s)
{
	if (s->prev_free)
		s->prev_free->next_free = s->next_free;
	else
		block->free_segments = s->next_free;
	if (s->next_free)
		s->next_free->prev_free = s->prev_free;
}

static void unlink_block(struct block *block)
{
	if (block->prev)
		block->prev->next = block->next;
	else
		block->space->shared = block->next;
	if (block->next)
		block->next->prev = block->prev;
}

/* Links `block` before `before`, or last when that is NULL, after `after`. */
static void link_block(struct block *block, struct block *after, struct block *before)
{
	block->prev = after;
	block->next = before;
	if (after)
		after->next = block;
	else
		block->space->shared = block;
	if (before)
		before->prev = block;
}

static void swap_with_previous(struct block *block)
{
	struct block *previous = block->prev;

	unlink_block(block);
	link_block(block, previous->prev, previous);
}

/* Moves `block` to where its fill puts it: one step mostly. */
static void reorder(struct block *block)
{
	while (block->prev && block->prev->used < block->used)
		swap_with_previous(block);
	while (block->next && block->next->used > block->used)
		swap_with_previous(block->next);
}

/* Cuts what `segment` has beyond `size` off as a free segment. Without memory for the
 * record the segment stays as long as it is. */
static void split(struct block *block, struct segment *segment, size_t size)
{
	struct segment *rest;

	if (segment->size == size)
		return;
	rest = malloc(sizeof *rest);
	if (!rest)
		return;
	*rest = (struct segment){
		.offset = segment->offset + size,
		.size = segment->size - size,
		.prev = segment,
		.next = segment->next,
	};
	if (rest->next)
		rest->next->prev = rest;
	segment->next = rest;
	segment->size = size;
	add_free(block, rest);
}

struct segment *slab_take_in_locked(struct block *block, size_t size)
{
	size_t want = round_up(size, SLAB_ALIGN);

	if (block->size - block->used < want)
		return NULL;
	for (struct segment *s = block->free_segments; s; s = s->next_free) {
		if (s->size < want)
			continue;
		remove_free(block, s);
		split(block, s, want);
		s->taken = true;
		block->used += s->size;
		reorder(block);
		return s;
	}
	return NULL;
}

struct segment *slab_take_locked(struct space *space, size_t size, struct block **block)
{
	for (struct block *b = space->shared; b; b = b->next) {
		struct segment *s =
			b->state == STAYPUT_ACTIVE ? slab_take_in_locked(b, size) : NULL;

		if (s) {
			*block = b;
			return s;
		}
	}
	return NULL;
}

/* Joins the free `segment` with the one after it, if that is free too. */
static void join_next(struct block *block, struct segment *segment)
{
	struct segment *next = segment->next;

	if (!next || next->taken)
		return;
	remove_free(block, next);
	segment->size += next->size;
	segment->next = next->next;
	if (segment->next)
		segment->next->prev = segment;
	free(next);
}

bool slab_give_locked(struct block *block, struct segment *segment)
{
	segment->taken = false;
	segment->owner = NULL;
	block->used -= segment->size;
	add_free(block, segment);
	join_next(block, segment);
	if (segment->prev && !segment->prev->taken)
		join_next(block, segment->prev);
	reorder(block);
	return block->used == 0;
}

bool slab_add_block_locked(struct block *block)
{
	struct segment *whole = calloc(1, sizeof *whole);
	struct block *last = block->space->shared;

	if (!whole)
		return false;
	whole->size = block->size;
	block->segments = whole;
	block->used = 0;
	add_free(block, whole);
	while (last && last->next)
		last = last->next;
	link_block(block, last, NULL);
	return true;
}

void slab_remove_block_locked(struct block *block)
{
	unlink_block(block);
	free(block->segments);
	block->segments = block->free_segments = NULL;
}

struct segment *slab_segment_locked(const struct block *block, CUdeviceptr ptr)
{
	size_t offset = ptr - block->base;

	for (struct segment *s = block->segments; s; s = s->next)
		if (offset - s->offset < s->size)
			return s->taken ? s : NULL;
	return NULL;
}
