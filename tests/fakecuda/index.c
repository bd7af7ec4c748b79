/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

size_t index_after(const struct index *index, CUdeviceptr at)
{
	size_t low = 0, high = index->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (index->items[mid]->base + index->items[mid]->size <= at)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct extent *index_find(const struct index *index, CUdeviceptr at)
{
	size_t i = index_after(index, at);

	return i < index->count && index->items[i]->base <= at ? index->items[i] : NULL;
}

bool index_overlaps(const struct index *index, CUdeviceptr base, size_t size)
{
	size_t i = index_after(index, base);

	return i < index->count && index->items[i]->base < base + size;
}

bool index_insert(struct index *index, struct extent *extent)
{
	size_t i = index_after(index, extent->base);

	if (index->count == index->room) {
		size_t room = index->room ? 2 * index->room : 64;
		void *items = realloc(index->items, room * sizeof *index->items);

		if (!items)
			return false;
		index->items = items;
		index->room = room;
	}
	memmove(&index->items[i + 1], &index->items[i],
		(index->count - i) * sizeof *index->items);
	index->items[i] = extent;
	index->count++;
	return true;
}

void index_remove(struct index *index, const struct extent *extent)
{
	size_t i = index_after(index, extent->base);

	index->count--;
	memmove(&index->items[i], &index->items[i + 1],
		(index->count - i) * sizeof *index->items);
}
