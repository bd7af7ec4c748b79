/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multicast objects, as far as their hold on memory goes: what is bound to one stays in use
 * until it is unbound or the object is released. They cannot be mapped.
 */
#include "fake.h"

#include <stdlib.h>

#if CUDA_VERSION >= 12010
struct binding {
	struct physical *phys;
	size_t offset, size;
	struct binding *next;
};

struct object {
	CUmemGenericAllocationHandle handle;
	size_t size;
	unsigned devices;
	struct binding *bindings;
	struct object *next;
};

static struct object *objects;

static struct object **find_locked(CUmemGenericAllocationHandle handle)
{
	struct object **at = &objects;

	while (*at && (*at)->handle != handle)
		at = &(*at)->next;
	return at;
}

API CUresult cuMulticastCreate(
	CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	CUresult err = gate(__func__, GATE_DRIVER);
	struct object *object = NULL;

	if (err == CUDA_SUCCESS && (!handle || !prop || !prop->size ||
					   prop->size % GRANULE || !prop->numDevices))
		err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS) {
		object = calloc(1, sizeof *object);
		err = object ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (err == CUDA_SUCCESS) {
		fake_lock();
		object->handle = (UINT64_C(1) << 62) + fake_next_id();
		object->size = prop->size;
		object->next = objects;
		objects = object;
		*handle = object->handle;
		fake_unlock();
	}
	return done(__func__, err, "%#llx", err ? 0 : *handle);
}

API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_DRIVER);
	struct object *object;

	if (err == CUDA_SUCCESS && !device_is_valid(dev))
		err = CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	object = *find_locked(handle);
	if (err == CUDA_SUCCESS && !object)
		err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS)
		object->devices |= 1u << dev;
	fake_unlock();
	return done(__func__, err, "%#llx, %d", handle, dev);
}

static CUresult bind_locked(
	struct object *object, size_t offset, struct physical *phys, size_t size)
{
	struct binding *binding;

	if (!object || !phys || !size || (offset | size) % GRANULE ||
		offset > object->size || size > object->size - offset ||
		!(object->devices & 1u << phys->device))
		return CUDA_ERROR_INVALID_VALUE;
	binding = calloc(1, sizeof *binding);
	if (!binding)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*binding = (struct binding){phys, offset, size, object->bindings};
	object->bindings = binding;
	phys->map_refs++;
	return CUDA_SUCCESS;
}

API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	CUresult err = gate(__func__, GATE_DRIVER);
	struct physical *phys;

	fake_lock();
	phys = vmm_find_locked(memory);
	if (err == CUDA_SUCCESS && (flags || !phys || memory_offset > phys->size ||
					   size > phys->size - memory_offset))
		err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS)
		err = bind_locked(*find_locked(handle), offset, phys, size);
	fake_unlock();
	return done(__func__, err, "%#llx, %zu, %#llx, %zu, %zu", handle, offset, memory,
		memory_offset, size);
}

API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
	CUdeviceptr ptr, size_t size, unsigned long long flags)
{
	CUresult err = gate(__func__, GATE_DRIVER);
	struct range *range;

	fake_lock();
	range = space_find_locked(ptr);
	if (err == CUDA_SUCCESS && (flags || !range || range->kind != RANGE_MAPPED ||
					   size > range->base + range->size - ptr))
		err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS)
		err = bind_locked(*find_locked(handle), offset, range->phys, size);
	fake_unlock();
	return done(__func__, err, "%#llx, %zu, %#llx, %zu", handle, offset, ptr, size);
}

static void unbind_locked(struct binding **at)
{
	struct binding *binding = *at;

	*at = binding->next;
	binding->phys->map_refs--;
	vmm_settle_locked(binding->phys);
	free(binding);
}

API CUresult cuMulticastUnbind(
	CUmemGenericAllocationHandle handle, CUdevice dev, size_t offset, size_t size)
{
	CUresult err = gate(__func__, GATE_DRIVER);
	struct binding **at = NULL;
	struct object *object;

	fake_lock();
	object = *find_locked(handle);
	for (at = object ? &object->bindings : NULL; at && *at; at = &(*at)->next)
		if ((*at)->offset == offset && (*at)->size == size &&
			(*at)->phys->device == dev)
			break;
	if (err == CUDA_SUCCESS && (!at || !*at))
		err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS)
		unbind_locked(at);
	fake_unlock();
	return done(__func__, err, "%#llx, %d, %zu, %zu", handle, dev, offset, size);
}

bool multicast_release_locked(CUmemGenericAllocationHandle handle)
{
	struct object **at = find_locked(handle), *object = *at;

	if (!object)
		return false;
	while (object->bindings)
		unbind_locked(&object->bindings);
	*at = object->next;
	free(object);
	return true;
}
#else
bool multicast_release_locked(CUmemGenericAllocationHandle handle)
{
	(void)handle;
	return false;
}
#endif
