/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management by others: the real functions, and counted. Our own calls do
 * not come by here. No state here.
 */
#include <cuda.h>

#include "caller.h"
#include "foreign.h"
#include "hook.h"
#include "lock.h"

static int told_device(const struct request *request)
{
	return request->ordinal;
}

static void count(
	CUmemGenericAllocationHandle handle, size_t size, CUdevice device, void *caller)
{
	const struct request request = {size, caller, told_device, device};
	struct choice choice = {.region = NULL};
	enum foreign_maker maker;
	char name[128];

	if (!region_choose(&request, &choice))
		choice.region = NULL;
	caller_name(caller, name, sizeof name);
	maker = foreign_maker(name);
	foreign_created(handle, size, maker, choice.region);
	if (choice.region)
		silence_note_foreign(choice.region, maker, name);
}

STAYPUT_HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	typeof(&cuMemCreate) real = REAL(cuMemCreate);
	CUresult answer =
		real ? real(handle, size, prop, flags) : CUDA_ERROR_NOT_INITIALIZED;

	if (answer == CUDA_SUCCESS &&
		prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !fork_is_child())
		count(*handle, size, prop->location.id, __builtin_return_address(0));
	return answer;
}

/* The record goes first: the handle may be given out again at once. */
STAYPUT_HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	typeof(&cuMemRelease) real = REAL(cuMemRelease);

	if (!fork_is_child())
		foreign_released(handle);
	return real ? real(handle) : CUDA_ERROR_NOT_INITIALIZED;
}

/* The same under names that only this library has: another's function of the public name
 * cannot come in between. */
extern typeof(cuMemCreate) hook_vmm_create
	__attribute__((alias("cuMemCreate"), visibility("hidden")));
extern typeof(cuMemRelease) hook_vmm_release
	__attribute__((alias("cuMemRelease"), visibility("hidden")));
