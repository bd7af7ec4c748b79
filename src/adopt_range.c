/* SPDX-License-Identifier: Apache-2.0 */
/* Calls about addresses: a range may hold several mappings, adopted or not, and some of
 * those may be paused, which the driver knows nothing of. */
#include <errno.h>
#include <stdlib.h>

#include "adopt.h"
#include "backup.h"
#include "device.h"
#include "lock.h"
#include "mapping.h"
#include "real.h"
#include "region.h"
#include "stayput.h"
#include "token.h"

/* Takes a mapping that the driver has no more out of all lists. True when nothing refers
 * to its memory any more. */
static bool forget(struct mapping *m)
{
	struct mapping **at = &m->token->mappings;
	bool last;

	lock_take();
	region_count_locked(&m->allocation, -1);
	region_unlink_large_locked(&m->block);
	mapping_remove_locked(m);
	m->token->handle = adopt_handle(m->token);
	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	m->block.state = STAYPUT_FREEING;
	last = !m->token->refs && !m->token->mappings;
	lock_drop();
	return last;
}

/* What the program has unmapped goes, with its backup, and when no handle is left the
 * memory too. */
static void drop(struct mapping *m)
{
	struct token *t = m->token;
	bool last = forget(m);

	backup_drop(&m->block);
	free(m);
	if (last && adopt_end(t, driver()->cuMemRelease) != CUDA_SUCCESS)
		adopt_end(t, driver()->cuMemRelease);
}

/* Unmaps one mapping for the program. A resume that failed may have left a paused one
 * mapped. */
static CUresult unmap_one(struct mapping *m, typeof(&cuMemUnmap) real)
{
	CUresult err = CUDA_SUCCESS;

	if (mapping_is_paused(m) && m->block.mapped)
		err = block_unmap(&m->block);
	else if (!mapping_is_paused(m))
		err = real(m->block.base, m->block.size);
	if (err == CUDA_SUCCESS)
		drop(m);
	return err;
}

/* How a call goes on that is about a range of addresses. */
enum range_way {
	RANGE_OTHER, /* nothing adopted is in it whole: the driver's to answer */
	RANGE_WHOLE, /* to the driver as it is, and the records follow */
	RANGE_PARTS, /* some of it is paused: mapping by mapping */
};

static enum range_way choose_way(CUdeviceptr ptr, size_t size, struct run run)
{
	enum range_way way = RANGE_WHOLE;
	const struct block *last;

	if (run.first == run.end)
		return RANGE_OTHER;
	last = &mapping_at(run.end - 1)->block;
	/* The driver refuses a part of a mapping, and so it does where none is. */
	if (mapping_at(run.first)->block.base < ptr ||
		last->base + last->size - ptr > size)
		return RANGE_OTHER;
	for (size_t i = run.first; i < run.end; i++)
		if (mapping_is_paused(mapping_at(i)))
			way = RANGE_PARTS;
	return way;
}

/* A part of a range that is not adopted: from the end of one mapping to the next. */
struct gap {
	CUdeviceptr base;
	size_t size;
};

/* Before the mapping at `i`, or after the last one. */
static struct gap gap_before(CUdeviceptr ptr, size_t size, struct run run, size_t i)
{
	struct gap gap = {.base = ptr};
	CUdeviceptr end = ptr + size;

	if (i > run.first)
		gap.base = mapping_at(i - 1)->block.base + mapping_at(i - 1)->block.size;
	if (i < run.end)
		end = mapping_at(i)->block.base;
	gap.size = end - gap.base;
	return gap;
}

/* What is not adopted goes first: where nothing is mapped, all stays as it is. */
static CUresult unmap_parts(
	CUdeviceptr ptr, size_t size, struct run run, typeof(&cuMemUnmap) real)
{
	CUresult err = CUDA_SUCCESS;

	for (size_t i = run.first; i <= run.end && err == CUDA_SUCCESS; i++) {
		struct gap gap = gap_before(ptr, size, run, i);

		if (gap.size)
			err = real(gap.base, gap.size);
	}
	for (size_t n = run.end - run.first; n > 0 && err == CUDA_SUCCESS; n--)
		err = unmap_one(mapping_at(run.first), real);
	return err;
}

static CUresult unmap(CUdeviceptr ptr, size_t size, typeof(&cuMemUnmap) real)
{
	enum range_way way;
	struct run run;
	CUresult err;

	if (!mapping_take_range(ptr, size, &run))
		return CUDA_ERROR_NOT_PERMITTED;
	way = choose_way(ptr, size, run);
	if (way == RANGE_PARTS)
		err = unmap_parts(ptr, size, run, real);
	else
		err = real(ptr, size);
	if (way == RANGE_WHOLE && err == CUDA_SUCCESS)
		for (size_t n = run.end - run.first; n > 0; n--)
			drop(mapping_at(run.first));
	mapping_give_turn();
	return err;
}

CUresult adopt_unmap(CUdeviceptr ptr, size_t size, typeof(&cuMemUnmap) real)
{
	int saved = errno;
	CUresult err = unmap(ptr, size, real);

	errno = saved;
	return err;
}

static void note_access(struct run run, const CUmemAccessDesc *access, size_t count)
{
	lock_take();
	for (size_t i = run.first; i < run.end; i++)
		for (size_t at = 0; at < count; at++)
			mapping_note_access_locked(mapping_at(i), &access[at]);
	lock_drop();
}

/* Would the driver take it? Asked where nothing is mapped that it could refuse. */
static bool is_valid_access(const CUmemAccessDesc *access, size_t count)
{
	struct device *dev;

	for (size_t i = 0; access && i < count; i++) {
		const CUmemLocation *at = &access[i].location;
		int flags = access[i].flags;

		if (at->type != CU_MEM_LOCATION_TYPE_DEVICE ||
			device_get(at->id, &dev) != CUDA_SUCCESS)
			return false;
		if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
			flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
			flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return false;
	}
	return access && count;
}

static CUresult set_parts(CUdeviceptr ptr, size_t size, struct run run,
	const CUmemAccessDesc *access, size_t count, typeof(&cuMemSetAccess) real)
{
	CUresult err =
		is_valid_access(access, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (size_t i = run.first; i <= run.end && err == CUDA_SUCCESS; i++) {
		struct gap gap = gap_before(ptr, size, run, i);

		if (gap.size)
			err = real(gap.base, gap.size, access, count);
	}
	for (size_t i = run.first; i < run.end && err == CUDA_SUCCESS; i++)
		if (!mapping_is_paused(mapping_at(i)))
			err = real(mapping_at(i)->block.base, mapping_at(i)->block.size,
				access, count);
	return err;
}

CUresult adopt_set_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *access,
	size_t count, typeof(&cuMemSetAccess) real)
{
	int saved = errno;
	enum range_way way;
	struct run run;
	CUresult err;

	if (!mapping_take_range(ptr, size, &run))
		return CUDA_ERROR_NOT_PERMITTED;
	way = choose_way(ptr, size, run);
	if (way == RANGE_PARTS)
		err = set_parts(ptr, size, run, access, count, real);
	else
		err = real(ptr, size, access, count);
	if (way != RANGE_OTHER && err == CUDA_SUCCESS)
		note_access(run, access, count);
	mapping_give_turn();
	errno = saved;
	return err;
}

CUresult adopt_free_addresses(
	CUdeviceptr ptr, size_t size, typeof(&cuMemAddressFree) real)
{
	int saved = errno;
	CUresult err = CUDA_SUCCESS;
	struct run run;

	if (!mapping_take_range(ptr, size, &run))
		return CUDA_ERROR_NOT_PERMITTED;
	for (size_t i = run.first; i < run.end; i++)
		if (mapping_is_paused(mapping_at(i)))
			err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS)
		err = real(ptr, size);
	mapping_give_turn();
	errno = saved;
	return err;
}
