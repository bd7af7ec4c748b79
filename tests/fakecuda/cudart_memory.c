/* SPDX-License-Identifier: Apache-2.0 */
#include "cudart.h"

#include <string.h>

/* Nothing is no error: the pointer is then NULL. */
static cudaError_t allocate(void **ptr, size_t size)
{
	CUdeviceptr at = 0;
	CUresult err;

	if (!ptr)
		return cudaErrorInvalidValue;
	if (!size) {
		*ptr = NULL;
		return cudaSuccess;
	}
	err = CALL(cuMemAlloc)(&at, size);
	if (err == CUDA_SUCCESS || err == CUDA_ERROR_OUT_OF_MEMORY)
		*ptr = (void *)at;
	return translate(err);
}

RUNTIME(cudaMalloc, void **ptr, size_t size)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : allocate(ptr, size));
}

static cudaError_t allocate_pitch(void **ptr, size_t *pitch, size_t width, size_t height)
{
	CUdeviceptr at = 0;
	CUresult err;

	if (!ptr || !pitch)
		return cudaErrorInvalidValue;
	if (!width || !height) {
		*ptr = NULL;
		*pitch = 0;
		return cudaSuccess;
	}
	err = CALL(cuMemAllocPitch)(&at, pitch, width, height, 4);
	if (err == CUDA_SUCCESS)
		*ptr = (void *)at;
	return translate(err);
}

RUNTIME(cudaMallocPitch, void **ptr, size_t *pitch, size_t width, size_t height)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : allocate_pitch(ptr, pitch, width, height));
}

RUNTIME(cudaMalloc3D, struct cudaPitchedPtr *pitched, struct cudaExtent extent)
{
	cudaError_t err = runtime_enter();
	size_t rows = 0;

	if (err == cudaSuccess && !pitched)
		err = cudaErrorInvalidValue;
	if (err == cudaSuccess &&
		__builtin_mul_overflow(extent.height, extent.depth, &rows))
		err = cudaErrorMemoryAllocation;
	if (err == cudaSuccess)
		err = allocate_pitch(&pitched->ptr, &pitched->pitch, extent.width, rows);
	if (err == cudaSuccess) {
		pitched->xsize = extent.width;
		pitched->ysize = extent.height;
	}
	return runtime_leave(err);
}

RUNTIME(cudaFree, void *ptr)
{
	cudaError_t err = runtime_enter();

	if (err == cudaSuccess && ptr)
		err = translate(CALL(cuMemFree)((CUdeviceptr)ptr));
	return runtime_leave(err);
}

RUNTIME(cudaMallocManaged, void **ptr, size_t size, unsigned int flags)
{
	cudaError_t err = runtime_enter();
	CUdeviceptr at = 0;

	if (err == cudaSuccess && !ptr)
		err = cudaErrorInvalidValue;
	err = err ? err : translate(CALL(cuMemAllocManaged)(&at, size, flags));
	if (err == cudaSuccess)
		*ptr = (void *)at;
	return runtime_leave(err);
}

static cudaError_t allocate_async(
	void **ptr, size_t size, cudaStream_t stream, enum flavour flavour)
{
	cudaError_t err = runtime_enter();
	CUdeviceptr at = 0;

	if (err == cudaSuccess && !ptr)
		err = cudaErrorInvalidValue;
	if (err == cudaSuccess && size)
		err = translate(CALL_AS(flavour, cuMemAllocAsync)(&at, size, stream));
	if (err == cudaSuccess)
		*ptr = (void *)at;
	return runtime_leave(err);
}

RUNTIME(cudaMallocAsync, void **ptr, size_t size, cudaStream_t stream)
{
	return allocate_async(ptr, size, stream, LEGACY);
}

RUNTIME(cudaMallocAsync_ptsz, void **ptr, size_t size, cudaStream_t stream)
{
	return allocate_async(ptr, size, stream, PER_THREAD);
}

static cudaError_t allocate_from_pool(void **ptr, size_t size, cudaMemPool_t pool,
	cudaStream_t stream, enum flavour flavour)
{
	cudaError_t err = runtime_enter();
	CUdeviceptr at = 0;

	if (err == cudaSuccess && !ptr)
		err = cudaErrorInvalidValue;
	if (err == cudaSuccess && size)
		err = translate(CALL_AS(flavour, cuMemAllocFromPoolAsync)(
			&at, size, pool, stream));
	if (err == cudaSuccess)
		*ptr = (void *)at;
	return runtime_leave(err);
}

RUNTIME(cudaMallocFromPoolAsync, void **ptr, size_t size, cudaMemPool_t pool,
	cudaStream_t stream)
{
	return allocate_from_pool(ptr, size, pool, stream, LEGACY);
}

RUNTIME(cudaMallocFromPoolAsync_ptsz, void **ptr, size_t size, cudaMemPool_t pool,
	cudaStream_t stream)
{
	return allocate_from_pool(ptr, size, pool, stream, PER_THREAD);
}

static cudaError_t free_async(void *ptr, cudaStream_t stream, enum flavour flavour)
{
	cudaError_t err = runtime_enter();

	if (err == cudaSuccess && ptr)
		err = translate(
			CALL_AS(flavour, cuMemFreeAsync)((CUdeviceptr)ptr, stream));
	return runtime_leave(err);
}

RUNTIME(cudaFreeAsync, void *ptr, cudaStream_t stream)
{
	return free_async(ptr, stream, LEGACY);
}

RUNTIME(cudaFreeAsync_ptsz, void *ptr, cudaStream_t stream)
{
	return free_async(ptr, stream, PER_THREAD);
}

RUNTIME(cudaMemPoolTrimTo, cudaMemPool_t pool, size_t keep)
{
	cudaError_t err = runtime_load();

	return runtime_leave(err ? err : translate(CALL(cuMemPoolTrimTo)(pool, keep)));
}

RUNTIME(cudaMemGetInfo, size_t *free_bytes, size_t *total)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(
		err ? err : translate(CALL(cuMemGetInfo)(free_bytes, total)));
}

RUNTIME(cudaMallocHost, void **ptr, size_t size)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuMemAllocHost)(ptr, size)));
}

RUNTIME(cudaHostAlloc, void **ptr, size_t size, unsigned int flags)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(
		err ? err : translate(CALL(cuMemHostAlloc)(ptr, size, flags)));
}

RUNTIME(cudaFreeHost, void *ptr)
{
	cudaError_t err = runtime_enter();

	if (err == cudaSuccess && ptr)
		err = translate(CALL(cuMemFreeHost)(ptr));
	return runtime_leave(err);
}

RUNTIME(cudaHostRegister, void *ptr, size_t size, unsigned int flags)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL(cuMemHostRegister)(ptr, size, flags));
	return runtime_leave(err);
}

RUNTIME(cudaHostUnregister, void *ptr)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuMemHostUnregister)(ptr)));
}

RUNTIME(cudaHostGetDevicePointer, void **dev, void *ptr, unsigned int flags)
{
	cudaError_t err = runtime_enter();
	CUdeviceptr at = 0;

	if (err == cudaSuccess && !dev)
		err = cudaErrorInvalidValue;
	err = err ? err : translate(CALL(cuMemHostGetDevicePointer)(&at, ptr, flags));
	if (err == cudaSuccess)
		*dev = (void *)at;
	return runtime_leave(err);
}

RUNTIME(cudaHostGetFlags, unsigned int *flags, void *ptr)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuMemHostGetFlags)(flags, ptr)));
}

static CUresult copy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind,
	enum flavour flavour)
{
	CUdeviceptr to = (CUdeviceptr)dst, from = (CUdeviceptr)src;

	switch (kind) {
	case cudaMemcpyHostToDevice:
		return CALL_AS(flavour, cuMemcpyHtoD)(to, src, size);
	case cudaMemcpyDeviceToHost:
		return CALL_AS(flavour, cuMemcpyDtoH)(dst, from, size);
	case cudaMemcpyDeviceToDevice:
		return CALL_AS(flavour, cuMemcpyDtoD)(to, from, size);
	case cudaMemcpyHostToHost:
	case cudaMemcpyDefault:
		return CALL_AS(flavour, cuMemcpy)(to, from, size);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

RUNTIME(cudaMemcpy, void *dst, const void *src, size_t size, enum cudaMemcpyKind kind)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(copy(dst, src, size, kind, LEGACY)));
}

RUNTIME(cudaMemcpy_ptds, void *dst, const void *src, size_t size,
	enum cudaMemcpyKind kind)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(
		err ? err : translate(copy(dst, src, size, kind, PER_THREAD)));
}

static CUresult copy_async(void *dst, const void *src, size_t size,
	enum cudaMemcpyKind kind, cudaStream_t stream, enum flavour flavour)
{
	CUdeviceptr to = (CUdeviceptr)dst, from = (CUdeviceptr)src;

	switch (kind) {
	case cudaMemcpyHostToDevice:
		return CALL_AS(flavour, cuMemcpyHtoDAsync)(to, src, size, stream);
	case cudaMemcpyDeviceToHost:
		return CALL_AS(flavour, cuMemcpyDtoHAsync)(dst, from, size, stream);
	case cudaMemcpyDeviceToDevice:
		return CALL_AS(flavour, cuMemcpyDtoDAsync)(to, from, size, stream);
	case cudaMemcpyHostToHost:
	case cudaMemcpyDefault:
		return CALL_AS(flavour, cuMemcpyAsync)(to, from, size, stream);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

RUNTIME(cudaMemcpyAsync, void *dst, const void *src, size_t size,
	enum cudaMemcpyKind kind, cudaStream_t stream)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(copy_async(dst, src, size, kind, stream, LEGACY));
	return runtime_leave(err);
}

RUNTIME(cudaMemcpyAsync_ptsz, void *dst, const void *src, size_t size,
	enum cudaMemcpyKind kind, cudaStream_t stream)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(copy_async(dst, src, size, kind, stream, PER_THREAD));
	return runtime_leave(err);
}

struct rectangle {
	void *dst;
	size_t dst_pitch;
	const void *src;
	size_t src_pitch, width, height;
};

/* Where each side is follows from its address, whatever kind says. */
static CUDA_MEMCPY2D driver_rectangle(const struct rectangle *r)
{
	return (CUDA_MEMCPY2D){.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
		.dstDevice = (CUdeviceptr)r->dst,
		.dstPitch = r->dst_pitch,
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcDevice = (CUdeviceptr)r->src,
		.srcPitch = r->src_pitch,
		.WidthInBytes = r->width,
		.Height = r->height};
}

RUNTIME(cudaMemcpy2D, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
	size_t width, size_t height, enum cudaMemcpyKind kind)
{
	const struct rectangle r = {dst, dst_pitch, src, src_pitch, width, height};
	const CUDA_MEMCPY2D p = driver_rectangle(&r);
	cudaError_t err = runtime_enter();

	(void)kind;
	if (err == cudaSuccess && (width > dst_pitch || width > src_pitch))
		err = cudaErrorInvalidPitchValue;
	return runtime_leave(err ? err : translate(CALL(cuMemcpy2DUnaligned)(&p)));
}

RUNTIME(cudaMemcpy2DAsync, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
	size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	const struct rectangle r = {dst, dst_pitch, src, src_pitch, width, height};
	const CUDA_MEMCPY2D p = driver_rectangle(&r);
	cudaError_t err = runtime_enter();

	(void)kind;
	if (err == cudaSuccess && (width > dst_pitch || width > src_pitch))
		err = cudaErrorInvalidPitchValue;
	return runtime_leave(err ? err : translate(CALL(cuMemcpy2DAsync)(&p, stream)));
}

/* Each side is reached from its own device, so no peer access is needed. */
static cudaError_t both_contexts(int dst_device, int src_device, CUcontext ctx[2])
{
	cudaError_t err = runtime_enter();

	err = err ? err : runtime_context_of(dst_device, &ctx[0]);
	return err ? err : runtime_context_of(src_device, &ctx[1]);
}

RUNTIME(cudaMemcpyPeer, void *dst, int dst_device, const void *src, int src_device,
	size_t size)
{
	CUcontext ctx[2];
	cudaError_t err = both_contexts(dst_device, src_device, ctx);

	if (err == cudaSuccess)
		err = translate(CALL(cuMemcpyPeer)(
			(CUdeviceptr)dst, ctx[0], (CUdeviceptr)src, ctx[1], size));
	return runtime_leave(err);
}

RUNTIME(cudaMemcpyPeerAsync, void *dst, int dst_device, const void *src, int src_device,
	size_t size, cudaStream_t stream)
{
	CUcontext ctx[2];
	cudaError_t err = both_contexts(dst_device, src_device, ctx);

	if (err == cudaSuccess)
		err = translate(CALL(cuMemcpyPeerAsync)((CUdeviceptr)dst, ctx[0],
			(CUdeviceptr)src, ctx[1], size, stream));
	return runtime_leave(err);
}

RUNTIME(cudaMemset, void *ptr, int value, size_t count)
{
	cudaError_t err = runtime_enter();
	unsigned char byte = value;

	err = err ? err : translate(CALL(cuMemsetD8)((CUdeviceptr)ptr, byte, count));
	return runtime_leave(err);
}

static cudaError_t fill_async(
	void *ptr, int value, size_t count, cudaStream_t stream, enum flavour flavour)
{
	cudaError_t err = runtime_enter();
	unsigned char byte = value;

	if (err == cudaSuccess)
		err = translate(CALL_AS(flavour, cuMemsetD8Async)(
			(CUdeviceptr)ptr, byte, count, stream));
	return runtime_leave(err);
}

RUNTIME(cudaMemsetAsync, void *ptr, int value, size_t count, cudaStream_t stream)
{
	return fill_async(ptr, value, count, stream, LEGACY);
}

RUNTIME(cudaMemsetAsync_ptsz, void *ptr, int value, size_t count, cudaStream_t stream)
{
	return fill_async(ptr, value, count, stream, PER_THREAD);
}

static enum cudaMemoryType type_of(unsigned memory, unsigned managed)
{
	if (managed)
		return cudaMemoryTypeManaged;
	if (memory == CU_MEMORYTYPE_HOST)
		return cudaMemoryTypeHost;
	return memory == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
					      : cudaMemoryTypeUnregistered;
}

/* Memory that is not CUDA's is no error. The struct grew in 13: no more is written. */
static cudaError_t get_attributes(
	struct cudaPointerAttributes *attributes, const void *ptr)
{
	unsigned memory = 0, managed = 0;
	int device = 0;
	void *on_device = NULL, *on_host = NULL;
	CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER};
	void *data[] = {&memory, &managed, &device, &on_device, &on_host};
	CUresult err = CALL(cuPointerGetAttributes)(5, which, data, (CUdeviceptr)ptr);

	if (err != CUDA_SUCCESS)
		return translate(err);
	attributes->type = type_of(memory, managed);
	attributes->device = device;
	attributes->devicePointer = on_device;
	attributes->hostPointer = on_host;
	return cudaSuccess;
}

RUNTIME(cudaPointerGetAttributes, struct cudaPointerAttributes *attributes,
	const void *ptr)
{
	cudaError_t err = runtime_enter();

	if (err == cudaSuccess && !attributes)
		err = cudaErrorInvalidValue;
	return runtime_leave(err ? err : get_attributes(attributes, ptr));
}

RUNTIME(cudaIpcGetMemHandle, cudaIpcMemHandle_t *handle, void *ptr)
{
	cudaError_t err = runtime_enter();
	CUipcMemHandle own;

	if (err == cudaSuccess && !handle)
		err = cudaErrorInvalidValue;
	err = err ? err : translate(CALL(cuIpcGetMemHandle)(&own, (CUdeviceptr)ptr));
	if (err == cudaSuccess)
		memcpy(handle, &own, sizeof own);
	return runtime_leave(err);
}

RUNTIME(cudaIpcOpenMemHandle, void **ptr, cudaIpcMemHandle_t handle, unsigned int flags)
{
	cudaError_t err = runtime_enter();
	CUipcMemHandle own;
	CUdeviceptr at = 0;

	memcpy(&own, &handle, sizeof own);
	if (err == cudaSuccess && !ptr)
		err = cudaErrorInvalidValue;
	err = err ? err : translate(CALL(cuIpcOpenMemHandle)(&at, own, flags));
	if (err == cudaSuccess)
		*ptr = (void *)at;
	return runtime_leave(err);
}

RUNTIME(cudaIpcCloseMemHandle, void *ptr)
{
	cudaError_t err = runtime_enter();

	err = err ? err : translate(CALL(cuIpcCloseMemHandle)((CUdeviceptr)ptr));
	return runtime_leave(err);
}
