/* SPDX-License-Identifier: Apache-2.0 */
#include "region.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "config.h"
#include "error.h"
#include "fork.h"
#include "lock.h"
#include "rules.h"
#include "silence.h"
#include "table.h"
#include "token.h"

/* Pushes that need no heap. A thread that ends inside deeper ones leaks their record. Few,
 * since libraries that are opened late share little memory for threads' variables. */
enum { STACK_INLINE = 4 };

/* A choice without a region is a native push. */
static __thread struct choice inline_stack[STACK_INLINE];
static __thread struct choice *deep_stack;
static __thread size_t depth;

static struct region *first_region;
static struct region *last_region;

int region_policy(const char *tag, int asked)
{
	const struct config *c = config();

	if (asked == STAYPUT_POLICY_DEFAULT)
		asked = STAYPUT_HOST;
	if (!c->rules)
		return asked;
	for (size_t i = 0; i < c->rule_count; i++) {
		const struct config_rule *rule = &c->rules[i];

		if (strcmp(rule->tag, "*") == 0 || strcmp(rule->tag, tag) == 0)
			return rule->policy ? rule->policy : asked;
	}
	return STAYPUT_KEEP;
}

struct region *region_find_locked(const char *tag)
{
	for (struct region *r = first_region; r; r = r->next)
		if (strcmp(r->tag, tag) == 0)
			return r;
	return NULL;
}

struct region *region_first_locked(void)
{
	return first_region;
}

static struct region *add_locked(const char *tag)
{
	struct region *r = calloc(1, sizeof *r);

	if (!r)
		return NULL;
	strcpy(r->tag, tag);
	if (last_region)
		last_region->next = r;
	else
		first_region = r;
	last_region = r;
	return r;
}

static struct region *find_or_add(const char *tag)
{
	struct region *r;

	lock_take();
	r = region_find_locked(tag);
	if (!r)
		r = add_locked(tag);
	lock_drop();
	return r;
}

/* What the environment chooses: its rules by index, then the default. */
static bool choose_by_environment(const struct request *request, struct choice *choice)
{
	static _Atomic(struct region *) known[CONFIG_MATCHES + 1];
	const struct config *c = config();
	int match = c->match_count > 0 ? rules_match(request) : -1;
	const char *tag = match >= 0 ? c->matches[match].tag : c->default_tag;
	size_t index = match >= 0 ? (size_t)match : CONFIG_MATCHES;
	struct region *r;

	if (!tag[0])
		return false;
	r = atomic_load_explicit(&known[index], memory_order_acquire);
	if (!r) {
		fork_watch();
		r = find_or_add(tag);
		atomic_store_explicit(&known[index], r, memory_order_release);
	}
	*choice = (struct choice){r, region_policy(tag, STAYPUT_POLICY_DEFAULT)};
	return r != NULL;
}

static struct choice *entry(size_t index)
{
	return index < STACK_INLINE ? &inline_stack[index]
				    : &deep_stack[index - STACK_INLINE];
}

/* Weak: compat_tms.c has another one. */
__attribute__((weak)) bool region_choose_compat(struct choice *choice)
{
	(void)choice;
	return false;
}

bool region_choose(const struct request *request, struct choice *choice)
{
	if (depth > 0)
		*choice = *entry(depth - 1);
	else if (!region_choose_compat(choice) && !choose_by_environment(request, choice))
		return false;
	return choice->region && !rules_exclude(request);
}

static int push(struct choice choice)
{
	if (depth >= STACK_INLINE) {
		size_t deeper = depth - STACK_INLINE + 1;
		struct choice *grown = realloc(deep_stack, deeper * sizeof *grown);

		if (!grown)
			return error_set(STAYPUT_ERR_HOST_MEMORY,
				"no memory to nest regions %zu deep", depth + 1);
		deep_stack = grown;
	}
	*entry(depth++) = choice;
	return STAYPUT_OK;
}

int region_prepare(const char *tag, int policy, struct choice *choice)
{
	fork_watch();
	if (policy < STAYPUT_POLICY_DEFAULT || policy > STAYPUT_KEEP)
		return error_set(STAYPUT_ERR_INVALID,
			"policy %d is not one of STAYPUT_POLICY_DEFAULT (0) to "
			"STAYPUT_KEEP (4)",
			policy);
	choice->region = find_or_add(tag);
	if (!choice->region)
		return error_set(STAYPUT_ERR_HOST_MEMORY,
			"no memory for the record of region %s", tag);
	choice->policy = region_policy(tag, policy);
	silence_note_push();
	return STAYPUT_OK;
}

int region_push(const char *tag, int policy)
{
	struct choice choice;
	int err = region_prepare(tag, policy, &choice);

	return err == STAYPUT_OK ? push(choice) : err;
}

int region_push_native(void)
{
	return push((struct choice){.region = NULL, .policy = STAYPUT_KEEP});
}

int region_pop(void)
{
	if (depth == 0)
		return error_set(
			STAYPUT_ERR_INVALID, "pop without a push in this thread");
	depth--;
	if (depth == STACK_INLINE) {
		free(deep_stack);
		deep_stack = NULL;
	}
	return STAYPUT_OK;
}

struct space *region_space_locked(const struct choice *choice, struct device *device)
{
	struct region *r = choice->region;
	struct space *s;

	for (s = r->spaces; s; s = s->next)
		if (s->device == device && s->policy == choice->policy)
			return s;
	s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	*s = (struct space){.region = r,
		.device = device,
		.policy = choice->policy,
		.next = r->spaces};
	r->spaces = s;
	return s;
}

void region_link_large_locked(struct block *block)
{
	struct space *s = block->space;

	block->prev = NULL;
	block->next = s->large;
	if (block->next)
		block->next->prev = block;
	s->large = block;
}

void region_unlink_large_locked(struct block *block)
{
	if (block->prev)
		block->prev->next = block->next;
	else
		block->space->large = block->next;
	if (block->next)
		block->next->prev = block->prev;
}

void region_count_locked(const struct allocation *a, int sign)
{
	struct space *s = a->space;
	struct region *r = s->region;
	uint64_t *bytes = &s->bytes_kept, *count = &r->count_kept;

	if (a->ordered) {
		bytes = &r->bytes_ordered;
		count = &r->count_ordered;
		s->bytes_ordered += sign * (int64_t)a->size;
		s->uses_pools = true;
	} else if (a->block && a->block->state == STAYPUT_PAUSED) {
		bytes = &s->bytes_paused;
		count = &r->count_paused;
	} else if (a->block) {
		bytes = &s->bytes_active;
		count = &r->count_active;
	}
	*bytes += sign * (int64_t)a->size;
	*count += sign;
	r->was_used = true;
	silence_note_call(SILENCE_SMALL);
	fork_note_use();
}

static void add_blocks(const struct block *list, struct stayput_region_info *info)
{
	for (const struct block *b = list; b; b = b->next) {
		info->mappings++;
		info->bytes_device += b->state == STAYPUT_PAUSED ? 0 : b->size;
		info->bytes_backup += b->backup ? b->size : 0;
	}
}

void region_add_space_locked(const struct space *s, struct stayput_region_info *info)
{
	info->bytes_active += s->bytes_active;
	info->bytes_paused += s->bytes_paused;
	info->bytes_kept += s->bytes_kept;
	info->bytes_device += token_idle_bytes_locked(s);
	add_blocks(s->large, info);
	add_blocks(s->shared, info);
}

static int state_of(const struct region *r)
{
	if (r->count_paused == 0)
		return STAYPUT_ACTIVE;
	return r->count_active == 0 ? STAYPUT_PAUSED : STAYPUT_PARTLY;
}

void region_fill_info_locked(
	const struct region *region, struct stayput_region_info *info)
{
	*info = (struct stayput_region_info){
		.struct_size = sizeof *info,
		.state = state_of(region),
		.count_active = region->count_active,
		.count_paused = region->count_paused,
		.count_kept = region->count_kept,
		.bytes_stream_ordered = region->bytes_ordered,
		.count_stream_ordered = region->count_ordered,
		.bytes_foreign_vmm = region->bytes_foreign,
		.count_foreign_vmm = region->count_foreign,
	};
	strcpy(info->tag, region->tag);
	for (const struct space *s = region->spaces; s; s = s->next)
		region_add_space_locked(s, info);
}
