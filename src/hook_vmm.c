/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management by programs themselves, JAX for one. What they make in a region
 * is adopted; what is not is native, and counted. Calls about addresses take no lock as long
 * as nothing is adopted. Our own calls do not come by here.
 */
#include <cuda.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "adopt.h"
#include "caller.h"
#include "control.h"
#include "foreign.h"
#include "hook.h"
#include "mapping.h"
#include "real.h"
#include "token.h"

#if CUDA_VERSION < 12010
STAYPUT_HOOK CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t,
	CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);
STAYPUT_HOOK CUresult cuMulticastBindAddr(
	CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long);
#endif

/* Exported by the driver, but not declared by its headers. */
STAYPUT_HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *, unsigned int, CUstream);

static int told_device(const struct request *request)
{
	return request->ordinal;
}

/* Memory that the driver has made: adopted, or counted and native. PyTorch's expandable
 * segments come and go in parts: not adopted, until that is built. */
static void account(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, void *caller, bool may_adopt)
{
	const struct request request = {size, caller, told_device, prop->location.id};
	struct choice choice = {.region = NULL};
	enum foreign_maker maker;
	char name[128];

	if (!region_choose(&request, &choice))
		choice.region = NULL;
	caller_name(caller, name, sizeof name);
	maker = foreign_maker(name);
	if (may_adopt && choice.region && choice.policy != STAYPUT_KEEP &&
		maker != FOREIGN_PYTORCH && adopt_created(handle, size, prop, &choice)) {
		silence_note_call(size);
		control_start();
		return;
	}
	foreign_created(*handle, size, maker, choice.region);
	if (choice.region) {
		silence_note_foreign(choice.region, maker, name);
		control_start();
	}
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags, void *caller,
	bool may_adopt)
{
	typeof(&cuMemCreate) real = real_find("cuMemCreate", caller);
	CUresult answer =
		real ? real(handle, size, prop, flags) : CUDA_ERROR_NOT_INITIALIZED;

	if (answer == CUDA_SUCCESS &&
		prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !fork_is_child())
		account(handle, size, prop, caller, may_adopt && !flags);
	return answer;
}

STAYPUT_HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	return create(handle, size, prop, flags, __builtin_return_address(0),
		!hook_is_inside());
}

CUresult hook_vmm_create(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	return create(handle, size, prop, flags, __builtin_return_address(0), false);
}

/* A token of ours, and the record of it is not another process's. */
static bool is_ours(CUmemGenericAllocationHandle handle)
{
	return token_is(handle) && !fork_is_child();
}

/* Adopted memory may be where this call goes. */
static bool may_meet(void)
{
	return mapping_any() && !fork_is_child();
}

STAYPUT_HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	typeof(&cuMemRelease) real = REAL(cuMemRelease);

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (is_ours(handle))
		return adopt_release(handle, real);
	/* The record goes first: the handle may be given out again at once. */
	if (!fork_is_child())
		foreign_released(handle);
	return real(handle);
}

/* Under a name that only this library has: another's function of the public name cannot
 * come in between. */
extern typeof(cuMemRelease) hook_vmm_release
	__attribute__((alias("cuMemRelease"), visibility("hidden")));

STAYPUT_HOOK CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	typeof(&cuMemMap) real = REAL(cuMemMap);

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (is_ours(handle))
		return adopt_map(ptr, size, offset, handle, flags, real);
	if (may_meet() && adopt_any_paused(ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	return real(ptr, size, offset, handle, flags);
}

STAYPUT_HOOK CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	typeof(&cuMemUnmap) real = REAL(cuMemUnmap);

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	return may_meet() ? adopt_unmap(ptr, size, real) : real(ptr, size);
}

STAYPUT_HOOK CUresult cuMemSetAccess(
	CUdeviceptr ptr, size_t size, const CUmemAccessDesc *access, size_t count)
{
	typeof(&cuMemSetAccess) real = REAL(cuMemSetAccess);

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	return may_meet() ? adopt_set_access(ptr, size, access, count, real)
			  : real(ptr, size, access, count);
}

STAYPUT_HOOK CUresult cuMemGetAccess(
	unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	typeof(&cuMemGetAccess) real = REAL(cuMemGetAccess);

	if (flags && location && may_meet() && adopt_get_access(flags, location, ptr))
		return CUDA_SUCCESS;
	return real ? real(flags, location, ptr) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	typeof(&cuMemAddressFree) real = REAL(cuMemAddressFree);

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	return may_meet() ? adopt_free_addresses(ptr, size, real) : real(ptr, size);
}

STAYPUT_HOOK CUresult cuMemRetainAllocationHandle(
	CUmemGenericAllocationHandle *handle, void *ptr)
{
	typeof(&cuMemRetainAllocationHandle) real = REAL(cuMemRetainAllocationHandle);

	if (handle && may_meet() && adopt_retain(handle, (CUdeviceptr)ptr))
		return CUDA_SUCCESS;
	return real ? real(handle, ptr) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	typeof(&cuMemGetAllocationPropertiesFromHandle) real =
		REAL(cuMemGetAllocationPropertiesFromHandle);

	if (is_ours(handle))
		return adopt_properties(prop, handle);
	return real ? real(prop, handle) : CUDA_ERROR_NOT_INITIALIZED;
}

STAYPUT_HOOK CUresult cuMemExportToShareableHandle(void *shareable,
	CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	typeof(&cuMemExportToShareableHandle) real = REAL(cuMemExportToShareableHandle);
	CUmemGenericAllocationHandle shared = handle;
	CUresult err;

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	err = is_ours(handle) ? adopt_share(handle, &shared) : CUDA_SUCCESS;
	if (err != CUDA_SUCCESS)
		return err;
	err = real(shareable, shared, type, flags);
	if (shared != handle && err != CUDA_SUCCESS)
		adopt_unshare(handle);
	return err;
}

STAYPUT_HOOK CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object,
	size_t object_offset, CUmemGenericAllocationHandle handle, size_t offset,
	size_t size, unsigned long long flags)
{
	typeof(&cuMulticastBindMem) real = REAL(cuMulticastBindMem);
	CUmemGenericAllocationHandle shared = handle;
	CUresult err;

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	err = is_ours(handle) ? adopt_share(handle, &shared) : CUDA_SUCCESS;
	if (err != CUDA_SUCCESS)
		return err;
	err = real(object, object_offset, shared, offset, size, flags);
	if (shared != handle && err != CUDA_SUCCESS)
		adopt_unshare(handle);
	return err;
}

STAYPUT_HOOK CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object,
	size_t object_offset, CUdeviceptr ptr, size_t size, unsigned long long flags)
{
	typeof(&cuMulticastBindAddr) real = REAL(cuMulticastBindAddr);
	bool met = may_meet();
	CUresult err;

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (met)
		adopt_share_range(ptr, size);
	err = real(object, object_offset, ptr, size, flags);
	if (met && err != CUDA_SUCCESS)
		adopt_unshare_range(ptr, size);
	return err;
}

/* Puts the driver's handles into the copy of a list; *done is how many entries, from the
 * first, have what they need. */
static CUresult share_list(CUarrayMapInfo *copy, const CUarrayMapInfo *list,
	unsigned int count, unsigned int *done)
{
	CUresult err = CUDA_SUCCESS;

	for (*done = 0; *done < count && err == CUDA_SUCCESS;
		*done += err == CUDA_SUCCESS)
		if (is_ours(list[*done].memHandle.memHandle))
			err = adopt_share(list[*done].memHandle.memHandle,
				&copy[*done].memHandle.memHandle);
	return err;
}

static bool any_ours(const CUarrayMapInfo *list, unsigned int count)
{
	for (unsigned int i = 0; list && i < count; i++)
		if (is_ours(list[i].memHandle.memHandle))
			return true;
	return false;
}

static CUresult map_arrays(CUarrayMapInfo *list, unsigned int count, CUstream stream,
	typeof(&cuMemMapArrayAsync) real)
{
	CUarrayMapInfo *copy;
	unsigned int shared;
	CUresult err;

	if (!real)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!any_ours(list, count))
		return real(list, count, stream);
	copy = malloc(count * sizeof *copy);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(copy, list, count * sizeof *copy);
	err = share_list(copy, list, count, &shared);
	if (err == CUDA_SUCCESS)
		err = real(copy, count, stream);
	for (unsigned int i = 0; i < shared && err != CUDA_SUCCESS; i++)
		if (is_ours(list[i].memHandle.memHandle))
			adopt_unshare(list[i].memHandle.memHandle);
	free(copy);
	return err;
}

STAYPUT_HOOK CUresult cuMemMapArrayAsync(
	CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return map_arrays(list, count, stream, REAL(cuMemMapArrayAsync));
}

STAYPUT_HOOK CUresult cuMemMapArrayAsync_ptsz(
	CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return map_arrays(list, count, stream, REAL(cuMemMapArrayAsync_ptsz));
}
