/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "lock.h"
#include "real.h"

static struct device devices[DEVICE_MAX];
static _Atomic bool described[DEVICE_MAX];

static int attribute(CUdevice ordinal, CUdevice_attribute which)
{
	int value = 0;

	return driver()->cuDeviceGetAttribute(&value, which, ordinal) == CUDA_SUCCESS
		       ? value
		       : 0;
}

/* The handles that other processes can take its memory by. Old headers lack fabric. */
static unsigned handle_types(CUdevice ordinal)
{
	unsigned types = 0;

	if (attribute(ordinal,
		    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
		types |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (attribute(ordinal, (CUdevice_attribute)128))
		types |= DEVICE_FABRIC;
	return types;
}

/* CUDA's and NVML's ordinals differ under CUDA_VISIBLE_DEVICES; the UUID does not. */
static void write_uuid(CUdevice ordinal, char text[DEVICE_UUID])
{
	CUuuid uuid;
	int len = 4;

	if (driver()->cuDeviceGetUuid_v2(&uuid, ordinal) != CUDA_SUCCESS)
		return;
	strcpy(text, "GPU-");
	for (int i = 0; i < 16; i++)
		len += snprintf(text + len, DEVICE_UUID - len, "%s%02x",
			i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			(unsigned char)uuid.bytes[i]);
}

static CUresult describe(CUdevice ordinal, struct device *dev)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
	};
	CUresult err;
	int pitch;

	*dev = (struct device){.ordinal = ordinal};
	err = driver()->cuDeviceTotalMem_v2(&dev->memory, ordinal);
	if (err != CUDA_SUCCESS)
		return err;
	write_uuid(ordinal, dev->uuid);
	pitch = attribute(ordinal, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
	dev->pitch_align = pitch > 512 ? pitch : 512;
	dev->rdma = attribute(
		ordinal, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	dev->handle_types = handle_types(ordinal);
	/* 134: the NUMA node of the host memory nearest, since CUDA 12.2. */
	if (driver()->cuDeviceGetAttribute(
		    &dev->numa_node, (CUdevice_attribute)134, ordinal) != CUDA_SUCCESS)
		dev->numa_node = -1;
	/* Old headers name this attribute, 102, otherwise. */
	dev->vmm = attribute(ordinal, (CUdevice_attribute)102) &&
		   driver()->cuMemGetAllocationGranularity(&dev->granule, &prop,
			   CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS;
	return CUDA_SUCCESS;
}

CUresult device_get(CUdevice ordinal, struct device **dev)
{
	struct device fresh;
	CUresult err;

	if (ordinal < 0 || ordinal >= DEVICE_MAX)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!atomic_load_explicit(&described[ordinal], memory_order_acquire)) {
		err = describe(ordinal, &fresh);
		if (err != CUDA_SUCCESS)
			return err;
		lock_take();
		if (!described[ordinal])
			devices[ordinal] = fresh;
		atomic_store_explicit(&described[ordinal], true, memory_order_release);
		lock_drop();
	}
	*dev = &devices[ordinal];
	return CUDA_SUCCESS;
}

static struct device *described_from(CUdevice ordinal)
{
	while (ordinal < DEVICE_MAX &&
		!atomic_load_explicit(&described[ordinal], memory_order_acquire))
		ordinal++;
	return ordinal < DEVICE_MAX ? &devices[ordinal] : NULL;
}

struct device *device_first(void)
{
	return described_from(0);
}

struct device *device_next(const struct device *dev)
{
	return described_from(dev->ordinal + 1);
}

/* After a reset, threads still have the context that is gone, and not every call says so. */
static _Atomic bool reset_seen;

void device_note_reset(void)
{
	atomic_store(&reset_seen, true);
}

static CUresult check_alive(void)
{
	size_t free_bytes, total;

	if (!atomic_load_explicit(&reset_seen, memory_order_relaxed))
		return CUDA_SUCCESS;
	return driver()->cuMemGetInfo_v2(&free_bytes, &total);
}

CUresult device_current(struct place *place)
{
	CUdevice ordinal;
	CUresult err;

	place->context = NULL;
	err = driver()->cuCtxGetCurrent(&place->context);
	if (err == CUDA_SUCCESS && !place->context)
		err = CUDA_ERROR_INVALID_CONTEXT;
	if (err == CUDA_SUCCESS)
		err = driver()->cuCtxGetDevice(&ordinal);
	if (err == CUDA_SUCCESS)
		err = check_alive();
	return err == CUDA_SUCCESS ? device_get(ordinal, &place->device) : err;
}

bool device_pitch(
	const struct device *dev, size_t width, size_t rows, size_t *pitch, size_t *size)
{
	if (__builtin_add_overflow(width, dev->pitch_align - 1, pitch))
		return false;
	*pitch -= *pitch % dev->pitch_align;
	return !__builtin_mul_overflow(*pitch, rows, size);
}

bool device_note_context_locked(struct device *dev, CUcontext ctx)
{
	for (size_t i = 0; i < dev->context_count; i++)
		if (dev->contexts[i] == ctx)
			return true;
	if (dev->context_count == DEVICE_CONTEXTS)
		return false;
	dev->contexts[dev->context_count++] = ctx;
	return true;
}

/* The place of `ctx` among the contexts of the device that it belongs to, or NULL. */
static CUcontext *find_context_locked(CUcontext ctx, struct device **dev)
{
	for (*dev = devices; *dev < devices + DEVICE_MAX; ++*dev)
		for (size_t i = 0; i < (*dev)->context_count; i++)
			if ((*dev)->contexts[i] == ctx)
				return &(*dev)->contexts[i];
	return NULL;
}

bool device_knows_context(CUcontext ctx)
{
	struct device *dev;
	bool known;

	lock_take();
	known = find_context_locked(ctx, &dev) != NULL;
	lock_drop();
	return known;
}

void device_forget_context(CUcontext ctx)
{
	struct device *dev;
	CUcontext *at;

	lock_take();
	at = find_context_locked(ctx, &dev);
	if (at)
		*at = dev->contexts[--dev->context_count];
	lock_drop();
}

static size_t copy_contexts(struct device *dev, CUcontext contexts[DEVICE_CONTEXTS])
{
	size_t count;

	lock_take();
	count = dev->context_count;
	memcpy(contexts, dev->contexts, count * sizeof *contexts);
	lock_drop();
	return count;
}

/* Pushes `ctx` unless it is current already. */
static CUresult push(CUcontext ctx, bool *pushed)
{
	CUcontext current = NULL;
	CUresult err;

	*pushed = false;
	if (driver()->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == ctx)
		return CUDA_SUCCESS;
	err = driver()->cuCtxPushCurrent_v2(ctx);
	*pushed = err == CUDA_SUCCESS;
	return err;
}

static void pop(void)
{
	CUcontext popped;

	driver()->cuCtxPopCurrent_v2(&popped);
}

CUresult device_of_context(CUcontext ctx, CUdevice *ordinal)
{
	bool pushed;
	CUresult err = push(ctx, &pushed);

	if (err == CUDA_SUCCESS)
		err = driver()->cuCtxGetDevice(ordinal);
	if (pushed)
		pop();
	return err;
}

static bool context_is_gone(CUresult err)
{
	return err == CUDA_ERROR_INVALID_CONTEXT ||
	       err == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult device_synchronize_context(CUcontext ctx)
{
	bool pushed;
	CUresult err = push(ctx, &pushed);

	if (err == CUDA_SUCCESS)
		err = driver()->cuCtxSynchronize();
	if (pushed)
		pop();
	if (!context_is_gone(err))
		return err;
	device_forget_context(ctx);
	return CUDA_SUCCESS;
}

CUresult device_synchronize(struct device *dev)
{
	CUcontext contexts[DEVICE_CONTEXTS];
	size_t count = copy_contexts(dev, contexts);

	for (size_t i = 0; i < count; i++) {
		CUresult err = device_synchronize_context(contexts[i]);

		if (err != CUDA_SUCCESS)
			return err;
	}
	return CUDA_SUCCESS;
}

void device_trim_pools(const struct device *dev)
{
	CUmemoryPool current = NULL, other = NULL;

	if (driver()->cuDeviceGetMemPool(&current, dev->ordinal) == CUDA_SUCCESS)
		driver()->cuMemPoolTrimTo(current, 0);
	if (driver()->cuDeviceGetDefaultMemPool(&other, dev->ordinal) == CUDA_SUCCESS &&
		other != current)
		driver()->cuMemPoolTrimTo(other, 0);
}

/* What the outermost device_enter() changed on this thread. */
static __thread CUstreamCaptureMode saved_mode;
static __thread unsigned entered;

CUresult device_enter(struct device *dev)
{
	struct place here;
	CUcontext contexts[DEVICE_CONTEXTS];
	size_t count = copy_contexts(dev, contexts);
	CUresult err = CUDA_ERROR_INVALID_CONTEXT;

	for (size_t i = 0; i < count && err != CUDA_SUCCESS; i++)
		err = driver()->cuCtxPushCurrent_v2(contexts[i]);
	/* Those that allocations were made in are gone; the caller's will do. */
	if (err != CUDA_SUCCESS && device_current(&here) == CUDA_SUCCESS &&
		here.device == dev)
		err = driver()->cuCtxPushCurrent_v2(here.context);
	if (err != CUDA_SUCCESS)
		return err;
	if (entered++ == 0) {
		saved_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		driver()->cuThreadExchangeStreamCaptureMode(&saved_mode);
	}
	return CUDA_SUCCESS;
}

void device_leave(void)
{
	if (--entered == 0)
		driver()->cuThreadExchangeStreamCaptureMode(&saved_mode);
	pop();
}

CUresult device_wait_stream(CUstream stream)
{
	CUresult err = driver()->cuStreamSynchronize(stream);

	return err == CUDA_SUCCESS ? err : driver()->cuStreamSynchronize(stream);
}

size_t device_free_memory(void)
{
	size_t free_bytes, total;
	CUresult err = driver()->cuMemGetInfo_v2(&free_bytes, &total);

	return err == CUDA_SUCCESS ? free_bytes : SIZE_MAX;
}
