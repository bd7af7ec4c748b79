/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: reserve, create, map, set access, and the way back. None of
 * it waits for device work, and all of it is allowed beside a stream capture.
 */
#include "fake.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct slot {
	struct physical *phys;
	uint32_t uses;
};

static struct slot *slots;
static size_t slot_count, slot_room, first_free;

static CUmemGenericAllocationHandle give_handle_locked(struct physical *phys)
{
	size_t i = first_free;

	while (i < slot_count && slots[i].phys)
		i++;
	if (i == slot_room) {
		size_t room = slot_room ? 2 * slot_room : 256;
		struct slot *more = realloc(slots, room * sizeof *slots);

		if (!more)
			return 0;
		memset(more + slot_room, 0, (room - slot_room) * sizeof *slots);
		slots = more;
		slot_room = room;
	}
	if (i == slot_count)
		slot_count++;
	first_free = i + 1;
	slots[i].phys = phys;
	slots[i].uses++;
	return (CUmemGenericAllocationHandle)slots[i].uses << 32 | (i + 1);
}

void vmm_settle_locked(struct physical *phys)
{
	size_t i = (phys->handle & UINT32_MAX) - 1;

	if (phys->handle && !phys->handle_refs && !phys->map_refs) {
		slots[i].phys = NULL;
		if (i < first_free)
			first_free = i;
	}
	physical_settle_locked(phys);
}

struct physical *vmm_find_locked(CUmemGenericAllocationHandle handle)
{
	size_t i = (handle & UINT32_MAX) - 1;
	struct physical *phys = i < slot_count ? slots[i].phys : NULL;

	return phys && phys->handle == handle && phys->handle_refs ? phys : NULL;
}

size_t vmm_handles_locked(void)
{
	size_t count = 0;

	for (size_t i = 0; i < slot_count; i++)
		count += slots[i].phys ? slots[i].phys->handle_refs : 0;
	return count;
}

static struct reservation *map_reservation(
	size_t size, size_t alignment, CUdeviceptr hint)
{
	struct reservation *r = calloc(1, sizeof *r);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *at = MAP_FAILED;

	if (!r)
		return NULL;
	r->size = size;
	r->mapped_size = size;
	if (hint && hint % alignment == 0)
		at = mmap((void *)hint, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1,
			0);
	if (at == MAP_FAILED) {
		r->mapped_size = size + alignment;
		at = mmap(NULL, r->mapped_size, PROT_NONE, flags, -1, 0);
	}
	if (at == MAP_FAILED) {
		free(r);
		return NULL;
	}
	r->mapped = at;
	r->base = ((CUdeviceptr)at + alignment - 1) & ~(CUdeviceptr)(alignment - 1);
	return r;
}

static CUresult reserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint)
{
	struct reservation *r;

	if (!settings()->vmm)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!ptr || !size || size % GRANULE || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	r = map_reservation(size, alignment > GRANULE ? alignment : GRANULE, hint);
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fake_lock();
	if (!index_insert(&space_reservations, (struct extent *)r)) {
		fake_unlock();
		munmap(r->mapped, r->mapped_size);
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = r->base;
	fake_unlock();
	return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
	CUdeviceptr addr, unsigned long long flags)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	if (err == CUDA_SUCCESS && flags)
		err = CUDA_ERROR_INVALID_VALUE;
	err = err ? err : reserve(ptr, size, alignment, addr);
	return done(__func__, err, "%#llx, %zu, %zu, %#llx", err ? 0 : *ptr, size,
		alignment, addr);
}

static CUresult unreserve(CUdeviceptr ptr, size_t size)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;
	struct reservation *r;

	fake_lock();
	r = space_reservation_locked(ptr);
	if (r && r->base == ptr && r->size == size && !r->is_orphan &&
		!index_overlaps(&space_ranges, ptr, size)) {
		index_remove(&space_reservations, (struct extent *)r);
		munmap(r->mapped, r->mapped_size);
		free(r);
		err = CUDA_SUCCESS;
	}
	fake_unlock();
	return err;
}

API CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : unreserve(ptr, size), "%#llx, %zu", ptr, size);
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (!settings()->vmm)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return device_is_valid(prop->location.id) ? CUDA_SUCCESS
						  : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult check_handle_types(const CUmemAllocationProp *prop)
{
	const unsigned fabric = 8,
		       known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | fabric;
	unsigned types = prop->requestedHandleTypes;

	if (types && !settings()->shareable)
		return CUDA_ERROR_NOT_SUPPORTED;
	/* The device has fabric handles; the system seldom has what they need. */
	if (types & fabric && settings()->shareable < 2)
		return CUDA_ERROR_NOT_PERMITTED;
	return types & ~known ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult create_locked(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop)
{
	struct physical *phys;
	CUresult err = physical_create_locked(prop->location.id, size, &phys);

	if (err != CUDA_SUCCESS)
		return err;
	phys->is_vmm = true;
	phys->prop = *prop;
	phys->handle = give_handle_locked(phys);
	if (!phys->handle) {
		physical_settle_locked(phys);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	phys->handle_refs = 1;
	*handle = phys->handle;
	return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop)
{
	CUresult err = check_prop(prop);

	if (err != CUDA_SUCCESS)
		return err;
	if (!handle || !size || size % GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	err = check_handle_types(prop);
	if (err != CUDA_SUCCESS)
		return err;
	fake_lock();
	err = create_locked(handle, size, prop);
	fake_unlock();
	return err;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	if (err == CUDA_SUCCESS && flags)
		err = CUDA_ERROR_INVALID_VALUE;
	err = err ? err : create(handle, size, prop);
	return done(__func__, err, "%#llx, %zu, device %d", err ? 0 : *handle, size,
		prop ? prop->location.id : -1);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	struct physical *phys;
	bool released;

	fake_lock();
	phys = vmm_find_locked(handle);
	released = phys || multicast_release_locked(handle);
	if (phys) {
		phys->handle_refs--;
		vmm_settle_locked(phys);
	}
	fake_unlock();
	return released ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : release(handle), "%#llx", handle);
}

static CUresult retain(CUmemGenericAllocationHandle *handle, CUdeviceptr ptr)
{
	struct range *range;
	bool found;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	range = space_find_locked(ptr);
	found = range && range->kind == RANGE_MAPPED;
	if (found) {
		range->phys->handle_refs++;
		*handle = range->phys->handle;
	}
	fake_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : retain(handle, (CUdeviceptr)addr), "%p", addr);
}

static CUresult map_locked(
	CUdeviceptr ptr, size_t size, CUmemGenericAllocationHandle handle)
{
	struct physical *phys = vmm_find_locked(handle);
	struct reservation *r = space_reservation_locked(ptr);
	struct range *range;

	if (!phys || phys->size != size || !r || ptr % GRANULE ||
		size > r->base + r->size - ptr ||
		index_overlaps(&space_ranges, ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	range = calloc(1, sizeof *range);
	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range->base = ptr;
	range->size = size;
	range->kind = RANGE_MAPPED;
	range->phys = phys;
	range->id = fake_next_id();
	if (!index_insert(&space_ranges, (struct extent *)range)) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	phys->map_refs++;
	return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult err;

	if (offset)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!size || flags)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = map_locked(ptr, size, handle);
	fake_unlock();
	return err;
}

API CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	err = err ? err : map(ptr, size, offset, handle, flags);
	return done(__func__, err, "%#llx, %zu, %zu, %#llx", ptr, size, offset, handle);
}

/* [ptr, ptr + size) is whole mappings without a hole; the first is at `first`. */
static bool is_whole_locked(CUdeviceptr ptr, size_t size, size_t *first)
{
	CUdeviceptr at = ptr;

	*first = index_after(&space_ranges, ptr);
	for (size_t i = *first; i < space_ranges.count && at < ptr + size; i++) {
		const struct range *range = (struct range *)space_ranges.items[i];

		if (range->base != at || range->kind != RANGE_MAPPED)
			return false;
		at += range->size;
	}
	return at == ptr + size;
}

static CUresult unmap(CUdeviceptr ptr, size_t size)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;
	size_t first;

	fake_lock();
	if (size && is_whole_locked(ptr, size, &first)) {
		while (first < space_ranges.count &&
			space_ranges.items[first]->base < ptr + size) {
			struct range *range = (struct range *)space_ranges.items[first];

			index_remove(&space_ranges, (struct extent *)range);
			range->phys->map_refs--;
			vmm_settle_locked(range->phys);
			free(range);
		}
		err = CUDA_SUCCESS;
	}
	fake_unlock();
	return err;
}

/* There are no arrays here that anything could be mapped into. */
static CUresult map_arrays(const CUarrayMapInfo *list, unsigned count)
{
	CUresult err =
		list && count ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;

	fake_lock();
	for (unsigned i = 0; list && i < count; i++)
		if (!vmm_find_locked(list[i].memHandle.memHandle))
			err = CUDA_ERROR_INVALID_VALUE;
	fake_unlock();
	return err;
}

API CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : map_arrays(list, count), "%u, %p", count,
		(void *)stream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *, unsigned, CUstream);

API CUresult cuMemMapArrayAsync_ptsz(
	CUarrayMapInfo *list, unsigned count, CUstream stream)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : map_arrays(list, count), "%u, %p", count,
		(void *)stream);
}

API CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : unmap(ptr, size), "%#llx, %zu", ptr, size);
}

static bool are_valid(const CUmemAccessDesc *desc, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
			!device_is_valid(desc[i].location.id))
			return false;
	return desc && count;
}

static CUresult set_access(
	CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;
	size_t first;

	if (!size || !are_valid(desc, count))
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	if (is_whole_locked(ptr, size, &first)) {
		for (size_t i = first; i < space_ranges.count &&
				       space_ranges.items[i]->base < ptr + size;
			i++)
			for (size_t d = 0; d < count; d++)
				((struct range *)space_ranges.items[i])
					->access[desc[d].location.id] = desc[d].flags;
		err = CUDA_SUCCESS;
	}
	fake_unlock();
	return err;
}

API CUresult cuMemSetAccess(
	CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	err = err ? err : set_access(ptr, size, desc, count);
	return done(__func__, err, "%#llx, %zu, %zu devices", ptr, size, count);
}

static CUresult get_access(
	unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	struct range *range;
	bool found;

	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
		!device_is_valid(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	range = space_find_locked(ptr);
	found = range && range->kind == RANGE_MAPPED;
	if (found)
		*flags = range->access[location->id];
	fake_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetAccess(
	unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : get_access(flags, location, ptr), "%#llx", ptr);
}

static CUresult granularity(size_t *size, const CUmemAllocationProp *prop)
{
	CUresult err = check_prop(prop);

	if (err == CUDA_SUCCESS && !size)
		err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS)
		*size = GRANULE;
	return err;
}

API CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *prop,
	CUmemAllocationGranularity_flags option)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : granularity(size, prop), "%d", (int)option);
}

static CUresult get_prop(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct physical *phys;

	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	phys = vmm_find_locked(handle);
	if (phys)
		*prop = phys->prop;
	fake_unlock();
	return phys ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : get_prop(prop, handle), "%#llx", handle);
}

static CUresult export_locked(int *fd, CUmemGenericAllocationHandle handle)
{
	struct physical *phys = vmm_find_locked(handle);
	CUresult err;
	int own;

	if (!phys || !(phys->prop.requestedHandleTypes &
			     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return CUDA_ERROR_INVALID_VALUE;
	err = physical_share_locked(phys, &own);
	if (err != CUDA_SUCCESS)
		return err;
	*fd = fcntl(own, F_DUPFD_CLOEXEC, 3);
	return *fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

static CUresult export_fd(int *fd, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult err;

	if (!fd || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	fake_lock();
	err = export_locked(fd, handle);
	fake_unlock();
	return err;
}

API CUresult cuMemExportToShareableHandle(void *shareable,
	CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	err = err ? err : export_fd(shareable, handle, type, flags);
	return done(__func__, err, "%#llx, %d", handle, (int)type);
}

static CUresult import_locked(CUmemGenericAllocationHandle *handle, int fd)
{
	struct physical *phys;
	CUresult err = physical_import_locked(fd, &phys);

	if (err != CUDA_SUCCESS)
		return err;
	if (!phys->handle) {
		phys->is_vmm = true;
		phys->prop = (CUmemAllocationProp){
			.type = CU_MEM_ALLOCATION_TYPE_PINNED,
			.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
			.location = {CU_MEM_LOCATION_TYPE_DEVICE, phys->device},
		};
		phys->handle = give_handle_locked(phys);
	}
	if (!phys->handle) {
		physical_settle_locked(phys);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	phys->handle_refs++;
	*handle = phys->handle;
	return CUDA_SUCCESS;
}

static CUresult import(CUmemGenericAllocationHandle *handle, void *os_handle,
	CUmemAllocationHandleType type)
{
	CUresult err;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	fake_lock();
	err = import_locked(handle, (int)(intptr_t)os_handle);
	fake_unlock();
	return err;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
	void *os_handle, CUmemAllocationHandleType type)
{
	CUresult err = gate(__func__, GATE_DRIVER);

	return done(__func__, err ? err : import(handle, os_handle, type), "%d, %d",
		(int)(intptr_t)os_handle, (int)type);
}
