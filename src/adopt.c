/* SPDX-License-Identifier: Apache-2.0 */
#include "adopt.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "backup.h"
#include "change.h"
#include "device.h"
#include "fork.h"
#include "lock.h"
#include "log.h"
#include "mapping.h"
#include "real.h"
#include "region.h"
#include "stayput.h"
#include "token.h"

CUmemGenericAllocationHandle adopt_handle(const struct token *t)
{
	if (!t->mappings)
		return t->handle;
	return mapping_is_paused(t->mappings) ? 0 : t->mappings->block.handle;
}

static bool may_adopt(size_t size, const CUmemAllocationProp *prop, struct place *place)
{
	return !fork_is_child() && driver_load() &&
	       prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       prop->allocFlags.usage == 0 && device_current(place) == CUDA_SUCCESS &&
	       place->device->ordinal == prop->location.id && place->device->vmm &&
	       size % place->device->granule == 0;
}

bool adopt_created(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, const struct choice *choice)
{
	int saved = errno;
	struct place place;
	struct token *t = may_adopt(size, prop, &place) ? calloc(1, sizeof *t) : NULL;
	bool added = false;

	if (t) {
		*t = (struct token){.handle = *handle,
			.size = size,
			.prop = *prop,
			.choice = *choice,
			.device = place.device,
			.context = place.context};
		fork_watch();
		lock_take();
		added = device_note_context_locked(t->device, t->context) &&
			region_space_locked(choice, t->device) && token_add_locked(t);
		lock_drop();
		if (added) {
			fork_note_use();
			*handle = t->name;
		} else {
			free(t);
		}
	}
	errno = saved;
	return added;
}

CUresult adopt_end(struct token *t, typeof(&cuMemRelease) real)
{
	CUresult err = t->handle ? real(t->handle) : CUDA_SUCCESS;

	if (err != CUDA_SUCCESS)
		return err;
	lock_take();
	token_remove_locked(t);
	lock_drop();
	free(t);
	return CUDA_SUCCESS;
}

CUresult adopt_release(CUmemGenericAllocationHandle name, typeof(&cuMemRelease) real)
{
	CUresult err = CUDA_SUCCESS;
	int saved = errno;
	bool took, last;
	struct token *t;
	struct run none;

	lock_take();
	took = mapping_take_turn_locked(name, 0, 0, &none, &t);
	last = took && t && --t->refs == 0 && !t->mappings;
	lock_drop();
	if (!took)
		return CUDA_ERROR_NOT_PERMITTED;
	if (!t)
		err = CUDA_ERROR_INVALID_VALUE;
	else if (last)
		err = adopt_end(t, real);
	lock_take();
	if (t && err != CUDA_SUCCESS)
		t->refs = 1;
	mapping_give_turn_locked();
	lock_drop();
	errno = saved;
	return err;
}

/* Memory for a token whose own a pause has released, before it was unmapped. */
static CUresult renew(struct token *t)
{
	if (t->handle)
		return CUDA_SUCCESS;
	log_line(LOG_WARN,
		"%zu bytes that were unmapped while paused are used again: their "
		"contents are lost",
		t->size);
	return driver()->cuMemCreate(&t->handle, t->size, &t->prop, 0);
}

/* May the token be mapped there now? */
static CUresult check_map_locked(const struct token *t, struct run run)
{
	if (!t)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = run.first; i < run.end; i++)
		if (mapping_is_paused(mapping_at(i)))
			return CUDA_ERROR_INVALID_VALUE;
	if (t->mappings && mapping_is_paused(t->mappings))
		return CUDA_ERROR_ILLEGAL_STATE;
	return mapping_make_room_locked() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void add_mapping_locked(struct mapping *m, struct token *t, CUdeviceptr ptr)
{
	struct space *space = region_space_locked(&t->choice, t->device);

	m->block = (struct block){.base = ptr,
		.size = t->size,
		.space = space,
		.handle = adopt_handle(t),
		.mapped = true,
		.state = STAYPUT_ACTIVE,
		.mapping = m,
		.only = &m->allocation};
	m->allocation = (struct allocation){.base = ptr,
		.size = t->size,
		.space = space,
		.block = &m->block,
		.context = t->context};
	m->token = t;
	m->next = t->mappings;
	t->mappings = m;
	mapping_insert_locked(m);
	region_link_large_locked(&m->block);
	region_count_locked(&m->allocation, 1);
}

static CUresult map(struct mapping *m, CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle name, unsigned long long flags,
	typeof(&cuMemMap) real)
{
	CUmemGenericAllocationHandle handle;
	struct token *t;
	struct run run;
	CUresult err;
	bool took;

	lock_take();
	took = mapping_take_turn_locked(name, ptr, size, &run, &t);
	err = took ? check_map_locked(t, run) : CUDA_ERROR_NOT_PERMITTED;
	lock_drop();
	if (!took)
		return err;
	if (err == CUDA_SUCCESS && !t->mappings)
		err = renew(t);
	if (err != CUDA_SUCCESS)
		goto give_turn;
	handle = adopt_handle(t);
	err = real(ptr, size, offset, handle, flags);
	lock_take();
	if (err == CUDA_SUCCESS && (size != t->size || offset))
		t->shares++;
	else if (err == CUDA_SUCCESS)
		add_mapping_locked(m, t, ptr);
	lock_drop();
give_turn:
	mapping_give_turn();
	return err;
}

CUresult adopt_map(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle name, unsigned long long flags,
	typeof(&cuMemMap) real)
{
	int saved = errno;
	struct mapping *m = calloc(1, sizeof *m);
	CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

	if (m)
		err = map(m, ptr, size, offset, name, flags, real);
	if (err != CUDA_SUCCESS || !m->token)
		free(m);
	errno = saved;
	return err;
}

CUresult adopt_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle name)
{
	const struct token *t;

	lock_take();
	t = token_find_locked(name);
	if (t && prop)
		*prop = t->prop;
	lock_drop();
	return t && prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With the turn: the driver's handle for a token, which has one again if need be. */
static CUresult find_handle(struct token *t, CUmemGenericAllocationHandle *handle)
{
	CUresult err = CUDA_SUCCESS;

	if (!t)
		return CUDA_ERROR_INVALID_VALUE;
	if (!t->mappings)
		err = renew(t);
	else if (mapping_is_paused(t->mappings))
		err = CUDA_ERROR_ILLEGAL_STATE;
	if (err == CUDA_SUCCESS)
		*handle = adopt_handle(t);
	return err;
}

CUresult adopt_share(
	CUmemGenericAllocationHandle name, CUmemGenericAllocationHandle *handle)
{
	CUresult err = CUDA_ERROR_ILLEGAL_STATE;
	int saved = errno;
	struct token *t;
	struct run none;
	bool took;

	lock_take();
	took = mapping_take_turn_locked(name, 0, 0, &none, &t);
	lock_drop();
	if (!took)
		return err;
	err = find_handle(t, handle);
	lock_take();
	if (err == CUDA_SUCCESS)
		t->shares++;
	mapping_give_turn_locked();
	lock_drop();
	errno = saved;
	return err;
}

void adopt_unshare(CUmemGenericAllocationHandle name)
{
	struct token *t;

	lock_take();
	t = token_find_locked(name);
	if (t && t->shares)
		t->shares--;
	lock_drop();
}

static void count_shares(CUdeviceptr ptr, size_t size, int sign)
{
	struct run run;

	lock_take();
	run = mapping_settle_locked(ptr, size);
	for (size_t i = run.first; i < run.end; i++)
		if (mapping_at(i)->block.state == STAYPUT_ACTIVE)
			mapping_at(i)->token->shares += sign;
	lock_drop();
}

void adopt_share_range(CUdeviceptr ptr, size_t size)
{
	count_shares(ptr, size, 1);
}

void adopt_unshare_range(CUdeviceptr ptr, size_t size)
{
	count_shares(ptr, size, -1);
}

bool adopt_get_access(
	unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	const struct mapping *m;
	struct run run;
	bool paused;

	lock_take();
	run = mapping_settle_locked(ptr, 1);
	m = run.first < run.end ? mapping_at(run.first) : NULL;
	paused = m && mapping_is_paused(m);
	if (paused)
		*flags = mapping_flags(m, location);
	lock_drop();
	return paused;
}

bool adopt_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr ptr)
{
	struct mapping *m;

	lock_take();
	m = mapping_find_locked(ptr);
	if (m) {
		m->token->refs++;
		*handle = m->token->name;
	}
	lock_drop();
	return m != NULL;
}

bool adopt_paused_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size)
{
	const struct mapping *m;
	bool paused;

	lock_take();
	m = mapping_find_locked(ptr);
	paused = m && m->block.state != STAYPUT_ACTIVE;
	if (paused) {
		*base = m->block.base;
		*size = m->block.size;
	}
	lock_drop();
	return paused;
}

bool adopt_any_paused(CUdeviceptr ptr, size_t size)
{
	struct run run;
	bool found = false;

	lock_take();
	run = mapping_settle_locked(ptr, size);
	for (size_t i = run.first; i < run.end; i++)
		found = found || mapping_is_paused(mapping_at(i));
	lock_drop();
	return found;
}

/* Nobody pauses or resumes it meanwhile. */
static void forget_backup(struct mapping *m)
{
	if (mapping_is_paused(m))
		m->block.paused_as = STAYPUT_DISCARD;
	backup_drop(&m->block);
}

void adopt_reset(const struct device *dev)
{
	struct run all;

	if (!mapping_any() || !mapping_take_range(0, SIZE_MAX, &all))
		return;
	for (size_t i = all.first; i < all.end; i++)
		if (mapping_at(i)->token->device == dev)
			forget_backup(mapping_at(i));
	mapping_give_turn();
}
