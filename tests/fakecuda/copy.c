/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies. A synchronous one waits for the default stream and then copies on the calling
 * thread: what it may not reach is its own error. An asynchronous one goes into a queue.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

static struct side device_side(CUdeviceptr at)
{
	return (struct side){.at = at, .is_device = true, .ctx = context_current()};
}

static struct side host_side(const void *at)
{
	return (struct side){.at = (CUdeviceptr)at};
}

/* Where an address is follows from the address: host memory unless it is a device's. */
static struct side any_side(CUdeviceptr at)
{
	struct side side = host_side((void *)at);

	fake_lock();
	if (space_is_device_locked(at))
		side = device_side(at);
	fake_unlock();
	return side;
}

static CUresult copy_now(struct copy *copy, CUstream stream)
{
	struct op op = {.kind = OP_COPY, .copy = *copy};
	CUresult err;

	if (!copy->width || !copy->rows)
		return CUDA_SUCCESS;
	err = stream_wait_for_default(stream);
	if (err != CUDA_SUCCESS)
		return err;
	fake_lock();
	err = op_check_locked(&op, context_current());
	fake_unlock();
	return err ? err : op_run(&op, context_current());
}

/* Pinned host memory is used when the copy runs; it has to be pinned still. */
static void note_pinned(struct side *side, size_t size)
{
	if (side->is_device)
		return;
	fake_lock();
	side->is_pinned = host_is_pinned_locked((void *)side->at, size);
	fake_unlock();
}

/* Small pageable sources are copied at the call, as the driver does. */
static bool take_snapshot(struct copy *copy)
{
	if (copy->src.is_device || copy->src.is_pinned || copy->rows != 1 ||
		copy->width > PIECE)
		return false;
	copy->snapshot = malloc(copy->width);
	if (!copy->snapshot)
		return false;
	memcpy(copy->snapshot, (void *)copy->src.at, copy->width);
	copy->src.at = (CUdeviceptr)copy->snapshot;
	return true;
}

static size_t span(const struct side *side, const struct copy *copy)
{
	return (copy->rows - 1) * side->pitch + copy->width;
}

/* With pageable memory the call returns when the copy is done. */
static CUresult copy_later(struct copy *copy, CUstream stream)
{
	struct op op = {.kind = OP_COPY};
	bool waits;

	if (!copy->width || !copy->rows)
		return CUDA_SUCCESS;
	note_pinned(&copy->dst, span(&copy->dst, copy));
	note_pinned(&copy->src, span(&copy->src, copy));
	waits = (!copy->dst.is_device && !copy->dst.is_pinned) ||
		(!copy->src.is_device && !copy->src.is_pinned);
	if (waits && !stream_captures(stream) && copy->dst.is_device &&
		take_snapshot(copy))
		waits = false;
	op.copy = *copy;
	return stream_enqueue(stream, &op, waits);
}

static struct copy line(struct side dst, struct side src, size_t size)
{
	return (struct copy){.dst = dst, .src = src, .width = size, .rows = 1};
}

static CUresult now(struct side dst, struct side src, size_t size, CUstream stream)
{
	struct copy copy = line(dst, src, size);

	return copy_now(&copy, stream);
}

static CUresult later(struct side dst, struct side src, size_t size, CUstream stream)
{
	struct copy copy = line(dst, src, size);

	return copy_later(&copy, stream);
}

static CUresult h_to_d(CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
	CUresult err = gate("cuMemcpyHtoD_v2", GATE_CONTEXT);

	err = err ? err : now(device_side(dst), host_side(src), size, stream);
	return done("cuMemcpyHtoD_v2", err, "%#llx, %p, %zu", dst, src, size);
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t size)
{
	return h_to_d(dst, src, size, NULL);
}

API CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dst, const void *src, size_t size)
{
	return h_to_d(dst, src, size, CU_STREAM_PER_THREAD);
}

static CUresult d_to_h(void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
	CUresult err = gate("cuMemcpyDtoH_v2", GATE_CONTEXT);

	err = err ? err : now(host_side(dst), device_side(src), size, stream);
	return done("cuMemcpyDtoH_v2", err, "%p, %#llx, %zu", dst, src, size);
}

API CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t size)
{
	return d_to_h(dst, src, size, NULL);
}

API CUresult cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src, size_t size)
{
	return d_to_h(dst, src, size, CU_STREAM_PER_THREAD);
}

static CUresult d_to_d(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	CUresult err = gate("cuMemcpyDtoD_v2", GATE_CONTEXT);

	err = err ? err : now(device_side(dst), device_side(src), size, stream);
	return done("cuMemcpyDtoD_v2", err, "%#llx, %#llx, %zu", dst, src, size);
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	return d_to_d(dst, src, size, NULL);
}

API CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	return d_to_d(dst, src, size, CU_STREAM_PER_THREAD);
}

static CUresult any_to_any(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	CUresult err = gate("cuMemcpy", GATE_CONTEXT);

	err = err ? err : now(any_side(dst), any_side(src), size, stream);
	return done("cuMemcpy", err, "%#llx, %#llx, %zu", dst, src, size);
}

API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	return any_to_any(dst, src, size, NULL);
}

API CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	return any_to_any(dst, src, size, CU_STREAM_PER_THREAD);
}

API CUresult cuMemcpyHtoDAsync_v2(
	CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : later(device_side(dst), host_side(src), size, stream);
	return done(__func__, err, "%#llx, %p, %zu, %p", dst, src, size, (void *)stream);
}

API CUresult cuMemcpyHtoDAsync_v2_ptsz(
	CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
	return cuMemcpyHtoDAsync_v2(dst, src, size, per_thread(stream));
}

API CUresult cuMemcpyDtoHAsync_v2(
	void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : later(host_side(dst), device_side(src), size, stream);
	return done(__func__, err, "%p, %#llx, %zu, %p", dst, src, size, (void *)stream);
}

API CUresult cuMemcpyDtoHAsync_v2_ptsz(
	void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
	return cuMemcpyDtoHAsync_v2(dst, src, size, per_thread(stream));
}

API CUresult cuMemcpyDtoDAsync_v2(
	CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : later(device_side(dst), device_side(src), size, stream);
	return done(
		__func__, err, "%#llx, %#llx, %zu, %p", dst, src, size, (void *)stream);
}

API CUresult cuMemcpyDtoDAsync_v2_ptsz(
	CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	return cuMemcpyDtoDAsync_v2(dst, src, size, per_thread(stream));
}

API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : later(any_side(dst), any_side(src), size, stream);
	return done(
		__func__, err, "%#llx, %#llx, %zu, %p", dst, src, size, (void *)stream);
}

API CUresult cuMemcpyAsync_ptsz(
	CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	return cuMemcpyAsync(dst, src, size, per_thread(stream));
}

static CUresult peer_sides(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
	CUcontext src_ctx, struct side sides[2])
{
	CUresult err;

	fake_lock();
	err = context_check_locked(dst_ctx);
	err = err ? err : context_check_locked(src_ctx);
	fake_unlock();
	sides[0] = (struct side){.at = dst, .is_device = true, .ctx = dst_ctx};
	sides[1] = (struct side){.at = src, .is_device = true, .ctx = src_ctx};
	return err;
}

static CUresult between_peers(
	const struct side sides[2], CUresult err, size_t size, CUstream stream)
{
	err = err ? err : now(sides[0], sides[1], size, stream);
	return done("cuMemcpyPeer", err, "%#llx, %p, %#llx, %p, %zu", sides[0].at,
		(void *)sides[0].ctx, sides[1].at, (void *)sides[1].ctx, size);
}

API CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
	CUcontext src_ctx, size_t size)
{
	struct side sides[2] = {{.at = dst}, {.at = src}};
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : peer_sides(dst, dst_ctx, src, src_ctx, sides);
	return between_peers(sides, err, size, NULL);
}

API CUresult cuMemcpyPeer_ptds(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
	CUcontext src_ctx, size_t size)
{
	struct side sides[2] = {{.at = dst}, {.at = src}};
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : peer_sides(dst, dst_ctx, src, src_ctx, sides);
	return between_peers(sides, err, size, CU_STREAM_PER_THREAD);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
	CUcontext src_ctx, size_t size, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);
	struct side sides[2];

	err = err ? err : peer_sides(dst, dst_ctx, src, src_ctx, sides);
	err = err ? err : later(sides[0], sides[1], size, stream);
	return done(__func__, err, "%#llx, %p, %#llx, %p, %zu, %p", dst, (void *)dst_ctx,
		src, (void *)src_ctx, size, (void *)stream);
}

API CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
	CUcontext src_ctx, size_t size, CUstream stream)
{
	return cuMemcpyPeerAsync(dst, dst_ctx, src, src_ctx, size, per_thread(stream));
}

static bool side_2d(CUmemorytype type, const void *host, CUdeviceptr device,
	size_t offset, struct side *side)
{
	if (type == CU_MEMORYTYPE_HOST)
		*side = host_side((const char *)host + offset);
	else if (type == CU_MEMORYTYPE_DEVICE)
		*side = device_side(device + offset);
	else if (type == CU_MEMORYTYPE_UNIFIED)
		*side = any_side(device + offset);
	else
		return false;
	return true;
}

static CUresult from_2d(const CUDA_MEMCPY2D *p, struct copy *copy)
{
	size_t dst_pitch, src_pitch;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	dst_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
	src_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
	if (p->WidthInBytes > dst_pitch || p->WidthInBytes > src_pitch)
		return CUDA_ERROR_INVALID_VALUE;
	if (!side_2d(p->dstMemoryType, p->dstHost, p->dstDevice,
		    p->dstY * dst_pitch + p->dstXInBytes, &copy->dst) ||
		!side_2d(p->srcMemoryType, p->srcHost, p->srcDevice,
			p->srcY * src_pitch + p->srcXInBytes, &copy->src))
		return CUDA_ERROR_NOT_SUPPORTED;
	copy->dst.pitch = dst_pitch;
	copy->src.pitch = src_pitch;
	copy->width = p->WidthInBytes;
	copy->rows = p->Height;
	copy->snapshot = NULL;
	return CUDA_SUCCESS;
}

static CUresult rectangle(const CUDA_MEMCPY2D *p, CUstream stream)
{
	CUresult err = gate("cuMemcpy2D_v2", GATE_CONTEXT);
	struct copy copy;

	err = err ? err : from_2d(p, &copy);
	err = err ? err : copy_now(&copy, stream);
	return done("cuMemcpy2D_v2", err, "%p", (const void *)p);
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p)
{
	return rectangle(p, NULL);
}

API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *p)
{
	return rectangle(p, CU_STREAM_PER_THREAD);
}

API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p)
{
	return rectangle(p, NULL);
}

API CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *p)
{
	return rectangle(p, CU_STREAM_PER_THREAD);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream)
{
	CUresult err = gate(__func__, GATE_CONTEXT);
	struct copy copy;

	err = err ? err : from_2d(p, &copy);
	err = err ? err : copy_later(&copy, stream);
	return done(__func__, err, "%p, %p", (const void *)p, (void *)stream);
}

API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *p, CUstream stream)
{
	return cuMemcpy2DAsync_v2(p, per_thread(stream));
}
