/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemset and kin: six shapes, each at once or in a stream, in two stream flavours. */
#include "fake.h"

static struct fill row(CUdeviceptr at, unsigned value, unsigned element, size_t count)
{
	return (struct fill){.at = at,
		.pitch = count * element,
		.width = count,
		.rows = 1,
		.value = value,
		.element = element};
}

static struct fill rows(CUdeviceptr at, size_t pitch, unsigned value, unsigned element,
	size_t width, size_t height)
{
	return (struct fill){.at = at,
		.pitch = pitch,
		.width = width,
		.rows = height,
		.value = value,
		.element = element};
}

static CUresult check(const struct fill *fill)
{
	return fill->at % fill->element || fill->pitch % fill->element
		       ? CUDA_ERROR_INVALID_VALUE
		       : CUDA_SUCCESS;
}

static CUresult now(const char *name, struct fill fill, CUstream stream)
{
	struct op op = {.kind = OP_FILL, .fill = fill};
	CUresult err = gate(name, GATE_CONTEXT);

	err = err ? err : check(&fill);
	if (err == CUDA_SUCCESS && fill.width && fill.rows) {
		err = stream_wait_for_default(stream);
		fake_lock();
		err = err ? err : op_check_locked(&op, context_current());
		fake_unlock();
		err = err ? err : op_run(&op, context_current());
	}
	return done(name, err, "%#llx, %#x, %zu x %zu", fill.at, fill.value, fill.width,
		fill.rows);
}

static CUresult later(const char *name, struct fill fill, CUstream stream)
{
	struct op op = {.kind = OP_FILL, .fill = fill};
	CUresult err = gate(name, GATE_CONTEXT);

	err = err ? err : check(&fill);
	if (err == CUDA_SUCCESS && fill.width && fill.rows)
		err = stream_enqueue(stream, &op, false);
	return done(name, err, "%#llx, %#x, %zu x %zu, %p", fill.at, fill.value,
		fill.width, fill.rows, (void *)stream);
}

API CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t count)
{
	return now("cuMemsetD8_v2", row(at, value, 1, count), NULL);
}

API CUresult cuMemsetD8_v2_ptds(CUdeviceptr at, unsigned char value, size_t count)
{
	return now("cuMemsetD8_v2", row(at, value, 1, count), CU_STREAM_PER_THREAD);
}

API CUresult cuMemsetD8Async(
	CUdeviceptr at, unsigned char value, size_t count, CUstream stream)
{
	return later(__func__, row(at, value, 1, count), stream);
}

API CUresult cuMemsetD8Async_ptsz(
	CUdeviceptr at, unsigned char value, size_t count, CUstream stream)
{
	return cuMemsetD8Async(at, value, count, per_thread(stream));
}

API CUresult cuMemsetD16_v2(CUdeviceptr at, unsigned short value, size_t count)
{
	return now("cuMemsetD16_v2", row(at, value, 2, count), NULL);
}

API CUresult cuMemsetD16_v2_ptds(CUdeviceptr at, unsigned short value, size_t count)
{
	return now("cuMemsetD16_v2", row(at, value, 2, count), CU_STREAM_PER_THREAD);
}

API CUresult cuMemsetD16Async(
	CUdeviceptr at, unsigned short value, size_t count, CUstream stream)
{
	return later(__func__, row(at, value, 2, count), stream);
}

API CUresult cuMemsetD16Async_ptsz(
	CUdeviceptr at, unsigned short value, size_t count, CUstream stream)
{
	return cuMemsetD16Async(at, value, count, per_thread(stream));
}

API CUresult cuMemsetD32_v2(CUdeviceptr at, unsigned int value, size_t count)
{
	return now("cuMemsetD32_v2", row(at, value, 4, count), NULL);
}

API CUresult cuMemsetD32_v2_ptds(CUdeviceptr at, unsigned int value, size_t count)
{
	return now("cuMemsetD32_v2", row(at, value, 4, count), CU_STREAM_PER_THREAD);
}

API CUresult cuMemsetD32Async(
	CUdeviceptr at, unsigned int value, size_t count, CUstream stream)
{
	return later(__func__, row(at, value, 4, count), stream);
}

API CUresult cuMemsetD32Async_ptsz(
	CUdeviceptr at, unsigned int value, size_t count, CUstream stream)
{
	return cuMemsetD32Async(at, value, count, per_thread(stream));
}

API CUresult cuMemsetD2D8_v2(
	CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height)
{
	return now("cuMemsetD2D8_v2", rows(at, pitch, value, 1, width, height), NULL);
}

API CUresult cuMemsetD2D8_v2_ptds(
	CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height)
{
	return now("cuMemsetD2D8_v2", rows(at, pitch, value, 1, width, height),
		CU_STREAM_PER_THREAD);
}

API CUresult cuMemsetD2D8Async(CUdeviceptr at, size_t pitch, unsigned char value,
	size_t width, size_t height, CUstream stream)
{
	return later(__func__, rows(at, pitch, value, 1, width, height), stream);
}

API CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr at, size_t pitch, unsigned char value,
	size_t width, size_t height, CUstream stream)
{
	return cuMemsetD2D8Async(at, pitch, value, width, height, per_thread(stream));
}

API CUresult cuMemsetD2D16_v2(
	CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height)
{
	return now("cuMemsetD2D16_v2", rows(at, pitch, value, 2, width, height), NULL);
}

API CUresult cuMemsetD2D16_v2_ptds(
	CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height)
{
	return now("cuMemsetD2D16_v2", rows(at, pitch, value, 2, width, height),
		CU_STREAM_PER_THREAD);
}

API CUresult cuMemsetD2D16Async(CUdeviceptr at, size_t pitch, unsigned short value,
	size_t width, size_t height, CUstream stream)
{
	return later(__func__, rows(at, pitch, value, 2, width, height), stream);
}

API CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr at, size_t pitch, unsigned short value,
	size_t width, size_t height, CUstream stream)
{
	return cuMemsetD2D16Async(at, pitch, value, width, height, per_thread(stream));
}

API CUresult cuMemsetD2D32_v2(
	CUdeviceptr at, size_t pitch, unsigned int value, size_t width, size_t height)
{
	return now("cuMemsetD2D32_v2", rows(at, pitch, value, 4, width, height), NULL);
}

API CUresult cuMemsetD2D32_v2_ptds(
	CUdeviceptr at, size_t pitch, unsigned int value, size_t width, size_t height)
{
	return now("cuMemsetD2D32_v2", rows(at, pitch, value, 4, width, height),
		CU_STREAM_PER_THREAD);
}

API CUresult cuMemsetD2D32Async(CUdeviceptr at, size_t pitch, unsigned int value,
	size_t width, size_t height, CUstream stream)
{
	return later(__func__, rows(at, pitch, value, 4, width, height), stream);
}

API CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr at, size_t pitch, unsigned int value,
	size_t width, size_t height, CUstream stream)
{
	return cuMemsetD2D32Async(at, pitch, value, width, height, per_thread(stream));
}
