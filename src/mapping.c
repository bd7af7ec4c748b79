/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "change.h"
#include "lock.h"
#include "real.h"
#include "stayput.h"

static struct mapping **mappings;
static size_t mapping_count, mapping_room;
static _Atomic size_t adopted;
static bool taken; /* the turn */

bool mapping_any(void)
{
	return atomic_load_explicit(&adopted, memory_order_acquire) > 0;
}

struct mapping *mapping_at(size_t i)
{
	return mappings[i];
}

void mapping_wait_turn_locked(void)
{
	while (taken)
		lock_wait();
}

/* The first mapping that ends after `ptr`. */
static size_t index_after(CUdeviceptr ptr)
{
	size_t low = 0, high = mapping_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct block *b = &mappings[middle]->block;

		if (b->base + b->size <= ptr)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct run find_run(CUdeviceptr ptr, size_t size)
{
	struct run run = {.first = index_after(ptr)};

	run.end = run.first;
	while (size && run.end < mapping_count &&
		(mappings[run.end]->block.base < ptr ||
			mappings[run.end]->block.base - ptr < size))
		run.end++;
	return run;
}

static bool is_passing(const struct mapping *m)
{
	return m->block.state == STAYPUT_PAUSING || m->block.state == STAYPUT_RESUMING;
}

bool mapping_is_moving(const struct token *t)
{
	return t && t->mappings && is_passing(t->mappings);
}

bool mapping_is_paused(const struct mapping *m)
{
	return m->block.state == STAYPUT_PAUSED;
}

static bool any_passing(struct run run)
{
	for (size_t i = run.first; i < run.end; i++)
		if (is_passing(mappings[i]))
			return true;
	return false;
}

struct run mapping_settle_locked(CUdeviceptr ptr, size_t size)
{
	struct run run = find_run(ptr, size);

	while (any_passing(run) && !change_is_telling()) {
		lock_wait();
		run = find_run(ptr, size);
	}
	return run;
}

bool mapping_take_turn_locked(CUmemGenericAllocationHandle name, CUdeviceptr ptr,
	size_t size, struct run *run, struct token **token)
{
	for (;;) {
		bool moving;

		*token = token_find_locked(name);
		*run = find_run(ptr, size);
		moving = any_passing(*run) || mapping_is_moving(*token);
		if (moving && change_is_telling())
			return false;
		if (!taken && !moving) {
			taken = true;
			return true;
		}
		lock_wait();
	}
}

void mapping_give_turn_locked(void)
{
	taken = false;
	lock_notify();
}

bool mapping_take_range(CUdeviceptr ptr, size_t size, struct run *run)
{
	struct token *none;
	bool took;

	lock_take();
	took = mapping_take_turn_locked(0, ptr, size, run, &none);
	lock_drop();
	return took;
}

void mapping_give_turn(void)
{
	lock_take();
	mapping_give_turn_locked();
	lock_drop();
}

struct mapping *mapping_find_locked(CUdeviceptr ptr)
{
	struct run run = find_run(ptr, 1);

	return run.first < run.end ? mappings[run.first] : NULL;
}

bool mapping_make_room_locked(void)
{
	size_t room = mapping_room ? 2 * mapping_room : 64;
	struct mapping **grown;

	if (mapping_count < mapping_room)
		return true;
	grown = realloc(mappings, room * sizeof *mappings);
	if (!grown)
		return false;
	mappings = grown;
	mapping_room = room;
	return true;
}

void mapping_insert_locked(struct mapping *m)
{
	size_t i = index_after(m->block.base);

	memmove(mappings + i + 1, mappings + i, (mapping_count - i) * sizeof *mappings);
	mappings[i] = m;
	mapping_count++;
	adopted++;
}

void mapping_remove_locked(const struct mapping *m)
{
	size_t i = index_after(m->block.base);

	mapping_count--;
	memmove(mappings + i, mappings + i + 1, (mapping_count - i) * sizeof *mappings);
	adopted--;
}

static bool same_location(const CUmemLocation *a, const CUmemLocation *b)
{
	return a->type == b->type && a->id == b->id;
}

int mapping_flags(const struct mapping *m, const CUmemLocation *location)
{
	for (size_t i = 0; i < m->access_count; i++)
		if (same_location(&m->access[i].location, location))
			return m->access[i].flags;
	return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

void mapping_note_access_locked(struct mapping *m, const CUmemAccessDesc *access)
{
	size_t i = 0;

	while (i < m->access_count &&
		!same_location(&m->access[i].location, &access->location))
		i++;
	if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
		if (i < m->access_count)
			m->access[i] = m->access[--m->access_count];
	} else if (i == DEVICE_MAX) {
		m->token->shares++; /* more than can be set again */
	} else {
		m->access[i] = *access;
		m->access_count += i == m->access_count;
	}
}

/* What the program lets the memory's own device do. */
static int own_flags(const struct mapping *m)
{
	return mapping_flags(m, &m->token->prop.location);
}

const char *mapping_held_locked(const struct block *block)
{
	const struct mapping *m = block->mapping;

	if (!m)
		return NULL;
	if (m->token->shares)
		return "they were exported, or bound to a multicast object or an array";
	if (m->token->mappings->next)
		return "the memory is mapped at several addresses";
	return mapping_is_restricted(block) ? "their device may not read and write them"
					    : NULL;
}

bool mapping_is_restricted(const struct block *block)
{
	return block->mapping &&
	       own_flags(block->mapping) != CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUresult mapping_allow(const struct block *block, enum access who)
{
	const struct mapping *m = block->mapping;
	const CUmemLocation own = m->token->prop.location;
	CUmemAccessDesc access[DEVICE_MAX + 1] = {
		{.location = own, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
	size_t count = 1;

	for (size_t i = 0; i < m->access_count && who != ACCESS_OWNER; i++)
		if (!same_location(&m->access[i].location, &own))
			access[count++] = m->access[i];
	return driver()->cuMemSetAccess(block->base, block->size, access, count);
}

void mapping_restrict(const struct block *block)
{
	const struct mapping *m = block->mapping;
	const CUmemAccessDesc access = {
		.location = m->token->prop.location, .flags = own_flags(m)};

	driver()->cuMemSetAccess(block->base, block->size, &access, 1);
}
