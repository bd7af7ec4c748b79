/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver behaves as the measured one does: each test is one fact. Those about
 * streams, processes and the runtimes are in fakecuda/cases_*.c.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "fakecuda/cases.h"

static void granularity_is_two_mib(void)
{
	size_t minimum, recommended;

	cases_start();
	CHECK_EQ(cuMemGetAllocationGranularity(&minimum, &cases_prop, 0), 0);
	CHECK_EQ(cuMemGetAllocationGranularity(&recommended, &cases_prop, 1), 0);
	CHECK_EQ(minimum, MIB2);
	CHECK_EQ(recommended, MIB2);
}

static void a_handle_maps_only_whole(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;

	cases_start();
	CHECK_EQ(cuMemAddressReserve(&at, 4 * MIB2, 0, 0, 0), 0);
	CHECK_EQ(cuMemCreate(&handle, 2 * MIB2, &cases_prop, 0), 0);
	CHECK_EQ(cuMemMap(at, MIB2, MIB2, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQ(cuMemMap(at, MIB2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemMap(at + 3 * MIB2, 2 * MIB2, 0, handle, 0),
		CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemMap(at, 2 * MIB2, 0, handle, 0), 0);
	CHECK_EQ(cuMemMap(at + MIB2, 2 * MIB2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
}

static void ranges_are_whole_adjacent_mappings(void)
{
	CUdeviceptr at;

	cases_start();
	at = cases_reserve(8 * MIB2);
	cases_map(at, 2 * MIB2, 0);
	cases_map(at + 2 * MIB2, MIB2, 0);
	cases_map(at + 4 * MIB2, MIB2, 0);
	CHECK_EQ(cases_access(at, 3 * MIB2, 0), 0);
	CHECK_EQ(cases_access(at, MIB2, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cases_access(at, 5 * MIB2, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemUnmap(at, MIB2), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemUnmap(at + MIB2, MIB2), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemUnmap(at, 5 * MIB2), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemUnmap(at, 3 * MIB2), 0);
	CHECK_EQ(cuMemAddressFree(at, 8 * MIB2), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemUnmap(at + 4 * MIB2, MIB2), 0);
	CHECK_EQ(cuMemAddressFree(at, 4 * MIB2), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemAddressFree(at, 8 * MIB2), 0);
	CHECK_EQ(cases_report().reservations, 0);
	CHECK_EQ(cases_report().bytes_used[0], 0);
}

static void sizes_that_are_no_multiple_are_refused(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;

	cases_start();
	CHECK_EQ(cuMemCreate(&handle, MIB2 + 4096, &cases_prop, 0),
		CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemCreate(&handle, 0, &cases_prop, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemAddressReserve(&at, MIB2 / 2, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

static void memory_lives_as_long_as_handle_or_mapping(void)
{
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr at;

	cases_start();
	at = cases_reserve(MIB2);
	CHECK_EQ(cuMemCreate(&handle, MIB2, &cases_prop, 0), 0);
	CHECK_EQ(cuMemMap(at, MIB2, 0, handle, 0), 0);
	CHECK_EQ(cuMemRelease(handle), 0);
	CHECK_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemRetainAllocationHandle(&again, (void *)at), 0);
	CHECK_EQ(again, handle);
	CHECK_EQ(cuMemUnmap(at, MIB2), 0);
	CHECK_EQ(cases_report().bytes_used[0], MIB2);
	CHECK_EQ(cuMemRelease(again), 0);
	CHECK_EQ(cases_report().bytes_used[0], 0);
}

static void memory_is_inaccessible_until_access_is_set(void)
{
	CUmemAccessDesc read_only = cases_desc(0);
	CUdeviceptr at;
	char byte = 7;

	cases_start();
	at = cases_reserve(MIB2);
	cases_map(at, MIB2, 0);
	CHECK_EQ(cuMemcpyHtoD(at, &byte, 1), CUDA_ERROR_INVALID_VALUE);
	read_only.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	CHECK_EQ(cuMemSetAccess(at, MIB2, &read_only, 1), 0);
	CHECK_EQ(cuMemcpyDtoH(&byte, at, 1), 0);
	CHECK_EQ(cuMemcpyHtoD(at, &byte, 1), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cases_access(at, MIB2, 0), 0);
	CHECK_EQ(cuMemcpyHtoD(at, &byte, 1), 0);
}

static void fresh_memory_is_poison(void)
{
	unsigned char bytes[4] = {0};
	CUdeviceptr at;

	cases_start();
	at = cases_allocate(MIB2);
	CHECK_EQ(cuMemcpyDtoH(bytes, at + MIB2 - 4, 4), 0);
	CHECK_EQ(bytes[0], 0xa5);
	CHECK_EQ(bytes[3], 0xa5);
}

static void fresh_memory_is_zero_without_poison(void)
{
	unsigned char byte = 1;

	setenv("FAKECUDA_POISON", "0", 1);
	cases_start();
	CHECK_EQ(cuMemcpyDtoH(&byte, cases_allocate(MIB2), 1), 0);
	CHECK_EQ(byte, 0);
}

static void on_crash(int signal)
{
	(void)signal;
	_exit(3);
}

static void touch_device_memory(void)
{
	CUdeviceptr at;

	cases_start();
	at = cases_allocate(MIB2);
	signal(SIGSEGV, on_crash);
	*(volatile char *)at = 1;
}

static void the_host_cannot_touch_device_memory(void)
{
	CHECK_EQ(cases_child(touch_device_memory), 3);
}

#if CUDA_VERSION >= 12010
static void memory_bound_to_a_multicast_object_stays(void)
{
	CUmulticastObjectProp prop = {.numDevices = 1, .size = 2 * MIB2};
	CUmemGenericAllocationHandle object, handle;
	struct fakecuda_report report;

	cases_start();
	CHECK_EQ(cuMulticastCreate(&object, &prop), 0);
	CHECK_EQ(cuMemCreate(&handle, MIB2, &cases_prop, 0), 0);
	CHECK_EQ(cuMulticastBindMem(object, 0, handle, 0, MIB2, 0),
		CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMulticastAddDevice(object, 0), 0);
	CHECK_EQ(cuMulticastBindMem(object, 2 * MIB2, handle, 0, MIB2, 0),
		CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMulticastBindMem(object, 0, handle, 0, MIB2, 0), 0);
	CHECK_EQ(cuMemRelease(handle), 0);
	fakecuda_report(&report);
	CHECK_EQ(report.bytes_used[0], MIB2);
	CHECK_EQ(cuMulticastUnbind(object, 0, MIB2, MIB2), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMulticastUnbind(object, 0, 0, MIB2), 0);
	fakecuda_report(&report);
	CHECK_EQ(report.bytes_used[0], 0);
	CHECK_EQ(cuMemRelease(object), 0);
	CHECK_EQ(cuMemRelease(object), CUDA_ERROR_INVALID_VALUE);
}
#endif

static void handle_types_are_checked_at_create(void)
{
	CUmemAllocationProp prop = cases_prop;
	CUmemGenericAllocationHandle handle;
	int fd;

	cases_start();
	prop.requestedHandleTypes = (CUmemAllocationHandleType)8;
	CHECK_EQ(cuMemCreate(&handle, MIB2, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
	prop.requestedHandleTypes = (CUmemAllocationHandleType)(8 | 1);
	CHECK_EQ(cuMemCreate(&handle, MIB2, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.allocFlags.gpuDirectRDMACapable = 1;
	CHECK_EQ(cuMemCreate(&handle, MIB2, &prop, 0), 0);
	CHECK_EQ(cuMemExportToShareableHandle(&fd, handle, prop.requestedHandleTypes, 0),
		0);
	prop.requestedHandleTypes = 0;
	CHECK_EQ(cuMemCreate(&handle, MIB2, &prop, 0), 0);
	CHECK_EQ(cuMemExportToShareableHandle(
			 &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_ERROR_INVALID_VALUE);
}

static void a_driver_may_lack_vmm(void)
{
	CUmemGenericAllocationHandle handle;
	int supported;

	setenv("FAKECUDA_VMM", "0", 1);
	cases_start();
	CHECK_EQ(cuDeviceGetAttribute(&supported, (CUdevice_attribute)102, 0), 0);
	CHECK_EQ(supported, 0);
	CHECK_EQ(cuMemCreate(&handle, MIB2, &cases_prop, 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void the_budget_is_kept(void)
{
	CUmemGenericAllocationHandle handle;
	size_t free_bytes, total;
	CUdeviceptr at;

	setenv("FAKECUDA_MEMORY", "8MiB", 1);
	cases_start();
	at = cases_allocate(3 * MIB2);
	CHECK_EQ(
		cuMemCreate(&handle, 2 * MIB2, &cases_prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQ(cuMemGetInfo(&free_bytes, &total), 0);
	CHECK_EQ(free_bytes, MIB2);
	CHECK_EQ(total, 4 * MIB2);
	fakecuda_budget(0, 5 * MIB2);
	CHECK_EQ(cuMemCreate(&handle, 2 * MIB2, &cases_prop, 0), 0);
	CHECK_EQ(cuMemUnmap(at, 3 * MIB2), 0);
	CHECK_EQ(cuMemRelease(handle), 0);
	CHECK_EQ(cuMemGetInfo(&free_bytes, &total), 0);
	CHECK_EQ(free_bytes, total);
}

static void small_allocations_share_a_granule(void)
{
	CUdeviceptr at[64];

	cases_start();
	for (int i = 0; i < 64; i++)
		CHECK_EQ(cuMemAlloc(&at[i], 256), 0);
	CHECK_EQ(cases_report().bytes_used[0], MIB2);
	CHECK_EQ(cases_report().native_allocs, 64);
	for (int i = 0; i < 64; i++)
		CHECK_EQ(cuMemFree(at[i]), 0);
	CHECK_EQ(cases_report().bytes_used[0], 0);
}

static void native_frees_know_only_native_memory(void)
{
	CUdeviceptr native, vmm;

	cases_start();
	vmm = cases_allocate(MIB2);
	CHECK_EQ(cuMemFree(vmm), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemFreeAsync(vmm, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemAlloc(&native, MIB2), 0);
	CHECK_EQ(cuMemFree(native + 512), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemFree(native), 0);
	CHECK_EQ(cuMemFree(native), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemAlloc(&native, MIB2), 0);
	CHECK_EQ(cuMemFreeAsync(native, NULL), 0);
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(cases_report().native_allocs, 0);
}

static void an_allocation_that_fails_answers_null(void)
{
	CUdeviceptr native = 1;

	cases_start();
	CHECK_EQ(cuMemAlloc(&native, (size_t)1 << 50), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQ(native, 0);
}

static void range_queries_differ_for_vmm_memory(void)
{
	CUdeviceptr base, at;
	size_t size;

	cases_start();
	at = cases_reserve(16 * MIB2);
	cases_map(at + 2 * MIB2, 3 * MIB2, 0);
	CHECK_EQ(cuMemGetAddressRange(&base, &size, at + 3 * MIB2 + 5), 0);
	CHECK_EQ(base, at + 2 * MIB2);
	CHECK_EQ(size, 3 * MIB2);
	CHECK_EQ(cases_range_start(at + 3 * MIB2), at);
	CHECK_EQ(cases_range_size(at + 3 * MIB2), 16 * MIB2);
	CHECK_EQ(cuMemAlloc(&at, 1000), 0);
	CHECK_EQ(cuMemGetAddressRange(&base, &size, at + 999), 0);
	CHECK_EQ(base, at);
	CHECK_EQ(size, 1000);
	CHECK_EQ(cases_range_start(at + 5), at);
	CHECK_EQ(cases_range_size(at + 5), 1000);
	CHECK_EQ(cuMemGetAddressRange(&base, &size, at + 1000), CUDA_ERROR_NOT_FOUND);
}

static void reserved_memory_is_unknown(void)
{
	CUmemorytype type;
	CUdeviceptr at, base;
	size_t size;

	cases_start();
	at = cases_reserve(MIB2);
	CHECK_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at),
		CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemGetAddressRange(&base, &size, at), CUDA_ERROR_NOT_FOUND);
}

static void sync_memops_and_ipc_are_for_native_memory(void)
{
	unsigned one = 1;
	CUipcMemHandle handle;
	CUdeviceptr vmm, native;

	cases_start();
	vmm = cases_allocate(MIB2);
	CHECK_EQ(cuMemAlloc(&native, MIB2), 0);
	CHECK_EQ(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, vmm),
		CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQ(
		cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, native), 0);
	CHECK_EQ(cuIpcGetMemHandle(&handle, vmm), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuIpcGetMemHandle(&handle, native), 0);
}

static void host_registrations_may_not_overlap(void)
{
	static char buffer[8192];

	cases_start();
	CHECK_EQ(cuMemHostRegister(buffer, 4096, 0), 0);
	CHECK_EQ(cuMemHostRegister(buffer + 4000, 4096, 0),
		CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CHECK_EQ(cuMemHostUnregister(buffer + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	CHECK_EQ(cuMemHostUnregister(buffer), 0);
	CHECK_EQ(cuMemHostUnregister(buffer), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

static void pools_hold_back_what_they_may(void)
{
	cuuint64_t all = UINT64_MAX;
	CUmemoryPool pool;
	CUdeviceptr at;

	cases_start();
	CHECK_EQ(cuDeviceGetDefaultMemPool(&pool, 0), 0);
	CHECK_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all), 0);
	CHECK_EQ(cuMemAllocAsync(&at, 2 * MIB2, NULL), 0);
	CHECK_EQ(cuMemFreeAsync(at, NULL), 0);
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(cases_report().bytes_used[0], 2 * MIB2);
	CHECK_EQ(cuMemPoolTrimTo(pool, 0), 0);
	CHECK_EQ(cases_report().bytes_used[0], 0);
}

static void a_synchronous_mistake_is_only_an_error(void)
{
	CUdeviceptr at, good;

	cases_start();
	at = cases_reserve(MIB2);
	CHECK_EQ(cuMemsetD8(at, 0, 16), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemsetD8Async(at, 0, 16, NULL), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(cuMemAlloc(&good, 16), 0);
	CHECK_EQ(cases_report().faults, 0);
}

static void use_after_unmap_loses_the_context(void)
{
	CUdeviceptr at, other;

	cases_start();
	at = cases_allocate(MIB2);
	fakecuda_delay_us(20000);
	CHECK_EQ(cuMemsetD8Async(at, 0, MIB2, NULL), 0);
	CHECK_EQ(cuMemUnmap(at, MIB2), 0);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuMemAlloc(&other, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuMemUnmap(at, MIB2), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cases_report().faults, 1);
}

static void a_context_that_is_reset_works_again(void)
{
	CUdeviceptr at;

	cases_start();
	cases_launch("touch", cases_reserve(MIB2), NULL);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cuDevicePrimaryCtxReset(0), 0);
	CHECK_EQ(cuMemAlloc(&at, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	cases_enter(0);
	CHECK_EQ(cuMemAlloc(&at, 16), 0);
}

static void a_kernel_loses_the_context_on_unmapped_memory(void)
{
	CUdeviceptr at;

	cases_start();
	at = cases_allocate(MIB2);
	cases_launch("touch", at, NULL);
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(*(int *)fakecuda_at(at, sizeof(int)), 42);
	CHECK_EQ(cuMemUnmap(at, MIB2), 0);
	cases_launch("touch", at, NULL);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK_EQ(cases_report().faults, 1);
}

static void unmapping_under_a_kernel_loses_the_context(void)
{
	CUdeviceptr at;

	cases_start();
	at = cases_allocate(MIB2);
	cases_launch("wait", at, NULL);
	sem_wait(&cases_running);
	CHECK_EQ(cuMemUnmap(at, MIB2), 0);
	sem_post(&cases_go);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void vmm_calls_do_not_wait_and_frees_do(void)
{
	CUdeviceptr used, native;
	CUstream stream;

	cases_start();
	used = cases_allocate(MIB2);
	CHECK_EQ(cuMemAlloc(&native, MIB2), 0);
	CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	cases_launch("wait", used, stream);
	sem_wait(&cases_running);
	CHECK_EQ(cuMemUnmap(cases_allocate(MIB2), MIB2), 0);
	CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	cases_post_later(&cases_go);
	CHECK_EQ(cuMemFree(native), 0);
	CHECK_EQ(cuStreamQuery(stream), 0);
}

static const struct test tests[] = {
	TEST(granularity_is_two_mib),
	TEST(a_handle_maps_only_whole),
	TEST(ranges_are_whole_adjacent_mappings),
	TEST(sizes_that_are_no_multiple_are_refused),
	TEST(memory_lives_as_long_as_handle_or_mapping),
	TEST(memory_is_inaccessible_until_access_is_set),
	TEST(fresh_memory_is_poison),
	TEST(fresh_memory_is_zero_without_poison),
	TEST(the_host_cannot_touch_device_memory),
#if CUDA_VERSION >= 12010
	TEST(memory_bound_to_a_multicast_object_stays),
#endif
	TEST(handle_types_are_checked_at_create),
	TEST(a_driver_may_lack_vmm),
	TEST(the_budget_is_kept),
	TEST(small_allocations_share_a_granule),
	TEST(native_frees_know_only_native_memory),
	TEST(an_allocation_that_fails_answers_null),
	TEST(range_queries_differ_for_vmm_memory),
	TEST(reserved_memory_is_unknown),
	TEST(sync_memops_and_ipc_are_for_native_memory),
	TEST(host_registrations_may_not_overlap),
	TEST(pools_hold_back_what_they_may),
	TEST(a_synchronous_mistake_is_only_an_error),
	TEST(use_after_unmap_loses_the_context),
	TEST(a_context_that_is_reset_works_again),
	TEST(a_kernel_loses_the_context_on_unmapped_memory),
	TEST(unmapping_under_a_kernel_loses_the_context),
	TEST(vmm_calls_do_not_wait_and_frees_do),
};

int main(int argc, char **argv)
{
	const struct cases parts[] = {{tests, sizeof tests / sizeof *tests}, stream_cases,
		process_cases, shared_cases};
	struct test all[CASES_MAX];
	size_t n = 0;

	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (n + parts[i].count > CASES_MAX)
			return 1;
		memcpy(all + n, parts[i].tests, parts[i].count * sizeof *all);
		n += parts[i].count;
	}
	return test_main(all, n, argc, argv);
}
