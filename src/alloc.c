/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "block.h"
#include "control.h"
#include "device.h"
#include "fork.h"
#include "lock.h"
#include "log.h"
#include "real.h"
#include "region.h"
#include "slab.h"
#include "span.h"
#include "stayput.h"
#include "table.h"

/* Addresses for a block of `size` in the space; reserves another span when all are full.
 */
static CUresult take_addresses(struct space *space, size_t size, struct block *block)
{
	struct span *span;
	CUresult err;

	block->size = size;
	block->space = space;
	lock_take();
	block->base = span_take_locked(space->spans, size, &block->span);
	lock_drop();
	if (block->base)
		return CUDA_SUCCESS;
	err = span_reserve(space->device, size, &span);
	if (err != CUDA_SUCCESS)
		return err;
	lock_take();
	span->next = space->spans;
	space->spans = span;
	block->base = span_take_locked(span, size, &block->span);
	lock_drop();
	/* Another thread may have filled the new span already. */
	return block->base ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void give_addresses(struct block *block)
{
	lock_take();
	span_give_locked(block->span, block->base, block->size);
	lock_drop();
}

static _Atomic uint64_t margin;

void alloc_set_margin(uint64_t bytes)
{
	atomic_store_explicit(&margin, bytes, memory_order_relaxed);
}

/* A device that does not say what is free is not held back. */
static bool keeps_margin(size_t size)
{
	uint64_t least = atomic_load_explicit(&margin, memory_order_relaxed);
	size_t free_bytes, total;

	if (least == 0 || driver()->cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS)
		return true;
	return least <= free_bytes && size <= free_bytes - least;
}

/* A new block of `size`, mapped, that nobody else knows yet. */
static CUresult make_block(struct space *space, size_t size, struct block **out)
{
	struct block *block;
	CUresult err;

	if (!keeps_margin(size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	block = calloc(1, sizeof *block);
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	err = take_addresses(space, size, block);
	if (err != CUDA_SUCCESS)
		goto free_record;
	err = block_map(block);
	if (err != CUDA_SUCCESS)
		goto give_addresses;
	block->state = STAYPUT_ACTIVE;
	*out = block;
	return CUDA_SUCCESS;

give_addresses:
	give_addresses(block);
free_record:
	free(block);
	return err;
}

CUresult alloc_destroy_block(struct block *block)
{
	CUresult err = block->mapped ? block_unmap(block) : CUDA_SUCCESS;

	/* Addresses under a mapping that would not go must not be handed out again. */
	if (err == CUDA_SUCCESS)
		give_addresses(block);
	free(block);
	return err;
}

/* Puts a finished record where others find it. */
static bool publish_locked(struct allocation *a)
{
	if (!device_note_context_locked(a->space->device, a->context))
		return false;
	if (!table_add_locked(a))
		return false;
	a->born = a->block->generation;
	region_count_locked(a, 1);
	return true;
}

static CUresult allocate_large(struct allocation *a)
{
	size_t granule = a->space->device->granule;
	size_t size = (a->size + granule - 1) / granule * granule;
	struct block *block;
	CUresult err = make_block(a->space, size, &block);
	bool published;

	if (err != CUDA_SUCCESS)
		return err;
	a->base = block->base;
	a->block = block;
	block->only = a;
	lock_take();
	published = publish_locked(a);
	if (published) {
		region_link_large_locked(block);
		span_note_block_locked(block->span, block);
	}
	lock_drop();
	if (published) {
		block_allow_peers(block);
		return CUDA_SUCCESS;
	}
	alloc_destroy_block(block);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* `segment` of `block` becomes the allocation's. */
static bool use_segment_locked(
	struct allocation *a, struct block *block, struct segment *segment)
{
	a->block = block;
	a->segment = segment;
	a->base = block->base + segment->offset;
	segment->owner = a;
	if (publish_locked(a))
		return true;
	slab_give_locked(block, segment);
	return false;
}

/* Takes a segment from the blocks at hand. */
static bool take_segment_locked(struct allocation *a)
{
	struct block *block;
	struct segment *segment = slab_take_locked(a->space, a->size, &block);

	return segment && use_segment_locked(a, block, segment);
}

/* Puts a new block where others find it, with the allocation in it: a block that nothing
 * lies in would never be given back. */
static bool share_locked(struct block *block, struct allocation *a)
{
	struct segment *segment;

	if (!slab_add_block_locked(block))
		return false;
	segment = slab_take_in_locked(block, a->size);
	if (segment && use_segment_locked(a, block, segment)) {
		span_note_block_locked(block->span, block);
		return true;
	}
	slab_remove_block_locked(block);
	return false;
}

/* Another block to share, a smaller one when the device is nearly full. */
static CUresult add_shared_block(struct allocation *a)
{
	size_t granule = a->space->device->granule, size, least;
	struct block *block;
	CUresult err;
	bool shared;

	lock_take();
	size = slab_block_size_locked(a->space, a->size);
	lock_drop();
	least = (a->size + granule - 1) / granule * granule;
	err = make_block(a->space, size, &block);
	if (err == CUDA_ERROR_OUT_OF_MEMORY && size > least)
		err = make_block(a->space, least, &block);
	if (err != CUDA_SUCCESS)
		return err;
	lock_take();
	shared = share_locked(block, a);
	lock_drop();
	if (shared) {
		block_allow_peers(block);
		return CUDA_SUCCESS;
	}
	alloc_destroy_block(block);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* True when the blocks at hand had room; else at least a->space is set, if there was
 * memory for it. */
static bool allocate_at_hand(
	struct allocation *a, const struct choice *choice, struct device *device)
{
	bool taken;

	fork_watch();
	lock_take();
	a->space = region_space_locked(choice, device);
	taken = a->space && a->size <= SLAB_LARGEST && take_segment_locked(a);
	lock_drop();
	return taken;
}

static CUresult allocate(
	struct allocation *a, const struct choice *choice, struct device *device)
{
	if (allocate_at_hand(a, choice, device))
		return CUDA_SUCCESS;
	if (!a->space)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return a->size > SLAB_LARGEST ? allocate_large(a) : add_shared_block(a);
}

CUresult alloc_allocate(CUdeviceptr *ptr, size_t size, const struct choice *choice,
	const struct place *place)
{
	CUresult err = CUDA_ERROR_OUT_OF_MEMORY;
	int saved = errno;
	struct allocation *a;

	if (!place->device->vmm)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (size > place->device->memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a = calloc(1, sizeof *a);
	if (a) {
		a->size = size;
		a->context = place->context;
		err = allocate(a, choice, place->device);
	}
	if (err == CUDA_SUCCESS) {
		*ptr = a->base;
		control_start();
	} else {
		free(a);
	}
	errno = saved;
	return err;
}

static void warn_unsupported(const struct choice *choice)
{
	static _Atomic bool told;

	if (!atomic_exchange(&told, true))
		log_line(LOG_WARN,
			"this device has no virtual memory management: region %s and "
			"others are native memory and cannot be paused",
			choice->region->tag);
}

/* A record that native memory freed behind our back has left at that address. */
static struct allocation *take_stale_locked(CUdeviceptr ptr)
{
	struct allocation *stale = table_find_locked(ptr);

	if (stale && !stale->block) {
		table_remove_locked(stale);
		region_count_locked(stale, -1);
		return stale;
	}
	return NULL;
}

/* Puts a record of native memory on `device` into the table. */
static void count(
	struct allocation *a, const struct choice *choice, struct device *device)
{
	const struct choice kept = {choice->region, STAYPUT_KEEP};
	struct allocation *stale;
	bool counted, unsupported = false;

	fork_watch();
	lock_take();
	stale = take_stale_locked(a->base);
	a->space = region_space_locked(&kept, device);
	counted = a->space && table_add_locked(a);
	if (counted) {
		region_count_locked(a, 1);
		if (a->ordered)
			device_note_context_locked(device, a->context);
		unsupported =
			!a->ordered && choice->policy != STAYPUT_KEEP && !device->vmm;
		choice->region->unsupported |= unsupported;
	}
	lock_drop();
	free(stale);
	if (!counted)
		free(a);
	if (unsupported)
		warn_unsupported(choice);
}

/* Of a pool, the memory may be on another device than the current one. */
static struct device *device_at(CUdeviceptr ptr)
{
	struct device *device;
	int ordinal;

	if (driver()->cuPointerGetAttribute(
		    &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) != CUDA_SUCCESS ||
		device_get(ordinal, &device) != CUDA_SUCCESS)
		return NULL;
	return device;
}

static void count_native(
	CUdeviceptr ptr, size_t size, const struct choice *choice, bool ordered)
{
	struct device *device;
	struct allocation *a;
	struct place place;
	int saved = errno;

	if (fork_is_child() || !driver_load() || device_current(&place) != CUDA_SUCCESS)
		return;
	device = ordered ? device_at(ptr) : place.device;
	a = device ? calloc(1, sizeof *a) : NULL;
	if (a) {
		*a = (struct allocation){.base = ptr,
			.size = size,
			.context = place.context,
			.ordered = ordered};
		count(a, choice, device);
	}
	control_start();
	errno = saved;
}

void alloc_count_native(CUdeviceptr ptr, size_t size, const struct choice *choice)
{
	count_native(ptr, size, choice, false);
}

void alloc_count_ordered(CUdeviceptr ptr, size_t size, const struct choice *choice)
{
	count_native(ptr, size, choice, true);
}
