/* SPDX-License-Identifier: Apache-2.0 */
/* uthash ends the process when it finds no memory, unless told otherwise before it is
 * included: here a failed insertion is seen by the element having no table. */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((void)(element))

#include "table.h"

#include <stdatomic.h>

#include "block.h"
#include "lock.h"
#include "mapping.h"
#include "slab.h"
#include "span.h"

static struct allocation *by_base;

/* Native allocations in the table: while there is one, addresses outside our spans have
 * to be looked up too. */
static _Atomic size_t native_count;

bool table_add_locked(struct allocation *a)
{
	a->hh.tbl = NULL;
	HASH_ADD(hh, by_base, base, sizeof a->base, a);
	if (!a->hh.tbl)
		return false;
	if (!a->block)
		native_count++;
	return true;
}

void table_remove_locked(struct allocation *a)
{
	HASH_DELETE(hh, by_base, a);
	if (!a->block)
		native_count--;
}

struct allocation *table_find_locked(CUdeviceptr base)
{
	struct allocation *a;

	HASH_FIND(hh, by_base, &base, sizeof base, a);
	return a;
}

static bool contains(const struct allocation *a, CUdeviceptr ptr)
{
	return ptr - a->base < a->size;
}

/* Native memory has no index by address: it is asked about seldom and by few. */
static struct allocation *find_native(CUdeviceptr ptr)
{
	struct allocation *a = native_count > 0 ? by_base : NULL;

	while (a && (a->block || !contains(a, ptr)))
		a = a->hh.next;
	return a;
}

struct allocation *table_find_inside_locked(CUdeviceptr ptr)
{
	struct block *block = span_block_locked(ptr);
	struct mapping *m = block ? NULL : mapping_find_locked(ptr);
	struct allocation *a;

	if (m)
		return &m->allocation;
	if (!block)
		return find_native(ptr);
	a = block->only;
	if (block->segments) {
		struct segment *s = slab_segment_locked(block, ptr);

		a = s ? s->owner : NULL;
	}
	return a && contains(a, ptr) ? a : NULL;
}

bool table_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size)
{
	struct allocation *a;

	if (!span_owns(ptr))
		return false;
	lock_take();
	a = table_find_inside_locked(ptr);
	if (a) {
		*base = a->base;
		*size = a->size;
	}
	lock_drop();
	return a != NULL;
}

struct allocation *table_first_locked(void)
{
	return by_base;
}

bool table_may_hold(CUdeviceptr base)
{
	return span_owns(base) ||
	       atomic_load_explicit(&native_count, memory_order_relaxed) > 0;
}
