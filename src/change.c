/* SPDX-License-Identifier: Apache-2.0 */
#include "change.h"

#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "device.h"
#include "error.h"
#include "lock.h"
#include "log.h"
#include "operation.h"
#include "region.h"

enum { LISTENERS_MAX = 16 };

struct listener {
	stayput_change_fn *fn;
	void *user;
};

/* Under the lock. */
static struct listener listeners[LISTENERS_MAX];
static size_t listener_count;

static __thread bool telling;

/* The ranges of an operation, region by region. */
struct range_list {
	struct stayput_range *ranges;
	size_t *ends; /* of each region of the operation */
	bool gone;    /* the listeners think so */
};

static size_t find_locked(stayput_change_fn *fn, const void *user)
{
	size_t i = 0;

	while (i < listener_count && (listeners[i].fn != fn || listeners[i].user != user))
		i++;
	return i;
}

int change_add(stayput_change_fn *fn, void *user)
{
	bool full;

	lock_take();
	full = find_locked(fn, user) == LISTENERS_MAX;
	if (!full && find_locked(fn, user) == listener_count)
		listeners[listener_count++] = (struct listener){fn, user};
	lock_drop();
	return full ? error_set(STAYPUT_ERR_HOST_MEMORY,
			      "there are %d callbacks already, and room for no more",
			      LISTENERS_MAX)
		    : STAYPUT_OK;
}

bool change_remove(stayput_change_fn *fn, void *user)
{
	size_t at;
	bool found;

	lock_take();
	at = find_locked(fn, user);
	found = at < listener_count;
	if (found) {
		listener_count--;
		memmove(&listeners[at], &listeners[at + 1],
			(listener_count - at) * sizeof listeners[0]);
	}
	lock_drop();
	return found;
}

bool change_is_telling(void)
{
	return telling;
}

static size_t copy_listeners(struct listener *copy)
{
	size_t count;

	lock_take();
	count = listener_count;
	memcpy(copy, listeners, sizeof listeners);
	lock_drop();
	return count;
}

void change_close(struct operation *op)
{
	if (!op->changes)
		return;
	free(op->changes->ranges);
	free(op->changes->ends);
	free(op->changes);
	op->changes = NULL;
}

int change_open(struct operation *op, bool gone)
{
	struct listener copy[LISTENERS_MAX];
	struct range_list *list;
	size_t count = 0;

	if (copy_listeners(copy) == 0)
		return STAYPUT_OK;
	for (size_t i = 0; i < op->work_count; i++)
		count += op->works[i].count;
	list = calloc(1, sizeof *list);
	if (!list)
		return operation_no_memory();
	list->ranges = calloc(count + 1, sizeof *list->ranges);
	list->ends = calloc(op->region_count + 1, sizeof *list->ends);
	list->gone = gone;
	op->changes = list;
	if (list->ranges && list->ends)
		return STAYPUT_OK;
	change_close(op);
	return operation_no_memory();
}

typedef bool choose(const struct operation *op, const struct block *block);

static bool every_block(const struct operation *op, const struct block *block)
{
	(void)op;
	(void)block;
	return true;
}

static bool has_memory(const struct operation *op, const struct block *block)
{
	return !operation_leaves_paused(op, block);
}

static size_t add_ranges(const struct operation *op, const struct region *region,
	choose *chosen, struct stayput_range *ranges)
{
	size_t count = 0;

	for (size_t i = 0; i < op->work_count; i++)
		for (size_t at = 0; at < op->works[i].count; at++) {
			const struct block *b = op->works[i].blocks[at];

			if (b->space->region == region && chosen(op, b))
				ranges[count++] = (struct stayput_range){
					.base = b->base,
					.size = b->size,
					.device = op->works[i].device->ordinal,
				};
		}
	return count;
}

static void note(struct operation *op, choose *chosen)
{
	struct range_list *list = op->changes;
	size_t end = 0;

	for (size_t i = 0; i < op->region_count; i++) {
		end += add_ranges(op, op->regions[i], chosen, list->ranges + end);
		list->ends[i] = end;
	}
}

static void tell(const struct operation *op, int change)
{
	struct listener copy[LISTENERS_MAX];
	size_t count = copy_listeners(copy);
	const struct range_list *list = op->changes;

	telling = true;
	for (size_t l = 0; l < count; l++) {
		size_t begin = 0;

		for (size_t i = 0; i < op->region_count; begin = list->ends[i++])
			if (begin < list->ends[i])
				copy[l].fn(change, op->regions[i]->tag,
					list->ranges + begin, list->ends[i] - begin,
					copy[l].user);
	}
	telling = false;
}

void change_tell_releasing(struct operation *op)
{
	if (!op->changes)
		return;
	note(op, every_block);
	op->changes->gone = true;
	tell(op, STAYPUT_RELEASING);
}

void change_note_restored(struct operation *op)
{
	if (op->changes && op->changes->gone)
		note(op, has_memory);
}

void change_tell_restored(struct operation *op)
{
	if (op->changes && op->changes->gone)
		tell(op, STAYPUT_RESTORED);
}

static int is_nccl(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	return strstr(info->dlpi_name, "libnccl.so") != NULL;
}

void change_warn_of_nccl(const char *tag)
{
	static _Atomic bool told;
	const char *setting = getenv("NCCL_GRAPH_REGISTER");

	if ((setting && strcmp(setting, "0") == 0) || atomic_load(&told) ||
		!dl_iterate_phdr(is_nccl, NULL) || atomic_exchange(&told, true))
		return;
	log_line(LOG_WARN,
		"region %s is paused while NCCL is loaded and NCCL_GRAPH_REGISTER is not "
		"0: "
		"a CUDA graph with NCCL calls may hold registrations of its memory, "
		"which "
		"lead to the old memory after a resume; set NCCL_GRAPH_REGISTER=0",
		tag);
}
