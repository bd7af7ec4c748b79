/* SPDX-License-Identifier: Apache-2.0 */
/* What may be asked of a stream. */
#include "fake.h"

enum property { OF_FLAGS, OF_PRIORITY, OF_CONTEXT, OF_ID, OF_DEVICE };

/* Writes one property to `value`, which points to what that property is. */
static CUresult get(CUstream handle, enum property which, void *value)
{
	struct CUstream_st *stream;
	CUresult err;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = stream_resolve_locked(handle, &stream);
	if (err == CUDA_SUCCESS && which == OF_FLAGS)
		*(unsigned *)value = stream->flags;
	if (err == CUDA_SUCCESS && which == OF_PRIORITY)
		*(int *)value = stream->priority;
	if (err == CUDA_SUCCESS && which == OF_CONTEXT)
		*(CUcontext *)value = stream->ctx;
	if (err == CUDA_SUCCESS && which == OF_ID)
		*(unsigned long long *)value = stream->id;
	if (err == CUDA_SUCCESS && which == OF_DEVICE)
		*(CUdevice *)value = stream->ctx->device;
	fake_unlock();
	return err;
}

API CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(
		__func__, err ? err : get(stream, OF_FLAGS, flags), "%p", (void *)stream);
}

API CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags)
{
	return cuStreamGetFlags(per_thread(stream), flags);
}

API CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : get(stream, OF_PRIORITY, priority);
	return done(__func__, err, "%p", (void *)stream);
}

API CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority)
{
	return cuStreamGetPriority(per_thread(stream), priority);
}

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(
		__func__, err ? err : get(stream, OF_CONTEXT, ctx), "%p", (void *)stream);
}

API CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *ctx)
{
	return cuStreamGetCtx(per_thread(stream), ctx);
}

#if CUDA_VERSION >= 12000
API CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : get(stream, OF_ID, id), "%p", (void *)stream);
}

API CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id)
{
	return cuStreamGetId(per_thread(stream), id);
}
#endif

#if CUDA_VERSION >= 12080
API CUresult cuStreamGetDevice(CUstream stream, CUdevice *dev)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(
		__func__, err ? err : get(stream, OF_DEVICE, dev), "%p", (void *)stream);
}

API CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *dev)
{
	return cuStreamGetDevice(per_thread(stream), dev);
}
#endif
