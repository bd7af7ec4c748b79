/* SPDX-License-Identifier: Apache-2.0 */
#include "hostpool.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config.h"
#include "device.h"
#include "error.h"
#include "extent.h"
#include "hostfill.h"
#include "hostmem.h"
#include "lock.h"
#include "stayput.h"

static size_t map_bytes(const struct device *dev, size_t size)
{
	return size / dev->granule * sizeof(struct piece *);
}

static void *map_nothing(size_t size)
{
	void *base = mmap(NULL, size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return base == MAP_FAILED ? NULL : base;
}

/* Addresses aligned as huge pages want it. */
static char *map_aligned(size_t size, size_t align)
{
	char *base = map_nothing(size + align), *aligned;
	size_t before;

	if (!base)
		return NULL;
	before = align - (uintptr_t)base % align;
	aligned = base + before;
	munmap(base, before);
	if (before < align)
		munmap(aligned + size, align - before);
	return aligned;
}

/* Copies to the far socket's memory are slower, and share its link with others. A forked
 * child has no use for the pages, and copying them on write would move what is pinned. */
static void advise(char *base, size_t size, int node)
{
	unsigned long mask = node >= 0 && node < 64 ? 1ul << node : 0;

	if (mask)
		syscall(SYS_mbind, base, size, MPOL_PREFERRED, &mask,
			sizeof mask * CHAR_BIT, 0);
	madvise(base, size, MADV_DONTFORK);
	madvise(base, size, MADV_DONTDUMP);
}

static bool publish_locked(struct device *dev, char *base, size_t size, struct piece **at)
{
	struct hostpool *pool = &dev->pool;

	if (pool->base || !extent_give(&pool->bare, (uintptr_t)base, size))
		return false;
	pool->base = base;
	pool->size = size;
	pool->at = at;
	return true;
}

bool hostpool_open(struct device *dev)
{
	size_t size = 2 * dev->memory / dev->granule * dev->granule;
	struct piece **at = NULL;
	char *base = NULL;
	bool open;

	lock_take();
	open = dev->pool.base != NULL;
	lock_drop();
	if (open)
		return true;
	for (; size >= dev->granule && !base;
		size = size / 2 / dev->granule * dev->granule) {
		base = map_aligned(size, dev->granule);
		at = base ? map_nothing(map_bytes(dev, size)) : NULL;
		if (base && at)
			break;
		if (base)
			munmap(base, size);
		base = NULL;
	}
	if (!base)
		return false;
	advise(base, size, dev->numa_node);
	lock_take();
	open = publish_locked(dev, base, size, at);
	lock_drop();
	if (!open) {
		munmap(base, size);
		munmap(at, map_bytes(dev, size));
	}
	return dev->pool.base != NULL;
}

static size_t booked; /* under the lock */

size_t hostpool_total_locked(void)
{
	size_t total = booked;

	for (struct device *dev = device_first(); dev; dev = device_next(dev))
		for (struct piece *p = dev->pool.pieces; p; p = p->next)
			total += p->size;
	return total;
}

size_t hostpool_reserved_locked(void)
{
	size_t reserved = 0;

	for (struct device *dev = device_first(); dev; dev = device_next(dev))
		reserved += dev->pool.reserved;
	return reserved;
}

size_t hostpool_idle_locked(void)
{
	size_t idle = 0;

	for (struct device *dev = device_first(); dev; dev = device_next(dev))
		for (struct extent *e = dev->pool.idle; e; e = e->next)
			idle += e->size;
	return idle;
}

static size_t limit_bytes(size_t available, size_t total)
{
	const struct config *c = config();

	if (c->host_limit_percent)
		return (available + total) / 100 * c->host_limit_percent;
	return c->host_limit_bytes;
}

static size_t missing(size_t size, size_t room)
{
	return size > room ? size - room : 0;
}

size_t hostpool_book(size_t size)
{
	size_t available = hostmem_available(""), total, limit, lacking, by_limit;

	if (available > SIZE_MAX / 2)
		available = SIZE_MAX / 2;
	lock_take();
	total = hostpool_total_locked();
	limit = limit_bytes(available, total);
	by_limit = missing(size, missing(limit, total));
	/* What others have booked is not gone from `available` yet. */
	lacking = missing(size, missing(available, booked));
	if (lacking < by_limit)
		lacking = by_limit;
	if (lacking == 0)
		booked += size;
	lock_drop();
	if (lacking > 0)
		error_set(STAYPUT_ERR_HOST_MEMORY,
			"backups need %zu bytes of host memory beside the %zu that they "
			"have; STAYPUT_HOST_LIMIT allows %zu in all, and %zu are "
			"available",
			size, total, limit, available);
	return lacking;
}

void hostpool_unbook_locked(size_t size)
{
	booked -= size;
}

struct piece *hostpool_piece(struct device *dev, const char *at)
{
	return dev->pool.at[(at - dev->pool.base) / dev->granule];
}

/* Counts a range as taken, or not, in every piece that it lies in. */
static void count_taken(struct device *dev, char *base, size_t size, bool taken)
{
	for (char *at = base, *end = base + size; at < end;) {
		struct piece *p = hostpool_piece(dev, at);
		char *stop = p->base + p->size < end ? p->base + p->size : end;

		if (taken)
			p->taken += stop - at;
		else
			p->taken -= stop - at;
		at = stop;
	}
}

char *hostpool_take_idle_locked(struct device *dev, size_t size)
{
	char *base = (char *)(uintptr_t)extent_take(&dev->pool.idle, size);

	if (!base)
		return NULL;
	count_taken(dev, base, size, true);
	dev->pool.reserved -= size < dev->pool.reserved ? size : dev->pool.reserved;
	return base;
}

char *hostpool_take_bare_locked(struct device *dev, size_t size)
{
	return (char *)(uintptr_t)extent_take(&dev->pool.bare, size);
}

void hostpool_give_bare_locked(struct device *dev, char *base, size_t size)
{
	extent_give(&dev->pool.bare, (uintptr_t)base, size);
}

static void note_piece(struct device *dev, const struct piece *piece, struct piece *value)
{
	size_t first = (piece->base - dev->pool.base) / dev->granule;

	for (size_t i = 0; i < piece->size / dev->granule; i++)
		dev->pool.at[first + i] = value;
}

void hostpool_add_piece_locked(struct device *dev, struct piece *piece)
{
	piece->taken = piece->size;
	piece->next = dev->pool.pieces;
	dev->pool.pieces = piece;
	note_piece(dev, piece, piece);
}

bool hostpool_divide(char *base, size_t size, struct piece **pieces, size_t *count)
{
	for (size_t at = 0; at < size; at += HOSTPOOL_PIECE) {
		struct piece *p = calloc(1, sizeof *p);

		if (!p)
			return false;
		p->base = base + at;
		p->size = size - at < HOSTPOOL_PIECE ? size - at : HOSTPOOL_PIECE;
		pieces[(*count)++] = p;
	}
	return true;
}

void hostpool_give_locked(struct device *dev, char *base, size_t size)
{
	count_taken(dev, base, size, false);
	extent_give(&dev->pool.idle, (uintptr_t)base, size);
}

void hostpool_settle_locked(struct device *dev)
{
	while (dev->pool.filling > 0)
		lock_wait();
}

/* Takes one piece that nothing lies in out of the pool. */
static struct piece *take_empty_locked(struct device *dev)
{
	for (struct piece **at = &dev->pool.pieces; *at; at = &(*at)->next) {
		struct piece *p = *at;

		if (p->taken > 0 ||
			!extent_carve(&dev->pool.idle, (uintptr_t)p->base, p->size))
			continue;
		*at = p->next;
		note_piece(dev, p, NULL);
		return p;
	}
	return NULL;
}

/* Those that can go, in `list`, which has room for `room`. */
static size_t take_surplus(
	struct device *dev, size_t keep, struct piece **list, size_t room)
{
	size_t count = 0, total;

	lock_take();
	total = hostpool_total_locked();
	while (count < room && total > keep) {
		struct piece *p = take_empty_locked(dev);

		if (!p)
			break;
		list[count++] = p;
		total -= p->size;
	}
	lock_drop();
	return count;
}

static void give_back(struct device *dev, struct piece **list, size_t count)
{
	hostfill_empty(dev, list, count, config()->threads);
	lock_take();
	for (size_t i = 0; i < count; i++)
		hostpool_give_bare_locked(dev, list[i]->base, list[i]->size);
	lock_drop();
	for (size_t i = 0; i < count; i++)
		free(list[i]);
}

void hostpool_trim_device(struct device *dev, size_t keep)
{
	struct piece *list[256];
	size_t count;

	while ((count = take_surplus(dev, keep, list, sizeof list / sizeof *list)))
		give_back(dev, list, count);
}

void hostpool_trim(size_t keep)
{
	for (struct device *dev = device_first(); dev; dev = device_next(dev))
		hostpool_trim_device(dev, keep);
}
