/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known about an address. For VMM memory the range attributes speak of the whole
 * reservation, cuMemGetAddressRange() of one mapping.
 */
#include "fake.h"

#include <string.h>

static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	struct range *range;

	fake_lock();
	range = space_find_locked(ptr);
	if (range && base)
		*base = range->base;
	if (range && size)
		*size = range->size;
	fake_unlock();
	return range ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : address_range(base, size, ptr), "%#llx", ptr);
}

/* What the attributes are about: device memory, or pinned host memory. */
struct subject {
	CUdeviceptr ptr;
	struct range *range;
	struct host_range *host;
};

static size_t put(void *data, const void *value, size_t size)
{
	memcpy(data, value, size);
	return size;
}

static size_t put_unsigned(void *data, unsigned value)
{
	return put(data, &value, sizeof value);
}

static size_t put_bool(void *data, bool value)
{
	unsigned char byte = value;

	return put(data, &byte, sizeof byte);
}

static size_t put_wide(void *data, uint64_t value)
{
	return put(data, &value, sizeof value);
}

static struct extent whole_locked(const struct subject *of)
{
	if (of->host)
		return (struct extent){of->host->base, of->host->size};
	if (of->range->kind == RANGE_MAPPED) {
		struct reservation *r = space_reservation_locked(of->ptr);

		return (struct extent){r->base, r->size};
	}
	return (struct extent){of->range->base, of->range->size};
}

static struct CUctx_st *context_of(const struct subject *of)
{
	return of->host ? of->host->ctx : of->range->ctx;
}

static int device_of(const struct subject *of)
{
	if (of->range)
		return of->range->phys->device;
	return of->host->ctx ? of->host->ctx->device : 0;
}

static bool is_host_readable(const struct subject *of)
{
	return of->host || of->range->kind == RANGE_MANAGED;
}

/* Attributes about the memory itself. 0: not one of them. */
static size_t memory_attribute(
	void *data, CUpointer_attribute which, const struct subject *of)
{
	const struct range *range = of->range;
	bool is_vmm = range && range->kind == RANGE_MAPPED;

	switch (which) {
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return put_wide(data, range ? range->id : of->host->id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return put_bool(data, range && range->kind == RANGE_MANAGED);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return put_bool(data, range && range->kind == RANGE_NATIVE);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return put_bool(data, range && range->sync_memops);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return put_wide(
			data, is_vmm ? range->phys->prop.requestedHandleTypes : 0);
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		return put_bool(
			data, range && (!is_vmm || range->phys->prop.allocFlags
							   .gpuDirectRDMACapable));
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return put(data, range ? (const void *)&range->pool : &(void *){NULL},
			sizeof(void *));
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return put_wide(data, range ? range->size : of->host->size);
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return put_wide(data, range ? range->base : of->host->base);
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return put_wide(data, range ? range->phys->id : of->host->id);
	default:
		return 0;
	}
}

static unsigned access_locked(const struct subject *of)
{
	const struct CUctx_st *ctx = context_current();
	struct access access = {context_current(), true, false};

	if (of->host || !ctx)
		return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	if (space_allows_locked(of->ptr, 1, &access))
		return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	access.writes = false;
	return space_allows_locked(of->ptr, 1, &access)
		       ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
		       : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

static CUresult attribute_locked(
	void *data, CUpointer_attribute which, const struct subject *of)
{
	struct CUctx_st *ctx = context_of(of);

	switch (which) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		put(data, &ctx, sizeof ctx);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		put_unsigned(data, of->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		put_wide(data, of->ptr);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!is_host_readable(of))
			return CUDA_ERROR_INVALID_VALUE;
		put_wide(data, of->ptr);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		put_unsigned(data, device_of(of));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		put_wide(data, whole_locked(of).base);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		put_wide(data, whole_locked(of).size);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		put_bool(data, true);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		put_unsigned(data, access_locked(of));
		return CUDA_SUCCESS;
	default:
		return memory_attribute(data, which, of) ? CUDA_SUCCESS
							 : CUDA_ERROR_INVALID_VALUE;
	}
}

/* False for memory that CUDA does not know, or that was reserved and is not mapped. */
static bool find_locked(CUdeviceptr ptr, struct subject *of)
{
	*of = (struct subject){.ptr = ptr, .range = space_find_locked(ptr)};
	if (!of->range)
		of->host = host_find_locked((void *)ptr);
	return of->range || of->host;
}

static CUresult get_attribute(void *data, CUpointer_attribute which, CUdeviceptr ptr)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;
	struct subject of;

	if (!data)
		return err;
	fake_lock();
	if (find_locked(ptr, &of))
		err = attribute_locked(data, which, &of);
	fake_unlock();
	return err;
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr ptr)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	err = err ? err : get_attribute(data, which, ptr);
	return done(__func__, err, "%d, %#llx", (int)which, ptr);
}

static size_t size_of(CUpointer_attribute which)
{
	unsigned char scratch[16];
	static struct host_range any;
	const struct subject of = {.host = &any};

	switch (which) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return sizeof(unsigned);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return 1;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return 8;
	default:
		return memory_attribute(scratch, which, &of);
	}
}

/* Unknown memory is no error here: every attribute is then null. */
static CUresult get_attributes(
	unsigned count, CUpointer_attribute *which, void **data, CUdeviceptr ptr)
{
	struct subject of;
	bool found;

	if (!which || !data || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if (!size_of(which[i]))
			return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	found = find_locked(ptr, &of);
	for (unsigned i = 0; i < count; i++) {
		memset(data[i], 0, size_of(which[i]));
		if (found)
			attribute_locked(data[i], which[i], &of);
		else if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			put_unsigned(data[i], (unsigned)-2);
	}
	fake_unlock();
	return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttributes(
	unsigned int count, CUpointer_attribute *which, void **data, CUdeviceptr ptr)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	err = err ? err : get_attributes(count, which, data, ptr);
	return done(__func__, err, "%u, %#llx", count, ptr);
}

static CUresult set_attribute(
	const void *value, CUpointer_attribute which, CUdeviceptr ptr)
{
	CUresult err = CUDA_SUCCESS;
	struct range *range;

	if (!value || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	range = space_find_locked(ptr);
	if (!range)
		err = CUDA_ERROR_INVALID_VALUE;
	else if (range->kind == RANGE_MAPPED)
		err = CUDA_ERROR_NOT_SUPPORTED;
	else
		range->sync_memops = *(const unsigned *)value != 0;
	fake_unlock();
	return err;
}

API CUresult cuPointerSetAttribute(
	const void *value, CUpointer_attribute which, CUdeviceptr ptr)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	err = err ? err : set_attribute(value, which, ptr);
	return done(__func__, err, "%d, %#llx", (int)which, ptr);
}
