/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuMemAlloc() and kin. Native memory has a window of addresses of its own. Allocations
 * under a granule share one, as they do on a GPU, so that many small ones cost little.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ledger.h"

enum { SLOT = 512, SLOTS = GRANULE / SLOT };

/* What a block of native addresses is backed by. */
struct block {
	CUdeviceptr base;
	size_t size;
	struct physical *phys;
	struct CUctx_st *ctx;
	enum range_kind kind;
	unsigned live; /* allocations in it */
	bool is_shared;
	unsigned char taken[SLOTS]; /* of a shared one */
};

static struct index blocks;
static CUdeviceptr window, window_end, next_address;

bool native_is_window(CUdeviceptr at)
{
	return window && at >= window && at < window_end;
}

static bool open_window_locked(void)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	for (size_t size = (size_t)1 << 38; !window && size >= (size_t)1 << 32;
		size /= 2) {
		void *at = mmap(NULL, size, PROT_NONE, flags, -1, 0);

		if (at == MAP_FAILED)
			continue;
		window = ((CUdeviceptr)at + GRANULE - 1) & ~(CUdeviceptr)(GRANULE - 1);
		window_end = (CUdeviceptr)at + size;
		next_address = window;
	}
	return window != 0;
}

static size_t round_up(size_t size, size_t to)
{
	return (size + to - 1) / to * to;
}

/* The end of what is in the way of [at, at + size), or `at`: blocks, and ranges that were
 * opened by IPC, which have none. */
static CUdeviceptr past_locked(const struct index *index, CUdeviceptr at, size_t size)
{
	size_t i = index_after(index, at);

	if (i == index->count || index->items[i]->base >= at + size)
		return at;
	return round_up(index->items[i]->base + index->items[i]->size, GRANULE);
}

/* The first gap from `from` on. */
static CUdeviceptr gap_locked(CUdeviceptr from, size_t size)
{
	CUdeviceptr at = from, next = from;

	do {
		at = next;
		if (at + size > window_end)
			return 0;
		next = past_locked(&space_ranges, past_locked(&blocks, at, size), size);
	} while (next != at);
	return at;
}

/* Goes round the window, so that an address just freed does not come back at once. */
CUdeviceptr native_window_locked(size_t size)
{
	CUdeviceptr at;

	if (!open_window_locked() || size > window_end - window)
		return 0;
	at = gap_locked(next_address, size);
	if (!at)
		at = gap_locked(window, size);
	if (at)
		next_address = at + size;
	return at;
}

static CUresult new_block_locked(
	struct CUctx_st *ctx, size_t size, enum range_kind kind, struct block **made)
{
	struct block *block = calloc(1, sizeof *block);
	CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

	if (!block)
		return err;
	block->size = round_up(size, GRANULE);
	block->ctx = ctx;
	block->kind = kind;
	block->base = native_window_locked(block->size);
	if (!block->base)
		goto free_block;
	err = physical_create_locked(ctx->device, block->size, &block->phys);
	if (err != CUDA_SUCCESS)
		goto free_block;
	err = CUDA_ERROR_OUT_OF_MEMORY;
	if (!index_insert(&blocks, (struct extent *)block))
		goto free_physical;
	block->phys->map_refs = 1;
	*made = block;
	return CUDA_SUCCESS;

free_physical:
	physical_settle_locked(block->phys);
free_block:
	free(block);
	return err;
}

static void free_block_locked(struct block *block)
{
	index_remove(&blocks, (struct extent *)block);
	block->phys->map_refs--;
	physical_settle_locked(block->phys);
	free(block);
}

/* The first slot of `n` free ones in a row, or SLOTS. */
static size_t free_slots(const struct block *block, size_t n)
{
	size_t run = 0;

	for (size_t i = 0; i < SLOTS; i++) {
		run = block->taken[i] ? 0 : run + 1;
		if (run == n)
			return i + 1 - n;
	}
	return SLOTS;
}

static CUresult find_shared_locked(struct CUctx_st *ctx, size_t slots,
	enum range_kind kind, struct block **found, size_t *slot)
{
	CUresult err;

	for (size_t i = 0; i < blocks.count; i++) {
		struct block *block = (struct block *)blocks.items[i];

		if (!block->is_shared || block->ctx != ctx || block->kind != kind)
			continue;
		*slot = free_slots(block, slots);
		*found = block;
		if (*slot < SLOTS)
			return CUDA_SUCCESS;
	}
	err = new_block_locked(ctx, GRANULE, kind, found);
	if (err != CUDA_SUCCESS)
		return err;
	(*found)->is_shared = true;
	*slot = 0;
	return CUDA_SUCCESS;
}

CUresult native_place_locked(
	struct CUctx_st *ctx, size_t size, enum range_kind kind, struct range **made)
{
	size_t slot = 0, slots = (size + SLOT - 1) / SLOT;
	struct range *range = calloc(1, sizeof *range);
	struct block *block;
	CUresult err;

	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (size > ledger_total(ctx->device))
		err = CUDA_ERROR_OUT_OF_MEMORY;
	else if (size < GRANULE / 2)
		err = find_shared_locked(ctx, slots, kind, &block, &slot);
	else
		err = new_block_locked(ctx, size, kind, &block);
	if (err != CUDA_SUCCESS)
		goto free_range;
	*range = (struct range){.base = block->base + slot * SLOT,
		.size = size,
		.kind = kind,
		.phys = block->phys,
		.offset = slot * SLOT,
		.ctx = ctx,
		.id = fake_next_id()};
	err = CUDA_ERROR_OUT_OF_MEMORY;
	if (!index_insert(&space_ranges, (struct extent *)range))
		goto free_block;
	if (block->is_shared)
		memset(block->taken + slot, 1, slots);
	block->live++;
	*made = range;
	return CUDA_SUCCESS;

free_block:
	if (!block->live)
		free_block_locked(block);
free_range:
	free(range);
	return err;
}

void native_remove_locked(struct range *range)
{
	struct block *block = (struct block *)index_find(&blocks, range->base);

	index_remove(&space_ranges, (struct extent *)range);
	if (range->kind == RANGE_MANAGED || range->kind == RANGE_OPENED) {
		range->phys->map_refs--;
		physical_settle_locked(range->phys);
	} else {
		if (block->is_shared)
			memset(block->taken + range->offset / SLOT, 0,
				(range->size + SLOT - 1) / SLOT);
		if (--block->live == 0)
			free_block_locked(block);
	}
	free(range);
}

void native_remove_all_locked(const struct CUctx_st *ctx)
{
	size_t i = 0;

	while (i < space_ranges.count) {
		struct range *range = (struct range *)space_ranges.items[i];

		if (range->kind == RANGE_MAPPED || range->ctx != ctx)
			i++;
		else if (range->kind == RANGE_ASYNC)
			pool_give_back_locked(range);
		else
			native_remove_locked(range);
	}
}

static CUresult allocate(CUdeviceptr *ptr, size_t size)
{
	struct range *range;
	CUresult err;

	if (!ptr || !size)
		return CUDA_ERROR_INVALID_VALUE;
	err = capture_allow_unsafe();
	if (err != CUDA_SUCCESS)
		return err;
	fake_lock();
	err = native_place_locked(context_current(), size, RANGE_NATIVE, &range);
	*ptr = err == CUDA_SUCCESS ? range->base : 0;
	fake_unlock();
	return err;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : allocate(ptr, size);
	return done(__func__, err, "%#llx, %zu", err ? 0 : *ptr, size);
}

static CUresult allocate_pitch(
	CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element)
{
	size_t padded, size;
	CUresult err;

	if (!pitch || !width || !height ||
		(element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_add_overflow(width, SLOT - 1, &padded))
		return CUDA_ERROR_OUT_OF_MEMORY;
	padded = padded / SLOT * SLOT;
	if (__builtin_mul_overflow(padded, height, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	err = allocate(ptr, size);
	if (err == CUDA_SUCCESS)
		*pitch = padded;
	return err;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width,
	size_t height, unsigned int element)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : allocate_pitch(ptr, pitch, width, height, element);
	return done(__func__, err, "%#llx, %zu, %zu", err ? 0 : *ptr, width, height);
}

static bool is_freeable_locked(CUdeviceptr ptr, struct range **range)
{
	*range = space_find_locked(ptr);
	return *range && (*range)->base == ptr && (*range)->kind != RANGE_MAPPED &&
	       (*range)->kind != RANGE_OPENED;
}

/* Waits for all work of the context, which is why it may not be made beside a capture. */
static CUresult release(CUdeviceptr ptr)
{
	struct CUctx_st *ctx = NULL;
	struct range *range;
	CUresult err;

	err = capture_allow_unsafe();
	if (err != CUDA_SUCCESS || !ptr)
		return err;
	fake_lock();
	if (is_freeable_locked(ptr, &range))
		ctx = range->ctx;
	fake_unlock();
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	err = stream_wait_context(ctx);
	if (err != CUDA_SUCCESS)
		return err;
	fake_lock();
	if (!is_freeable_locked(ptr, &range))
		err = CUDA_ERROR_INVALID_VALUE;
	else if (range->kind == RANGE_ASYNC)
		pool_give_back_locked(range);
	else
		native_remove_locked(range);
	fake_unlock();
	return err;
}

API CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : release(ptr), "%#llx", ptr);
}

/* Managed memory is plain host memory that device work may use too. */
static CUresult allocate_managed_locked(CUdeviceptr *ptr, size_t size)
{
	size_t mapped = round_up(size, GRANULE);
	struct CUctx_st *ctx = context_current();
	struct range *range = calloc(1, sizeof *range);
	void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct physical *phys = NULL;

	if (range && at != MAP_FAILED)
		phys = physical_wrap_locked(ctx->device, at, mapped);
	if (!phys)
		goto fail;
	*range = (struct range){.base = (CUdeviceptr)at,
		.size = size,
		.kind = RANGE_MANAGED,
		.phys = phys,
		.ctx = ctx,
		.id = fake_next_id()};
	phys->map_refs = 1;
	if (index_insert(&space_ranges, (struct extent *)range)) {
		*ptr = range->base;
		return CUDA_SUCCESS;
	}
	free(phys->touched);
	free(phys);
fail:
	free(range);
	if (at != MAP_FAILED)
		munmap(at, mapped);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_managed(CUdeviceptr *ptr, size_t size, unsigned flags)
{
	CUresult err;

	if (!ptr || !size ||
		(flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
			flags != CU_MEM_ATTACH_SINGLE))
		return CUDA_ERROR_INVALID_VALUE;
	err = capture_allow_unsafe();
	if (err != CUDA_SUCCESS)
		return err;
	fake_lock();
	err = allocate_managed_locked(ptr, size);
	fake_unlock();
	return err;
}

API CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : allocate_managed(ptr, size, flags);
	return done(__func__, err, "%#llx, %zu", err ? 0 : *ptr, size);
}

static CUresult memory_info(size_t *free_bytes, size_t *total)
{
	int device = context_current()->device;
	size_t used;

	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	*total = ledger_total(device);
	used = ledger_used(device);
	fake_unlock();
	*free_bytes = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : memory_info(free_bytes, total);
	return done(__func__, err, "%zu of %zu free", err ? 0 : *free_bytes,
		err ? 0 : *total);
}
