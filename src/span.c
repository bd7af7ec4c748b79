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
#include "extent.h"
#include "real.h"

enum { SPANS_LARGE = 64 };

static const size_t SPAN_MIN = (size_t)64 << 30;
static const size_t SPAN_SMALL = (size_t)1 << 30; /* when there are many */
static const size_t SPAN_SCARCE = (size_t)64 << 20;

static _Atomic(struct span *) all_spans;
static _Atomic size_t span_count;

static size_t map_bytes(const struct span *span, size_t size)
{
	return size / span->device->granule * sizeof *span->granule;
}

/* One entry a granule; pages that are never touched cost nothing. */
static struct block **map_granules(const struct span *span)
{
	void *map = mmap(NULL, map_bytes(span, span->size), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return map == MAP_FAILED ? NULL : map;
}

static size_t wanted_size(const struct device *dev, size_t size, size_t at_least)
{
	size_t want = at_least > size ? at_least : size;

	return (want + dev->granule - 1) / dev->granule * dev->granule;
}

/* Many regions on many devices must not use up the addresses of the process. */
static size_t plenty_for(const struct device *dev)
{
	if (span_count >= SPANS_LARGE)
		return SPAN_SMALL;
	return 2 * dev->memory > SPAN_MIN ? 2 * dev->memory : SPAN_MIN;
}

/* RLIMIT_AS, or what else uses addresses, may leave less than we would like. From the
 * first refusal on, spans are small, so that all regions to come find room for one. */
static CUresult reserve_addresses(struct span *span, size_t size)
{
	static _Atomic bool scarce;
	const struct device *dev = span->device;
	size_t plenty = plenty_for(dev);
	size_t wants[] = {wanted_size(dev, size, plenty),
		wanted_size(dev, size, SPAN_SCARCE), wanted_size(dev, size, size)};
	CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

	for (size_t i = scarce; i < 3 && err != CUDA_SUCCESS; i++) {
		span->size = wants[i];
		err = driver()->cuMemAddressReserve(&span->base, span->size, 0, 0, 0);
		scarce = scarce || err != CUDA_SUCCESS;
	}
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
	CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

	if (!span)
		return err;
	span->device = dev;
	err = reserve_addresses(span, size);
	if (err != CUDA_SUCCESS)
		goto free_record;
	span->granule = map_granules(span);
	err = CUDA_ERROR_OUT_OF_MEMORY;
	if (!span->granule)
		goto free_addresses;
	if (!extent_give(&span->free, span->base, span->size))
		goto free_map;
	publish(span);
	atomic_fetch_add(&span_count, 1);
	*out = span;
	return CUDA_SUCCESS;

free_map:
	munmap(span->granule, map_bytes(span, span->size));
free_addresses:
	driver()->cuMemAddressFree(span->base, span->size);
free_record:
	free(span);
	return err;
}

void span_retire_locked(struct span *span)
{
	span->retired_size = span->size;
	__atomic_store_n(&span->size, 0, __ATOMIC_RELEASE);
}

void span_unreserve(struct span *span)
{
	munmap(span->granule, map_bytes(span, span->retired_size));
	free(span->free);
	span->free = NULL;
	atomic_fetch_sub(&span_count, 1);
	driver()->cuMemAddressFree(span->base, span->retired_size);
}

CUdeviceptr span_take_locked(struct span *spans, size_t size, struct span **span)
{
	for (struct span *s = spans; s; s = s->next) {
		CUdeviceptr base = extent_take(&s->free, size);

		if (base) {
			*span = s;
			return base;
		}
	}
	return 0;
}

bool span_give_locked(struct span *span, CUdeviceptr base, size_t size)
{
	return extent_give(&span->free, base, size);
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
