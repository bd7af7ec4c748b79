/* SPDX-License-Identifier: Apache-2.0 */
#include "extent.h"

#include <stdlib.h>

uint64_t extent_take(struct extent **list, size_t size)
{
	for (struct extent **at = list; *at; at = &(*at)->next) {
		struct extent *e = *at;
		uint64_t base = e->base;

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

static void join_next(struct extent *e)
{
	struct extent *next = e->next;

	if (next && e->base + e->size == next->base) {
		e->size += next->size;
		e->next = next->next;
		free(next);
	}
}

bool extent_give(struct extent **list, uint64_t base, size_t size)
{
	struct extent **at = list, *before = NULL, *e;

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

bool extent_carve(struct extent **list, uint64_t base, size_t size)
{
	struct extent *e = *list, *rest;
	uint64_t end;

	while (e && e->base + e->size <= base)
		e = e->next;
	if (!e || e->base > base || e->base + e->size < base + size)
		return false;
	end = e->base + e->size;
	if (e->base < base && base + size < end) {
		rest = malloc(sizeof *rest);
		if (!rest)
			return false;
		*rest = (struct extent){base + size, end - (base + size), e->next};
		e->next = rest;
		e->size = base - e->base;
	} else if (e->base < base) {
		e->size = base - e->base;
	} else {
		/* From its beginning: what extent_take() does when it is the first. */
		struct extent **at = list;

		while (*at != e)
			at = &(*at)->next;
		extent_take(at, size);
	}
	return true;
}
