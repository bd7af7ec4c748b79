/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts are never freed: a handle that a program kept too long is recognised. The
 * primary context of a device is one object that dies and comes back.
 */
#include "fake.h"

#include <stdlib.h>

static struct CUctx_st *contexts;
static struct CUctx_st *primaries[DEVICES_MAX];
static atomic_uint lost_count;

bool context_any_lost(void)
{
	return lost_count != 0;
}

struct CUctx_st *context_first_locked(void)
{
	return contexts;
}

void context_lose_locked(struct CUctx_st *ctx, CUresult err)
{
	if (ctx->lost != CUDA_SUCCESS || !ctx->is_live)
		return;
	ctx->lost = err;
	lost_count++;
}

static bool is_known_locked(const struct CUctx_st *ctx)
{
	for (const struct CUctx_st *c = contexts; c; c = c->next)
		if (c == ctx)
			return true;
	return false;
}

CUresult context_check_locked(struct CUctx_st *ctx)
{
	if (!is_known_locked(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	return ctx->is_live ? ctx->lost : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static struct CUctx_st *new_context_locked(int device)
{
	struct CUctx_st *ctx = calloc(1, sizeof *ctx);

	if (!ctx)
		return NULL;
	ctx->device = device;
	ctx->next = contexts;
	contexts = ctx;
	return ctx;
}

static void start_locked(struct CUctx_st *ctx)
{
	ctx->is_live = true;
	ctx->lost = CUDA_SUCCESS;
	ctx->peers = 0;
	ctx->id = fake_next_id();
}

/* Everything that lives in a context goes with it; what VMM made does not live in one. */
static void end_locked(struct CUctx_st *ctx)
{
	stream_close_all_locked(ctx);
	native_remove_all_locked(ctx);
	host_remove_all_locked(ctx);
	if (ctx->lost != CUDA_SUCCESS)
		lost_count--;
	ctx->lost = CUDA_SUCCESS;
	ctx->is_live = false;
}

struct CUctx_st *context_current(void)
{
	const struct thread *thread = thread_self();

	return thread && thread->depth ? thread->stack[thread->depth - 1] : NULL;
}

static CUresult push(struct CUctx_st *ctx)
{
	struct thread *thread = thread_self();

	if (thread->depth == sizeof thread->stack / sizeof *thread->stack)
		return CUDA_ERROR_OUT_OF_MEMORY;
	thread->stack[thread->depth++] = ctx;
	return CUDA_SUCCESS;
}

static CUresult check(struct CUctx_st *ctx)
{
	CUresult err;

	fake_lock();
	err = context_check_locked(ctx);
	fake_unlock();
	return err;
}

static CUresult push_checked(struct CUctx_st *ctx)
{
	CUresult err = check(ctx);

	return err ? err : push(ctx);
}

static CUresult pop(CUcontext *ctx)
{
	struct thread *thread = thread_self();

	if (!thread->depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	thread->depth--;
	if (ctx)
		*ctx = thread->stack[thread->depth];
	return CUDA_SUCCESS;
}

static CUresult set_current(struct CUctx_st *ctx)
{
	struct thread *thread = thread_self();
	CUresult err = ctx ? check(ctx) : CUDA_SUCCESS;

	if (err != CUDA_SUCCESS)
		return err;
	if (thread->depth)
		thread->depth--;
	return ctx ? push(ctx) : CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : push_checked(ctx), "%p", (void *)ctx);
}

API CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return cuCtxPushCurrent_v2(ctx);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : pop(ctx), " ");
}

API CUresult cuCtxPopCurrent(CUcontext *ctx)
{
	return cuCtxPopCurrent_v2(ctx);
}

API CUresult cuCtxSetCurrent(CUcontext ctx)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : set_current(ctx), "%p", (void *)ctx);
}

static CUresult get_current(CUcontext *ctx)
{
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*ctx = context_current();
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_current(ctx), " ");
}

static CUresult get_device(CUdevice *dev)
{
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*dev = context_current()->device;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_device(dev), " ");
}

static CUresult get_flags(unsigned *flags)
{
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context_current()->flags;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetFlags(unsigned int *flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : get_flags(flags), " ");
}

static CUresult get_api_version(CUcontext ctx, unsigned *version)
{
	CUresult err;

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ctx)
		ctx = context_current();
	err = check(ctx);
	if (err == CUDA_SUCCESS)
		*version = 3020;
	return err;
}

API CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(
		__func__, err ? err : get_api_version(ctx, version), "%p", (void *)ctx);
}

#if CUDA_VERSION >= 12000
static CUresult get_id(CUcontext ctx, unsigned long long *id)
{
	CUresult err;

	if (!ctx)
		ctx = context_current();
	err = check(ctx);
	if (err == CUDA_SUCCESS)
		*id = ctx->id;
	return err;
}

API CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_id(ctx, id), "%p", (void *)ctx);
}
#endif

static CUresult get_priorities(int *least, int *greatest)
{
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : get_priorities(least, greatest), " ");
}

static CUresult create(CUcontext *ctx, unsigned flags, CUdevice dev)
{
	struct CUctx_st *made;

	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	made = new_context_locked(dev);
	if (made) {
		made->flags = flags;
		start_locked(made);
	}
	fake_unlock();
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ctx = made;
	return push(made);
}

API CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : create(ctx, flags, dev), "%#x, %d", flags, dev);
}

#if CUDA_VERSION >= 12050
API CUresult cuCtxCreate_v4(
	CUcontext *ctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	(void)params;
	return cuCtxCreate_v2(ctx, flags, dev);
}
#endif

/* Work in it ends first. A capture in it is lost, not waited for. */
static CUresult destroy(struct CUctx_st *ctx)
{
	struct thread *thread = thread_self();
	CUresult err = check(ctx);

	if (err == CUDA_ERROR_INVALID_CONTEXT || err == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return err;
	if (ctx->is_primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	stream_wait_context(ctx);
	fake_lock();
	end_locked(ctx);
	fake_unlock();
	if (context_current() == ctx)
		thread->depth--;
	return CUDA_SUCCESS;
}

API CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : destroy(ctx), "%p", (void *)ctx);
}

API CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

static CUresult synchronize(void)
{
	struct CUctx_st *ctx = context_current();
	CUresult err;

	fake_lock();
	err = capture_allow_wait_locked(ctx);
	fake_unlock();
	return err ? err : stream_wait_context(ctx);
}

API CUresult cuCtxSynchronize(void)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : synchronize(), " ");
}

static struct CUctx_st *primary_locked(CUdevice dev)
{
	if (!primaries[dev]) {
		primaries[dev] = new_context_locked(dev);
		if (primaries[dev])
			primaries[dev]->is_primary = true;
	}
	return primaries[dev];
}

static CUresult retain(CUcontext *ctx, CUdevice dev)
{
	struct CUctx_st *primary;

	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	primary = primary_locked(dev);
	if (primary && !primary->is_live)
		start_locked(primary);
	if (primary)
		primary->retains++;
	fake_unlock();
	*ctx = primary;
	return primary ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : retain(ctx, dev), "%d", dev);
}

static CUresult release(CUdevice dev)
{
	struct CUctx_st *primary;
	CUresult err = CUDA_SUCCESS;
	bool is_last;

	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	primary = primary_locked(dev);
	is_last = primary && primary->retains == 1;
	if (!primary || !primary->retains)
		err = CUDA_ERROR_INVALID_CONTEXT;
	else
		primary->retains--;
	fake_unlock();
	if (err != CUDA_SUCCESS || !is_last)
		return err;
	stream_wait_context(primary);
	fake_lock();
	if (primary->is_live && !primary->retains)
		end_locked(primary);
	fake_unlock();
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : release(dev), "%d", dev);
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return cuDevicePrimaryCtxRelease_v2(dev);
}

static void orphan_reservations_locked(void)
{
	for (size_t i = 0; i < space_reservations.count; i++) {
		struct reservation *r = (struct reservation *)space_reservations.items[i];

		r->is_orphan = true;
	}
}

static CUresult reset(CUdevice dev)
{
	struct CUctx_st *primary;

	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	primary = primary_locked(dev);
	fake_unlock();
	if (!primary || !primary->is_live)
		return CUDA_SUCCESS;
	stream_wait_context(primary);
	fake_lock();
	if (primary->is_live) {
		end_locked(primary);
		primary->retains = 0;
		orphan_reservations_locked();
	}
	fake_unlock();
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : reset(dev), "%d", dev);
}

API CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return cuDevicePrimaryCtxReset_v2(dev);
}

static CUresult get_state(CUdevice dev, unsigned *flags, int *active)
{
	struct CUctx_st *primary;

	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	primary = primary_locked(dev);
	*flags = primary ? primary->flags : 0;
	*active = primary && primary->is_live;
	fake_unlock();
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_state(dev, flags, active), "%d", dev);
}

static CUresult set_flags(CUdevice dev, unsigned flags)
{
	struct CUctx_st *primary;

	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	primary = primary_locked(dev);
	if (primary)
		primary->flags = flags;
	fake_unlock();
	return primary ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : set_flags(dev, flags), "%d, %#x", dev, flags);
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

static CUresult set_peer(struct CUctx_st *peer, bool enable)
{
	struct CUctx_st *ctx = context_current();
	CUresult err;
	unsigned bit;

	fake_lock();
	err = context_check_locked(peer);
	if (err == CUDA_SUCCESS && peer->device == ctx->device)
		err = CUDA_ERROR_INVALID_DEVICE;
	if (err == CUDA_SUCCESS) {
		bit = 1u << peer->device;
		if (enable && (ctx->peers & bit))
			err = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
		else if (!enable && !(ctx->peers & bit))
			err = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
		else
			ctx->peers ^= bit;
	}
	fake_unlock();
	return err;
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	if (err == CUDA_SUCCESS && flags != 0)
		err = CUDA_ERROR_INVALID_VALUE;
	return done(__func__, err ? err : set_peer(peer, true), "%p", (void *)peer);
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : set_peer(peer, false), "%p", (void *)peer);
}
