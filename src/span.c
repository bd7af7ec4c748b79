/* SPDX-License-Identifier: Apache-2.0 */
/*
 * span_owns() is on the way of every free in the process, so spans stand in a list that
 * only grows and is read without the lock. A span that is given back is marked by size 0;
 * its few bytes stay, since a reader may be looking at them.
 */
#include "span.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "block.h"
#include "device.h"
#include "real.h"

static const size_t SPAN_MIN = (size_t)64 << 30;

struct extent {
	CUdeviceptr base;
	size_t size;
	struct extent *next;
};

static _Atomic(struct span *) all_spans;

static size_t map_bytes(const struct span *span)
{
	return span->size / span->device->granule * sizeof *span->granule;
}

/* One entry a granule; pages that are never touched cost nothing. */
static struct block **map_granules(const struct span *span)
{
	void *map = mmap(NULL, map_bytes(span), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return map == MAP_FAILED ? NULL : map;
}

static size_t wanted_size(const struct device *dev, size_t size)
{
	size_t want = 2 * dev->memory > SPAN_MIN ? 2 * dev->memory : SPAN_MIN;

	if (want < size)
		want = size;
	return (want + dev->granule - 1) / dev->granule * dev->granule;
}

/* RLIMIT_AS, or what else uses addresses, may leave less than we would like. */
static CUresult reserve_addresses(struct span *span, size_t size)
{
	size_t want = wanted_size(span->device, size);
	CUresult err;

	for (;;) {
		err = driver()->cuMemAddressReserve(&span->base, want, 0, 0, 0);
		if (err == CUDA_SUCCESS || want == size)
			break;
		want = want / 2 / span->device->granule * span->device->granule;
		if (want < size)
			want = size;
	}
	span->size = want;
	return err;
}

static void publish(struct span *span)
{
	struct span *head = atomic_load(&all_spans);

	do
		span->next_all = head;
	while (!atomic_compare_exchange_weak(&all_spans, &head, span));
}

CUresult span_reserve(struct device *dev, size_t size, struct span **out)
{
	struct span *span = calloc(1, sizeof *span);
	struct extent *whole = malloc(sizeof *whole);
	CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

	if (!span || !whole)
		goto free_records;
	span->device = dev;
	err = reserve_addresses(span, size);
	if (err != CUDA_SUCCESS)
		goto free_records;
	span->granule = map_granules(span);
	if (!span->granule) {
		err = CUDA_ERROR_OUT_OF_MEMORY;
		goto free_addresses;
	}
	*whole = (struct extent){.base = span->base, .size = span->size};
	span->free = whole;
	publish(span);
	*out = span;
	return CUDA_SUCCESS;

free_addresses:
	driver()->cuMemAddressFree(span->base, span->size);
free_records:
	free(whole);
	free(span);
	return err;
}

void span_unreserve(struct span *span)
{
	size_t size = span->size;

	munmap(span->granule, map_bytes(span));
	free(span->free);
	span->free = NULL;
	__atomic_store_n(&span->size, 0, __ATOMIC_RELEASE);
	driver()->cuMemAddressFree(span->base, size);
}

static CUdeviceptr take_from(struct span *span, size_t size)
{
	for (struct extent **at = &span->free; *at; at = &(*at)->next) {
		struct extent *e = *at;
		CUdeviceptr base = e->base;

		if (e->size < size)
			continue;
		e->base += size;
		e->size -= size;
		if (e->size == 0) {
			*at = e->next;
			free(e);
		}
		return base;
	}
	return 0;
}

CUdeviceptr span_take_locked(struct span *spans, size_t size, struct span **span)
{
	for (struct span *s = spans; s; s = s->next) {
		CUdeviceptr base = take_from(s, size);

		if (base) {
			*span = s;
			return base;
		}
	}
	return 0;
}

static void join_next(struct extent *e)
{
	struct extent *next = e->next;

	if (next && e->base + e->size == next->base) {
		e->size += next->size;
		e->next = next->next;
		free(next);
	}
}

bool span_give_locked(struct span *span, CUdeviceptr base, size_t size)
{
	struct extent **at = &span->free, *before = NULL, *e;

	while (*at && (*at)->base < base) {
		before = *at;
		at = &(*at)->next;
	}
	if (before && before->base + before->size == base) {
		before->size += size;
		join_next(before);
		return true;
	}
	e = malloc(sizeof *e);
	if (!e)
		return false;
	*e = (struct extent){.base = base, .size = size, .next = *at};
	*at = e;
	join_next(e);
	return true;
}

bool span_empty_locked(const struct span *span)
{
	return span->free && span->free->size == span->size;
}

static void set_granules(struct span *span, const struct block *at, struct block *value)
{
	size_t granule = span->device->granule;
	size_t first = (at->base - span->base) / granule;

	for (size_t i = 0; i < at->size / granule; i++)
		span->granule[first + i] = value;
}

void span_note_block_locked(struct span *span, struct block *block)
{
	set_granules(span, block, block);
}

void span_forget_block_locked(struct span *span, struct block *block)
{
	set_granules(span, block, NULL);
}

static struct span *find(CUdeviceptr ptr)
{
	for (struct span *s = atomic_load_explicit(&all_spans, memory_order_acquire); s;
		s = s->next_all)
		if (ptr - s->base < __atomic_load_n(&s->size, __ATOMIC_ACQUIRE))
			return s;
	return NULL;
}

struct block *span_block_locked(CUdeviceptr ptr)
{
	struct span *span = find(ptr);

	return span ? span->granule[(ptr - span->base) / span->device->granule] : NULL;
}

bool span_owns(CUdeviceptr ptr)
{
	return find(ptr) != NULL;
}
