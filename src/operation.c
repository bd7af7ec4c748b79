/* SPDX-License-Identifier: Apache-2.0 */
#include "operation.h"

#include <stdlib.h>

#include "block.h"
#include "change.h"
#include "error.h"
#include "history.h"
#include "ipc_export.h"
#include "lock.h"
#include "mapping.h"
#include "region.h"
#include "slab.h"
#include "table.h"

static size_t count_regions_locked(void)
{
	size_t n = 0;

	for (struct region *r = region_first_locked(); r; r = r->next)
		n++;
	return n;
}

static bool listed(const struct operation *op, const struct region *region)
{
	for (size_t i = 0; i < op->region_count; i++)
		if (op->regions[i] == region)
			return true;
	return false;
}

/* A tag may be named twice; its region counts once. */
static int list_regions_locked(
	struct operation *op, const char *const *tags, size_t count)
{
	struct region *r;

	if (count == 0)
		for (r = region_first_locked(); r; r = r->next)
			op->regions[op->region_count++] = r;
	for (size_t i = 0; i < count; i++) {
		r = region_find_locked(tags[i]);
		if (!r)
			return error_set(
				STAYPUT_ERR_NOT_FOUND, "no region is tagged %s", tags[i]);
		if (!listed(op, r))
			op->regions[op->region_count++] = r;
	}
	return STAYPUT_OK;
}

static struct region *find_operating_locked(const struct operation *op)
{
	for (size_t i = 0; i < op->region_count; i++)
		if (op->regions[i]->operating)
			return op->regions[i];
	return NULL;
}

/* All at once or none, so that two operations cannot wait for each other. */
static int claim_locked(struct operation *op, bool no_block)
{
	struct region *busy;

	while ((busy = find_operating_locked(op))) {
		if (no_block)
			return error_set(STAYPUT_ERR_BUSY,
				"another operation on region %s is under way", busy->tag);
		lock_wait();
	}
	for (size_t i = 0; i < op->region_count; i++)
		op->regions[i]->operating = true;
	return STAYPUT_OK;
}

int operation_no_memory(void)
{
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"no memory for the list of what to pause or resume");
}

int operation_begin(
	struct operation *op, const char *const *tags, size_t count, bool no_block)
{
	int err;

	if (change_is_telling())
		return error_set(STAYPUT_ERR_BUSY,
			"called from a callback of "
			"stayput_on_change(), during an operation");
	lock_take();
	op->regions = calloc(count + count_regions_locked() + 1, sizeof *op->regions);
	err = op->regions ? list_regions_locked(op, tags, count) : operation_no_memory();
	if (err == STAYPUT_OK)
		err = claim_locked(op, no_block);
	if (err == STAYPUT_OK)
		history_begin_locked(op);
	lock_drop();
	if (err != STAYPUT_OK) {
		free(op->regions);
		op->region_count = 0;
	}
	return err;
}

void operation_progress(struct operation *op, uint64_t bytes)
{
	atomic_fetch_add_explicit(&op->asker->done, bytes, memory_order_relaxed);
}

void operation_fail(struct operation *op)
{
	lock_take();
	op->failed = true;
	lock_notify();
	lock_drop();
}

void operation_end(struct operation *op)
{
	lock_take();
	for (size_t i = 0; i < op->region_count; i++)
		op->regions[i]->operating = false;
	history_end_locked(op);
	lock_notify();
	lock_drop();
	free(op->regions);
	free(op->works);
	free(op->blocks);
}

typedef void visit(struct operation *op, struct block *block);

static void visit_list(struct operation *op, struct block *list, int state, visit *each)
{
	for (struct block *b = list, *next; b; b = next) {
		next = b->next;
		if (b->state == state)
			each(op, b);
	}
}

static void visit_all_locked(struct operation *op, int state, visit *each)
{
	for (size_t i = 0; i < op->region_count; i++)
		for (struct space *s = op->regions[i]->spaces; s; s = s->next) {
			visit_list(op, s->large, state, each);
			visit_list(op, s->shared, state, each);
		}
}

static struct work *work_of(struct operation *op, struct device *device)
{
	size_t i = 0;

	while (i < op->work_count && op->works[i].device != device)
		i++;
	if (i == op->work_count) {
		op->works[op->work_count].operation = op;
		op->works[op->work_count++].device = device;
		op->works[i].report.device = device->ordinal;
	}
	return &op->works[i];
}

static void note_held(struct operation *op, struct work *w, const struct block *block)
{
	struct holding *held = &op->held;

	if (!held->region) {
		held->region = block->space->region;
		held->pid = ipc_export_holder_locked(block);
	}
	if (block->space->region == held->region)
		held->region_bytes += block->size;
	held->bytes += block->size;
	w->report.bytes_held += block->size;
}

static void count_listed(struct operation *op, struct work *w, const struct block *block)
{
	w->count++;
	atomic_fetch_add_explicit(&op->asker->total, block->size, memory_order_relaxed);
}

/* Why the program's own memory cannot be paused, or NULL. */
static const char *why_own(const struct block *block)
{
	return block->state == STAYPUT_ACTIVE ? mapping_held_locked(block) : NULL;
}

static void note_own(struct operation *op, struct work *w, const struct block *block)
{
	op->held.own_mappings++;
	op->held.own_bytes += block->size;
	op->held.own_why = why_own(block);
	w->report.bytes_held += block->size;
}

static void count_block(struct operation *op, struct block *block)
{
	struct work *w = work_of(op, block->space->device);

	if (block->leases > 0)
		note_held(op, w, block);
	else if (why_own(block))
		note_own(op, w, block);
	else
		count_listed(op, w, block);
}

static void list_block(struct operation *op, struct block *block)
{
	struct work *w = work_of(op, block->space->device);

	if (block->leases > 0 || why_own(block))
		return;
	w->blocks[w->count++] = block;
	if (block->state == STAYPUT_ACTIVE)
		block->paused_as = op->policy ? op->policy : block->space->policy;
	block->state =
		block->state == STAYPUT_ACTIVE ? STAYPUT_PAUSING : STAYPUT_RESUMING;
}

/* Gives each work the part of the list that its count asks for. */
static bool divide(struct operation *op)
{
	size_t total = 0;

	for (size_t i = 0; i < op->work_count; i++)
		total += op->works[i].count;
	op->blocks = calloc(total + 1, sizeof(struct block *));
	if (!op->blocks)
		return false;
	total = 0;
	for (size_t i = 0; i < op->work_count; i++) {
		op->works[i].blocks = op->blocks + total;
		total += op->works[i].count;
		op->works[i].count = 0;
	}
	return true;
}

static bool is_host(const struct block *block)
{
	return block->paused_as == STAYPUT_HOST;
}

static int in_order(const void *a, const void *b)
{
	const struct block *const *x = a, *const *y = b;

	if (is_host(*x) != is_host(*y))
		return is_host(*x) ? -1 : 1;
	return (*x)->base < (*y)->base ? -1 : (*x)->base > (*y)->base;
}

static void order(struct work *w)
{
	qsort(w->blocks, w->count, sizeof *w->blocks, in_order);
	while (w->host_count < w->count && is_host(w->blocks[w->host_count]))
		w->host_count++;
}

bool operation_collect(struct operation *op, int state)
{
	bool listed = false;

	op->works = calloc(DEVICE_MAX, sizeof *op->works);
	if (!op->works)
		return false;
	lock_take();
	mapping_wait_turn_locked();
	visit_all_locked(op, state, count_block);
	if (divide(op)) {
		visit_all_locked(op, state, list_block);
		listed = true;
	}
	lock_drop();
	if (!listed)
		op->work_count = 0;
	for (size_t i = 0; i < op->work_count; i++)
		order(&op->works[i]);
	return listed;
}

uint64_t operation_allocations(const struct block *block, uint64_t *bytes)
{
	uint64_t count = 0;

	*bytes = 0;
	if (block->only) {
		*bytes = block->only->size;
		return 1;
	}
	for (const struct segment *s = block->segments; s; s = s->next)
		if (s->owner) {
			*bytes += s->owner->size;
			count++;
		}
	return count;
}

static void move_counts_locked(struct block *block, bool paused)
{
	struct space *s = block->space;
	struct region *r = s->region;
	uint64_t bytes, count = operation_allocations(block, &bytes);
	/* Unsigned arithmetic wraps, so one sign serves both ways. */
	uint64_t sign = paused ? 1 : -1;

	s->bytes_paused += sign * bytes;
	r->count_paused += sign * count;
	s->bytes_active -= sign * bytes;
	r->count_active -= sign * count;
}

bool operation_leaves_paused(const struct operation *op, const struct block *block)
{
	return block->state == STAYPUT_RESUMING ? !op->resumed : !block->mapped;
}

void operation_publish(struct operation *op)
{
	lock_take();
	for (size_t i = 0; i < op->work_count; i++) {
		struct work *w = &op->works[i];

		for (size_t at = 0; at < w->count; at++) {
			struct block *b = w->blocks[at];
			bool was_paused = b->state == STAYPUT_RESUMING;
			bool is_paused = operation_leaves_paused(op, b);

			if (was_paused != is_paused)
				move_counts_locked(b, is_paused);
			b->generation += was_paused && !is_paused;
			b->state = is_paused ? STAYPUT_PAUSED : STAYPUT_ACTIVE;
		}
	}
	lock_notify();
	lock_drop();
}

int operation_check_supported(const struct operation *op)
{
	for (size_t i = 0; i < op->region_count; i++)
		if (op->regions[i]->unsupported)
			return error_set(STAYPUT_ERR_UNSUPPORTED,
				"region %s is native memory: its device has no virtual "
				"memory management",
				op->regions[i]->tag);
	return STAYPUT_OK;
}
