/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation. An address is there at once; a free takes effect when its
 * stream comes to it. What a pool holds back after a free stays charged to the device
 * until it is used again or trimmed.
 */
#include "fake.h"

#include <stdlib.h>

#include "ledger.h"

struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next;
	int device;
	size_t used, used_high, held, reserved_high;
	cuuint64_t threshold; /* how much may be held back */
	int reuse[3];
};

static struct CUmemPoolHandle_st *pools;
static struct CUmemPoolHandle_st *defaults[DEVICES_MAX], *current[DEVICES_MAX];

static struct CUmemPoolHandle_st *new_pool_locked(int device)
{
	struct CUmemPoolHandle_st *pool = calloc(1, sizeof *pool);

	if (!pool)
		return NULL;
	pool->device = device;
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	pool->next = pools;
	pools = pool;
	return pool;
}

static struct CUmemPoolHandle_st *default_locked(int device)
{
	if (!defaults[device])
		defaults[device] = new_pool_locked(device);
	return defaults[device];
}

static struct CUmemPoolHandle_st *current_locked(int device)
{
	return current[device] ? current[device] : default_locked(device);
}

static bool is_known_locked(const struct CUmemPoolHandle_st *pool)
{
	for (const struct CUmemPoolHandle_st *p = pools; p; p = p->next)
		if (p == pool)
			return true;
	return false;
}

static void note_highs(struct CUmemPoolHandle_st *pool)
{
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	if (pool->used + pool->held > pool->reserved_high)
		pool->reserved_high = pool->used + pool->held;
}

/* Lets go of held memory until no more than `keep` bytes of it are left. */
static void shrink_locked(struct CUmemPoolHandle_st *pool, size_t keep)
{
	if (pool->held <= keep)
		return;
	ledger_discharge(pool->device, pool->held - keep);
	pool->held = keep;
}

/* A node of a graph: an address, and nothing behind it when the graph runs. */
static CUresult place_in_graph_locked(
	struct CUstream_st *stream, size_t size, CUdeviceptr *ptr)
{
	const struct op op = {.kind = OP_NOTHING};
	CUdeviceptr at = native_window_locked(size);
	CUresult err = at ? capture_add_locked(stream, &op) : CUDA_ERROR_OUT_OF_MEMORY;

	if (err == CUDA_SUCCESS)
		*ptr = at;
	return err;
}

/* A context on the pool's device, which need not be the stream's. */
static struct CUctx_st *context_locked(
	const struct CUmemPoolHandle_st *pool, const struct CUstream_st *stream)
{
	struct CUctx_st *ctx = context_first_locked();

	if (stream->ctx->device == pool->device)
		return stream->ctx;
	while (ctx && (ctx->device != pool->device || !ctx->is_live))
		ctx = ctx->next;
	return ctx;
}

static CUresult place_locked(
	struct CUmemPoolHandle_st *pool, size_t size, CUstream handle, CUdeviceptr *ptr)
{
	struct CUstream_st *stream;
	struct CUctx_st *ctx;
	struct range *range;
	size_t held = pool->held;
	CUresult err = stream_resolve_locked(handle, &stream);

	if (err != CUDA_SUCCESS)
		return err;
	if (stream->capture)
		return place_in_graph_locked(stream, size, ptr);
	ctx = context_locked(pool, stream);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	/* What was held back goes into the new allocation first. */
	shrink_locked(pool, held > size ? held - size : 0);
	err = native_place_locked(ctx, size, RANGE_ASYNC, &range);
	if (err != CUDA_SUCCESS)
		return err;
	range->pool = pool;
	pool->used += size;
	note_highs(pool);
	*ptr = range->base;
	return CUDA_SUCCESS;
}

static CUresult allocate(
	CUdeviceptr *ptr, size_t size, struct CUmemPoolHandle_st *pool, CUstream stream)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	if (!ptr || !size)
		return err;
	fake_lock();
	if (!pool)
		pool = current_locked(context_current()->device);
	if (is_known_locked(pool))
		err = place_locked(pool, size, stream, ptr);
	fake_unlock();
	return err;
}

API CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : allocate(ptr, size, NULL, stream);
	return done(
		__func__, err, "%#llx, %zu, %p", err ? 0 : *ptr, size, (void *)stream);
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	return cuMemAllocAsync(ptr, size, per_thread(stream));
}

API CUresult cuMemAllocFromPoolAsync(
	CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	if (err == CUDA_SUCCESS && !pool)
		err = CUDA_ERROR_INVALID_VALUE;
	err = err ? err : allocate(ptr, size, pool, stream);
	return done(__func__, err, "%#llx, %zu, %p, %p", err ? 0 : *ptr, size,
		(void *)pool, (void *)stream);
}

API CUresult cuMemAllocFromPoolAsync_ptsz(
	CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	return cuMemAllocFromPoolAsync(ptr, size, pool, per_thread(stream));
}

void pool_give_back_locked(struct range *range)
{
	struct CUmemPoolHandle_st *pool = range->pool;
	size_t size = range->size;

	native_remove_locked(range);
	pool->used -= size;
	if (pool->held + size <= pool->threshold && ledger_charge(pool->device, size))
		pool->held += size;
}

CUresult pool_free(CUdeviceptr at)
{
	struct range *range;

	fake_lock();
	range = space_find_locked(at);
	if (range && range->base == at && range->kind == RANGE_ASYNC)
		pool_give_back_locked(range);
	else if (range && range->base == at && range->kind == RANGE_NATIVE)
		native_remove_locked(range);
	fake_unlock();
	return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr ptr, CUstream stream)
{
	struct op op = {.kind = OP_FREE, .freed = ptr};
	struct range *range;
	bool found, captures = stream_captures(stream);

	if (captures)
		op.kind = OP_NOTHING;
	fake_lock();
	range = space_find_locked(ptr);
	found = captures ? !range && native_is_window(ptr)
			 : range && range->base == ptr &&
				   (range->kind == RANGE_ASYNC ||
					   range->kind == RANGE_NATIVE);
	fake_unlock();
	return found ? stream_enqueue(stream, &op, false) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : release(ptr, stream);
	return done(__func__, err, "%#llx, %p", ptr, (void *)stream);
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
	return cuMemFreeAsync(ptr, per_thread(stream));
}

static CUresult create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	if (!pool || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
		props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_is_valid(props->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	*pool = new_pool_locked(props->location.id);
	fake_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : create(pool, props), "%p", (const void *)props);
}

static bool is_default_locked(const struct CUmemPoolHandle_st *pool)
{
	return defaults[pool->device] == pool;
}

static CUresult destroy(CUmemoryPool pool)
{
	struct CUmemPoolHandle_st **at = &pools;
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	fake_lock();
	while (*at && *at != pool)
		at = &(*at)->next;
	/* A pool with memory in use stays, unnamed, until that is freed: kept for good.
	 */
	if (*at && !is_default_locked(pool)) {
		shrink_locked(pool, 0);
		pool->threshold = 0;
		if (current[pool->device] == pool)
			current[pool->device] = NULL;
		*at = pool->next;
		if (!pool->used)
			free(pool);
		err = CUDA_SUCCESS;
	}
	fake_unlock();
	return err;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : destroy(pool), "%p", (void *)pool);
}

static CUresult trim(CUmemoryPool pool, size_t keep)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	fake_lock();
	if (is_known_locked(pool)) {
		shrink_locked(pool, keep > pool->used ? keep - pool->used : 0);
		err = CUDA_SUCCESS;
	}
	fake_unlock();
	return err;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(
		__func__, err ? err : trim(pool, keep), "%p, %zu", (void *)pool, keep);
}

static CUresult get_attribute_locked(
	struct CUmemPoolHandle_st *pool, CUmemPool_attribute which, void *value)
{
	cuuint64_t *wide = value;

	switch (which) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = pool->reuse[which - 1];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*wide = pool->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*wide = pool->used + pool->held;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*wide = pool->reserved_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*wide = pool->used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*wide = pool->used_high;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult set_attribute_locked(
	struct CUmemPoolHandle_st *pool, CUmemPool_attribute which, const void *value)
{
	switch (which) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->reuse[which - 1] = *(const int *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold = *(const cuuint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		pool->reserved_high = pool->used + pool->held;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		pool->used_high = pool->used;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult attribute(
	CUmemoryPool pool, CUmemPool_attribute which, void *value, bool set)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	fake_lock();
	if (value && is_known_locked(pool))
		err = set ? set_attribute_locked(pool, which, value)
			  : get_attribute_locked(pool, which, value);
	fake_unlock();
	return err;
}

API CUresult cuMemPoolGetAttribute(
	CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	err = err ? err : attribute(pool, which, value, false);
	return done(__func__, err, "%p, %d", (void *)pool, (int)which);
}

API CUresult cuMemPoolSetAttribute(
	CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	err = err ? err : attribute(pool, which, value, true);
	return done(__func__, err, "%p, %d", (void *)pool, (int)which);
}

static CUresult get_default(CUmemoryPool *pool, CUdevice dev, bool or_current)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	*pool = or_current ? current_locked(dev) : default_locked(dev);
	fake_unlock();
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : get_default(pool, dev, false), "%d", dev);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : get_default(pool, dev, true), "%d", dev);
}

static CUresult set_current(CUdevice dev, CUmemoryPool pool)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	if (is_known_locked(pool) && pool->device == dev) {
		current[dev] = pool;
		err = CUDA_SUCCESS;
	}
	fake_unlock();
	return err;
}

API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : set_current(dev, pool), "%d, %p", dev,
		(void *)pool);
}
