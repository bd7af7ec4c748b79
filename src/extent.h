/* SPDX-License-Identifier: Apache-2.0 */
/* Free ranges of addresses: a list ordered by address, no two of them adjacent. Its owner
 * says which lock it is under. Address 0 is never in one. */
#ifndef EXTENT_H
#define EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct extent {
	uint64_t base;
	size_t size;
	struct extent *next;
};

/* Takes `size` from the first range that is long enough; 0 when none is. */
uint64_t extent_take(struct extent **list, size_t size);

/* Adds a range. False when memory for the record ran out: it is lost. */
bool extent_give(struct extent **list, uint64_t base, size_t size);

/* Takes exactly this range, which lies inside one of the list. False as above, with
 * nothing taken. */
bool extent_carve(struct extent **list, uint64_t base, size_t size);

#endif
