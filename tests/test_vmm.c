/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that programs manage themselves: created, mapped and given access by their own
 * calls, in the order in which XLA makes them, and in others. Native behaviour is the
 * reference.
 */
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>

#include "loading/libraries.h"
#include "support.h"

#define DRIVER(call) CHECK_EQ((call), CUDA_SUCCESS)

enum { SIZE = 6 << 20, PEER = 1 };

struct made {
	CUdeviceptr ptr;
	CUmemGenericAllocationHandle handle;
};

static void *at(CUdeviceptr ptr)
{
	return (void *)(uintptr_t)ptr;
}

static CUmemAllocationProp prop_of(int device)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.allocFlags = {.gpuDirectRDMACapable = 1},
	};
}

static CUresult let(CUdeviceptr ptr, size_t size, int device, int flags)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.flags = flags,
	};

	return cuMemSetAccess(ptr, size, &access, 1);
}

static CUresult let_use(CUdeviceptr ptr, size_t size)
{
	return let(ptr, size, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static unsigned long long access_of(CUdeviceptr ptr, int device)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
	unsigned long long flags = 99;

	DRIVER(cuMemGetAccess(&flags, &location, ptr));
	return flags;
}

static CUmemGenericAllocationHandle create(size_t size)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop = prop_of(0);

	DRIVER(cuMemCreate(&handle, size, &prop, 0));
	return handle;
}

static CUdeviceptr reserve(size_t size)
{
	CUdeviceptr ptr = 0;

	DRIVER(cuMemAddressReserve(&ptr, size, 0, 0, 0));
	return ptr;
}

static struct made make(size_t size)
{
	struct made m = {.handle = create(size), .ptr = reserve(size)};

	DRIVER(cuMemMap(m.ptr, size, 0, m.handle, 0));
	DRIVER(let_use(m.ptr, size));
	return m;
}

static void unmake(struct made m, size_t size)
{
	CUDA(cudaDeviceSynchronize());
	DRIVER(cuMemUnmap(m.ptr, size));
	DRIVER(cuMemRelease(m.handle));
	DRIVER(cuMemAddressFree(m.ptr, size));
}

static void begin(const char *tag, int policy)
{
	CUDA(cudaFree(NULL));
	OK(stayput_region_push(tag, policy));
}

static size_t used(void)
{
	return device_used(0);
}

static struct fakecuda_report report(void)
{
	struct fakecuda_report now;

	fakecuda_report(&now);
	return now;
}

static void fail_nth(int n, const char *error)
{
	char spec[64];

	snprintf(spec, sizeof spec, "*:%d:%s", n, error);
	fakecuda_fail(spec);
}

static void check_same(const struct fakecuda_report *before)
{
	struct fakecuda_report now = report();

	CHECK_EQ(now.handles, before->handles);
	CHECK_EQ(now.mappings, before->mappings);
	CHECK_EQ(now.reservations, before->reservations);
	CHECK_EQ(now.bytes_used[0], before->bytes_used[0]);
}

static void check_pause_cycles(int policy, void (*check)(CUdeviceptr ptr, int round))
{
	struct fakecuda_report before;
	struct made m;

	begin("own", policy);
	before = report();
	m = make(SIZE);
	for (int round = 0; round < 3; round++) {
		write_pattern(at(m.ptr), SIZE, round);
		OK(stayput_pause("own"));
		CHECK_EQ(used(), before.bytes_used[0]);
		CHECK_EQ(query(at(m.ptr)).state, STAYPUT_PAUSED);
		OK(stayput_resume("own"));
		CHECK_EQ(used(), before.bytes_used[0] + SIZE);
		check(m.ptr, round);
		CHECK_EQ(query(at(m.ptr)).generation, round + 1);
	}
	unmake(m, SIZE);
	OK(stayput_host_trim(0));
	check_same(&before);
}

static void check_kept(CUdeviceptr ptr, int round)
{
	CHECK_EQ(wrong_bytes(at(ptr), SIZE, round), 0);
}

static void check_zero(CUdeviceptr ptr, int round)
{
	(void)round;
	CHECK_EQ(bytes_other_than(at(ptr), SIZE, 0), 0);
}

static void check_usable(CUdeviceptr ptr, int round)
{
	CUDA(cudaMemset(at(ptr), round, SIZE));
	CHECK_EQ(bytes_other_than(at(ptr), SIZE, round), 0);
}

static void contents_survive_pauses(void)
{
	check_pause_cycles(STAYPUT_HOST, check_kept);
}

static void zero_clears_it(void)
{
	check_pause_cycles(STAYPUT_ZERO, check_zero);
}

static void discard_leaves_it_usable(void)
{
	check_pause_cycles(STAYPUT_DISCARD, check_usable);
}

static void it_counts_in_its_region(void)
{
	struct made m;
	struct stayput_info info;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	CHECK_EQ(region_info("own").bytes_active, SIZE);
	CHECK_EQ(region_info("own").bytes_device, SIZE);
	info = query(at(m.ptr + SIZE - 1));
	CHECK_EQ(info.base, m.ptr);
	CHECK_EQ(info.size, SIZE);
	CHECK_EQ(info.policy, STAYPUT_HOST);
	write_pattern(at(m.ptr), SIZE, 3);
	OK(stayput_pause("own"));
	CHECK_EQ(region_info("own").bytes_paused, SIZE);
	CHECK_EQ(region_info("own").bytes_device, 0);
	CHECK_EQ(*(const unsigned char *)stayput_host_copy(at(m.ptr + 5), 1),
		pattern_at(5, 3));
	unmake(m, SIZE);
	CHECK_EQ(region_info("own").bytes_paused, 0);
	CHECK_EQ(region_info("own").count_active, 0);
	CHECK_EQ(region_info("own").bytes_backup, 0);
}

static void unmapped_memory_counts_as_the_regions(void)
{
	CUmemGenericAllocationHandle handle;

	begin("own", STAYPUT_HOST);
	handle = create(SIZE);
	CHECK_EQ(region_info("own").bytes_device, SIZE);
	CHECK_EQ(region_info("own").bytes_active, 0);
	OK(stayput_pause("own"));
	CHECK_EQ(used(), SIZE);
	DRIVER(cuMemRelease(handle));
	CHECK_EQ(region_info("own").bytes_device, 0);
}

/* The mapping keeps the memory when the handle goes, paused or not. */
static void check_release(bool before)
{
	struct made m;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	write_pattern(at(m.ptr), SIZE, 1);
	if (before)
		DRIVER(cuMemRelease(m.handle));
	OK(stayput_pause("own"));
	CHECK_EQ(used(), 0);
	if (!before)
		DRIVER(cuMemRelease(m.handle));
	OK(stayput_resume("own"));
	CHECK_EQ(wrong_bytes(at(m.ptr), SIZE, 1), 0);
	DRIVER(cuMemUnmap(m.ptr, SIZE));
	CHECK_EQ(used(), 0);
	DRIVER(cuMemAddressFree(m.ptr, SIZE));
	CHECK_EQ(report().handles, 0);
}

static void a_handle_may_be_released_before_the_pause(void)
{
	check_release(true);
}

static void a_handle_may_be_released_while_paused(void)
{
	check_release(false);
}

static void a_handle_may_be_retained_while_paused(void)
{
	CUmemGenericAllocationHandle again = 0;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_INVALID};
	struct made m;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	DRIVER(cuMemRelease(m.handle));
	OK(stayput_pause("own"));
	DRIVER(cuMemRetainAllocationHandle(&again, at(m.ptr + SIZE - 1)));
	CHECK_EQ(again, m.handle);
	DRIVER(cuMemGetAllocationPropertiesFromHandle(&prop, again));
	CHECK_EQ(prop.allocFlags.gpuDirectRDMACapable, 1);
	CHECK_EQ(used(), 0);
	OK(stayput_resume("own"));
	DRIVER(cuMemUnmap(m.ptr, SIZE));
	CHECK_EQ(used(), SIZE);
	DRIVER(cuMemRelease(again));
	CHECK_EQ(used(), 0);
}

static void unmapping_paused_memory_drops_its_backup(void)
{
	struct fakecuda_report before;
	struct made m;

	begin("own", STAYPUT_HOST);
	before = report();
	m = make(SIZE);
	OK(stayput_pause("own"));
	CHECK_EQ(region_info("own").bytes_backup, SIZE);
	unmake(m, SIZE);
	CHECK_EQ(region_info("own").bytes_backup, 0);
	OK(stayput_resume("own"));
	OK(stayput_host_trim(0));
	check_same(&before);
	CHECK_EQ(report().host_registrations, before.host_registrations);
}

static void a_released_handle_is_not_mistaken_for_a_later_one(void)
{
	CUmemGenericAllocationHandle first, second;

	begin("own", STAYPUT_HOST);
	first = create(SIZE);
	DRIVER(cuMemRelease(first));
	second = create(SIZE);
	CHECK_EQ(cuMemRelease(first), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(used(), SIZE);
	DRIVER(cuMemRelease(second));
}

static void what_is_unmapped_while_paused_can_be_mapped_again(void)
{
	struct made m;

	catch_stderr();
	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	OK(stayput_pause("own"));
	DRIVER(cuMemUnmap(m.ptr, SIZE));
	CHECK_EQ(used(), 0);
	DRIVER(cuMemMap(m.ptr, SIZE, 0, m.handle, 0));
	CHECK_HAS(stderr_text(), "6291456 bytes that were unmapped while paused");
	DRIVER(let_use(m.ptr, SIZE));
	check_usable(m.ptr, 7);
	OK(stayput_pause("own"));
	OK(stayput_resume("own"));
	CHECK_EQ(bytes_other_than(at(m.ptr), SIZE, 7), 0);
	unmake(m, SIZE);
}

/* No resume would bring it back. */
static void what_is_unmapped_while_paused_can_be_exported(void)
{
	struct made m;
	int fd = -1;

	catch_stderr();
	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	OK(stayput_pause("own"));
	DRIVER(cuMemUnmap(m.ptr, SIZE));
	fail_nth(1, "OUT_OF_MEMORY");
	CHECK_EQ(cuMemExportToShareableHandle(
			 &fd, m.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_ERROR_OUT_OF_MEMORY);
	fakecuda_fail(NULL);
	DRIVER(cuMemExportToShareableHandle(
		&fd, m.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CHECK_HAS(stderr_text(), "6291456 bytes that were unmapped while paused");
	CHECK_EQ(used(), SIZE);
	DRIVER(cuMemMap(m.ptr, SIZE, 0, m.handle, 0));
	unmake(m, SIZE);
	close(fd);
	CHECK_EQ(used(), 0);
}

static void addresses_stay_taken_while_paused(void)
{
	CUmemGenericAllocationHandle native;
	CUdeviceptr base = 0;
	size_t size = 0;
	struct made m;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	OK(stayput_pause("own"));
	CHECK_EQ(cuMemAddressFree(m.ptr, SIZE), CUDA_ERROR_INVALID_VALUE);
	DRIVER(cuMemGetAddressRange(&base, &size, m.ptr + 4096));
	CHECK_EQ(base, m.ptr);
	CHECK_EQ(size, SIZE);
	OK(stayput_native_push());
	native = create(SIZE);
	CHECK_EQ(cuMemMap(m.ptr, SIZE, 0, native, 0), CUDA_ERROR_INVALID_VALUE);
	DRIVER(cuMemRelease(native));
	OK(stayput_region_pop());
	native = create(SIZE);
	CHECK_EQ(cuMemMap(m.ptr, SIZE, 0, native, 0), CUDA_ERROR_INVALID_VALUE);
	DRIVER(cuMemRelease(native));
	OK(stayput_resume("own"));
	unmake(m, SIZE);
}

static cudaError_t peer_writes(CUdeviceptr ptr, int value)
{
	cudaError_t err;

	CUDA(cudaSetDevice(PEER));
	err = cudaMemset(at(ptr), value, SIZE);
	cudaGetLastError();
	CUDA(cudaSetDevice(0));
	return err;
}

static struct made make_beside_a_peer(void)
{
	setenv("FAKECUDA_DEVICES", "2", 1);
	CUDA(cudaSetDevice(0));
	begin("own", STAYPUT_HOST);
	return make(SIZE);
}

static void access_set_while_paused_is_there_after_the_resume(void)
{
	struct made m = make_beside_a_peer();

	CHECK_EQ(peer_writes(m.ptr, 1), cudaErrorInvalidValue);
	OK(stayput_pause("own"));
	DRIVER(let(m.ptr, SIZE, PEER, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	CHECK_EQ(access_of(m.ptr, PEER), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CHECK_EQ(access_of(m.ptr, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(stayput_resume("own"));
	CUDA(peer_writes(m.ptr, 2));
	CHECK_EQ(bytes_other_than(at(m.ptr), SIZE, 2), 0);
	OK(stayput_pause("own"));
	DRIVER(let(m.ptr, SIZE, PEER, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	CHECK_EQ(access_of(m.ptr, PEER), CU_MEM_ACCESS_FLAGS_PROT_NONE);
	OK(stayput_resume("own"));
	CHECK_EQ(peer_writes(m.ptr, 3), cudaErrorInvalidValue);
	CHECK_EQ(bytes_other_than(at(m.ptr), SIZE, 2), 0);
}

static void access_of_peers_survives_a_pause(void)
{
	struct made m = make_beside_a_peer();

	DRIVER(let(m.ptr, SIZE, PEER, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	OK(stayput_pause("own"));
	OK(stayput_resume("own"));
	CUDA(peer_writes(m.ptr, 2));
	CHECK_EQ(bytes_other_than(at(m.ptr), SIZE, 2), 0);
}

/* As without us: only the program's own calls decide who uses its mappings. */
static void enabling_peers_changes_no_access(void)
{
	struct made m = make_beside_a_peer();

	CUDA(cudaSetDevice(PEER));
	CUDA(cudaDeviceEnablePeerAccess(0, 0));
	CUDA(cudaSetDevice(0));
	CHECK_EQ(access_of(m.ptr, PEER), CU_MEM_ACCESS_FLAGS_PROT_NONE);
	OK(stayput_pause("own"));
	OK(stayput_resume("own"));
	CHECK_EQ(access_of(m.ptr, PEER), CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

static void access_taken_away_while_paused_stays_away(void)
{
	struct made m;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	write_pattern(at(m.ptr), SIZE, 4);
	OK(stayput_pause("own"));
	DRIVER(let(m.ptr, SIZE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	OK(stayput_resume("own"));
	CHECK_EQ(access_of(m.ptr, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
	DRIVER(let_use(m.ptr, SIZE));
	CHECK_EQ(wrong_bytes(at(m.ptr), SIZE, 4), 0);
}

static void ranges_of_several_mappings_may_be_partly_paused(void)
{
	CUmemGenericAllocationHandle first, second;
	CUdeviceptr ptr;

	begin("own", STAYPUT_HOST);
	ptr = reserve(2 * SIZE);
	first = create(SIZE);
	DRIVER(cuMemMap(ptr, SIZE, 0, first, 0));
	DRIVER(let_use(ptr, SIZE));
	write_pattern(at(ptr), SIZE, 1);
	OK(stayput_pause("own"));
	/* A hole behind it, as natively. */
	CHECK_EQ(let_use(ptr, 2 * SIZE), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemUnmap(ptr, 2 * SIZE), CUDA_ERROR_INVALID_VALUE);
	second = create(SIZE);
	DRIVER(cuMemMap(ptr + SIZE, SIZE, 0, second, 0));
	DRIVER(let_use(ptr, 2 * SIZE));
	CHECK_EQ(region_info("own").state, STAYPUT_PARTLY);
	write_pattern(at(ptr + SIZE), SIZE, 2);
	OK(stayput_resume("own"));
	CHECK_EQ(wrong_bytes(at(ptr), SIZE, 1), 0);
	CHECK_EQ(wrong_bytes(at(ptr + SIZE), SIZE, 2), 0);
	DRIVER(cuMemRelease(first));
	OK(stayput_pause("own"));
	DRIVER(cuMemUnmap(ptr + SIZE, SIZE));
	DRIVER(cuMemMap(ptr + SIZE, SIZE, 0, second, 0));
	DRIVER(cuMemUnmap(ptr, 2 * SIZE));
	CHECK_EQ(used(), SIZE);
	DRIVER(cuMemRelease(second));
	CHECK_EQ(used(), 0);
	DRIVER(cuMemAddressFree(ptr, 2 * SIZE));
}

static void exported_memory_is_held_and_said(void)
{
	const struct stayput_options strict = {
		.struct_size = sizeof strict, .fail_if_held = 1};
	struct stayput_report done = {.struct_size = sizeof done};
	const char *tag = "own";
	struct made m, free_to_go;
	int fd = -1;

	catch_stderr();
	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	CHECK_EQ(cuMemExportToShareableHandle(&fd, m.handle, CU_MEM_HANDLE_TYPE_NONE, 0),
		CUDA_ERROR_NOT_SUPPORTED);
	OK(stayput_pause("own"));
	CHECK_EQ(used(), 0);
	CHECK_EQ(cuMemExportToShareableHandle(
			 &fd, m.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_ERROR_ILLEGAL_STATE);
	OK(stayput_resume("own"));
	DRIVER(cuMemExportToShareableHandle(
		&fd, m.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	free_to_go = make(SIZE);
	write_pattern(at(m.ptr), SIZE, 1);
	CHECK_EQ(stayput_pause_ex(&tag, 1, &strict, &done), STAYPUT_ERR_BUSY);
	CHECK_HAS(stayput_last_error(), "nothing was paused");
	CHECK_EQ(query(at(free_to_go.ptr)).state, STAYPUT_ACTIVE);
	OK(stayput_pause_ex(&tag, 1, NULL, &done));
	CHECK_EQ(done.total.bytes_held, SIZE);
	CHECK_EQ(done.total.bytes_released, SIZE);
	CHECK_HAS(stayput_last_error(), "they stay active");
	CHECK_EQ(used(), SIZE);
	CHECK_EQ(query(at(m.ptr)).state, STAYPUT_ACTIVE);
	unmake(free_to_go, SIZE);
	CHECK_HAS(stderr_text(),
		"1 mappings of the program's own, 6291456 bytes, cannot be released, "
		"since they were exported");
	CHECK_EQ(wrong_bytes(at(m.ptr), SIZE, 1), 0);
	unmake(m, SIZE);
	close(fd);
	CHECK_EQ(used(), 0);
}

#if CUDA_VERSION >= 12010
static CUmemGenericAllocationHandle multicast(void)
{
	CUmulticastObjectProp prop = {.numDevices = 1, .size = SIZE};
	CUmemGenericAllocationHandle object;

	DRIVER(cuMulticastCreate(&object, &prop));
	return object;
}

static void memory_bound_to_a_multicast_object_is_held(void)
{
	CUmemGenericAllocationHandle object;
	struct made by_handle, by_address;

	catch_stderr();
	begin("own", STAYPUT_HOST);
	object = multicast();
	by_handle = make(SIZE);
	by_address = make(SIZE);
	/* Before its device was added. */
	CHECK_EQ(cuMulticastBindMem(object, 0, by_handle.handle, 0, SIZE, 0),
		CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMulticastBindAddr(object, 0, by_address.ptr, SIZE, 0),
		CUDA_ERROR_INVALID_VALUE);
	OK(stayput_pause("own"));
	CHECK_EQ(used(), 0);
	DRIVER(cuMulticastAddDevice(object, 0));
	CHECK_EQ(cuMulticastBindMem(object, 0, by_handle.handle, 0, SIZE, 0),
		CUDA_ERROR_ILLEGAL_STATE);
	OK(stayput_resume("own"));
	DRIVER(cuMulticastBindMem(object, 0, by_handle.handle, 0, SIZE, 0));
	OK(stayput_pause("own"));
	CHECK_EQ(query(at(by_handle.ptr)).state, STAYPUT_ACTIVE);
	CHECK_EQ(query(at(by_address.ptr)).state, STAYPUT_PAUSED);
	CHECK_HAS(stderr_text(), "multicast");
	OK(stayput_resume("own"));
	DRIVER(cuMulticastBindAddr(object, 0, by_address.ptr, SIZE, 0));
	OK(stayput_pause("own"));
	CHECK_EQ(used(), 2 * SIZE);
	DRIVER(cuMemRelease(object));
	unmake(by_handle, SIZE);
	unmake(by_address, SIZE);
	CHECK_EQ(used(), 0);
}
#endif

/* The fake has no arrays, and tells a handle that it knows from one that it does not. */
static void arrays_are_mapped_with_the_drivers_handles(void)
{
	CUarrayMapInfo list[2] = {{.memHandle = {.memHandle = 1}}};
	CUmemGenericAllocationHandle native, token;

	CUDA(cudaFree(NULL));
	native = create(SIZE);
	begin("own", STAYPUT_HOST);
	token = create(SIZE);
	CHECK_EQ(cuMemMapArrayAsync(list, 1, NULL), CUDA_ERROR_INVALID_VALUE);
	list[0].memHandle.memHandle = native;
	list[1].memHandle.memHandle = token;
	CHECK_EQ(cuMemMapArrayAsync(list, 2, NULL), CUDA_ERROR_NOT_SUPPORTED);
	CHECK_EQ(list[1].memHandle.memHandle, token);
	DRIVER(cuMemRelease(token));
	CHECK_EQ(cuMemMapArrayAsync(list, 2, NULL), CUDA_ERROR_INVALID_VALUE);
	DRIVER(cuMemRelease(native));
}

static void memory_mapped_twice_is_held_until_it_is_not(void)
{
	CUdeviceptr other;
	struct made m;

	catch_stderr();
	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	other = reserve(SIZE);
	DRIVER(cuMemMap(other, SIZE, 0, m.handle, 0));
	DRIVER(let_use(other, SIZE));
	OK(stayput_pause("own"));
	CHECK_EQ(used(), SIZE);
	CHECK_HAS(stderr_text(), "2 mappings");
	CHECK_HAS(stderr_text(), "mapped at several addresses");
	write_pattern(at(m.ptr), SIZE, 1);
	CHECK_EQ(wrong_bytes(at(other), SIZE, 1), 0);
	DRIVER(cuMemUnmap(m.ptr, SIZE));
	OK(stayput_pause("own"));
	CHECK_EQ(used(), 0);
	CHECK_EQ(cuMemMap(m.ptr, SIZE, 0, m.handle, 0), CUDA_ERROR_ILLEGAL_STATE);
	OK(stayput_resume("own"));
	CHECK_EQ(wrong_bytes(at(other), SIZE, 1), 0);
	DRIVER(cuMemMap(m.ptr, SIZE, 0, m.handle, 0));
	DRIVER(let_use(m.ptr, SIZE));
	CHECK_EQ(wrong_bytes(at(m.ptr), SIZE, 1), 0);
}

static void memory_that_its_device_cannot_use_is_held(void)
{
	struct made m;

	catch_stderr();
	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	DRIVER(let(m.ptr, SIZE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
	OK(stayput_pause("own"));
	CHECK_EQ(used(), SIZE);
	CHECK_HAS(stderr_text(), "may not read and write them");
	DRIVER(let_use(m.ptr, SIZE));
	OK(stayput_pause("own"));
	CHECK_EQ(used(), 0);
}

static void check_stays_native(void)
{
	struct made m = make(SIZE);
	struct stayput_info info = {.struct_size = sizeof info};
	CUmemGenericAllocationHandle again;
	int fd;

	CHECK_EQ(m.handle >> 48, 0);
	CHECK_EQ(stayput_query(at(m.ptr), &info), STAYPUT_ERR_NOT_FOUND);
	OK(stayput_pause(NULL));
	CHECK_EQ(used(), SIZE);
	DRIVER(cuMemRetainAllocationHandle(&again, at(m.ptr)));
	CHECK_EQ(again, m.handle);
	DRIVER(cuMemRelease(again));
	DRIVER(cuMemExportToShareableHandle(
		&fd, m.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	unmake(m, SIZE);
}

static void outside_of_regions_handles_are_the_drivers(void)
{
	CUDA(cudaFree(NULL));
	check_stays_native();
	begin("own", STAYPUT_HOST);
	OK(stayput_native_push());
	check_stays_native();
	OK(stayput_region_pop());
	OK(stayput_region_push("kept", STAYPUT_KEEP));
	check_stays_native();
}

static CUmemGenericAllocationHandle create_in(const char *library, size_t size)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop = prop_of(0);
	typeof(&mapper_create) make_there;
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path / 2);
	void *opened;

	CHECK(n > 0);
	path[n] = '\0';
	sprintf(strrchr(path, '/'), "/loading/%s", library);
	opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CHECK(opened);
	make_there = (typeof(&mapper_create))dlsym(opened, "mapper_create");
	CHECK(make_there);
	DRIVER(make_there(&handle, size, &prop));
	return handle;
}

/* NVSHMEM shares what it makes; expandable segments are not adopted yet. */
static void libraries_that_share_it_and_pytorch_keep_the_drivers(void)
{
	begin("own", STAYPUT_HOST);
	CHECK_EQ(create_in("libnvshmem_host.so", SIZE) >> 48, 0);
	CHECK_EQ(create_in("libc10_cuda_mapper.so", SIZE) >> 48, 0);
	CHECK(create_in("libmapper.so", SIZE) >> 48 != 0);
	CHECK_EQ(region_info("own").bytes_device, SIZE);
}

static void memory_of_another_device_than_the_current_is_native(void)
{
	CUmemAllocationProp prop = prop_of(PEER);
	CUmemGenericAllocationHandle handle;

	setenv("FAKECUDA_DEVICES", "2", 1);
	begin("own", STAYPUT_HOST);
	DRIVER(cuMemCreate(&handle, SIZE, &prop, 0));
	CHECK_EQ(handle >> 48, 0);
	DRIVER(cuMemRelease(handle));
}

static void default_region_adopts_too(void)
{
	struct made m;

	setenv("STAYPUT_DEFAULT", "engine", 1);
	CUDA(cudaFree(NULL));
	m = make(SIZE);
	write_pattern(at(m.ptr), SIZE, 1);
	OK(stayput_pause(NULL));
	CHECK_EQ(used(), 0);
	OK(stayput_resume(NULL));
	CHECK_EQ(wrong_bytes(at(m.ptr), SIZE, 1), 0);
}

enum { CODES = 32 };

/* The codes of every call, right or wrong; before one of them, a pause. */
struct sequence {
	CUresult codes[CODES];
	int count, pause_before;
};

static void expect_code(struct sequence *s, CUresult code)
{
	s->codes[s->count++] = code;
	if (s->count == s->pause_before)
		OK(stayput_pause(NULL));
}

static void use_access(struct sequence *s, CUdeviceptr ptr)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	unsigned long long flags;

	expect_code(s, let_use(ptr, SIZE));
	expect_code(s, let_use(ptr, SIZE / 2));
	expect_code(s, let_use(ptr, 2 * SIZE));
	expect_code(s, let(ptr, SIZE, 99, CU_MEM_ACCESS_FLAGS_PROT_READ));
	expect_code(s, cuMemSetAccess(ptr, SIZE, NULL, 0));
	expect_code(s, cuMemGetAccess(&flags, &location, ptr));
	expect_code(s, cuMemGetAccess(&flags, &location, ptr + SIZE));
	expect_code(s, cuMemGetAccess(NULL, &location, ptr));
}

static void use_handle(
	struct sequence *s, CUmemGenericAllocationHandle handle, CUdeviceptr ptr)
{
	CUmemGenericAllocationHandle again;
	CUmemAllocationProp prop;

	expect_code(s, cuMemRetainAllocationHandle(&again, at(ptr)));
	expect_code(s, cuMemRetainAllocationHandle(&again, at(ptr + SIZE)));
	expect_code(s, cuMemRetainAllocationHandle(NULL, at(ptr)));
	expect_code(s, cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	expect_code(s, cuMemGetAllocationPropertiesFromHandle(NULL, handle));
	expect_code(s, cuMemRelease(handle));
	expect_code(s, cuMemRelease(handle));
	expect_code(s, cuMemRelease(handle));
	expect_code(s, cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	expect_code(s, cuMemMap(ptr + SIZE, SIZE, 0, handle, 0));
	expect_code(s, cuMemRetainAllocationHandle(&again, at(ptr)));
}

static void unmap_and_free(
	struct sequence *s, CUmemGenericAllocationHandle handle, CUdeviceptr ptr)
{
	CUdeviceptr base;
	size_t size;

	expect_code(s, cuMemFree(ptr));
	expect_code(s, cuMemGetAddressRange(&base, &size, ptr));
	expect_code(s, cuMemAddressFree(ptr, 2 * SIZE));
	expect_code(s, cuMemUnmap(ptr, SIZE / 2));
	expect_code(s, cuMemUnmap(ptr, 2 * SIZE));
	expect_code(s, cuMemUnmap(ptr, SIZE));
	expect_code(s, cuMemUnmap(ptr, SIZE));
	expect_code(s, cuMemRelease(handle));
	expect_code(s, cuMemAddressFree(ptr, 2 * SIZE));
	expect_code(s, cuMemAddressFree(ptr, 2 * SIZE));
}

static struct sequence run_sequence(int pause_before)
{
	struct sequence s = {.pause_before = pause_before};
	struct fakecuda_report before = report();
	CUmemGenericAllocationHandle handle = create(SIZE);
	CUdeviceptr ptr = reserve(2 * SIZE);

	expect_code(&s, cuMemMap(ptr, SIZE, 0, handle, 0));
	expect_code(&s, cuMemMap(ptr, SIZE, 0, handle, 0));
	expect_code(&s, cuMemMap(ptr + SIZE, SIZE, SIZE / 2, handle, 0));
	use_access(&s, ptr);
	use_handle(&s, handle, ptr);
	unmap_and_free(&s, handle, ptr);
	CHECK_EQ(s.count, CODES);
	OK(stayput_host_trim(0));
	check_same(&before);
	return s;
}

static void every_call_answers_as_the_driver_does_paused_or_not(void)
{
	struct sequence native, adopted;

	catch_stderr();
	CUDA(cudaFree(NULL));
	native = run_sequence(0);
	CHECK_EQ(native.codes[0], CUDA_SUCCESS);
	begin("own", STAYPUT_HOST);
	OK(stayput_pause("own"));
	for (int n = 0; n <= CODES; n++) {
		adopted = run_sequence(n);
		for (int i = 0; i < CODES; i++) {
			if (adopted.codes[i] != native.codes[i])
				dprintf(test_log,
					"paused before %d, call %d: %d, not %d\n", n, i,
					adopted.codes[i], native.codes[i]);
			CHECK(adopted.codes[i] == native.codes[i]);
		}
	}
}

static void a_resume_without_memory_leaves_it_paused(void)
{
	struct made a, b;

	begin("own", STAYPUT_HOST);
	a = make(SIZE);
	b = make(SIZE);
	write_pattern(at(a.ptr), SIZE, 1);
	write_pattern(at(b.ptr), SIZE, 2);
	OK(stayput_pause("own"));
	fakecuda_budget(0, SIZE + MIB);
	CHECK_EQ(stayput_resume("own"), STAYPUT_ERR_DEVICE_MEMORY);
	CHECK_EQ(region_info("own").count_paused, 2);
	CHECK_EQ(used(), 0);
	fakecuda_budget(0, GIB);
	OK(stayput_resume("own"));
	CHECK_EQ(wrong_bytes(at(a.ptr), SIZE, 1), 0);
	CHECK_EQ(wrong_bytes(at(b.ptr), SIZE, 2), 0);
}

/* A reset leaves such memory to the program, and takes its addresses. */
static void after_a_reset_it_can_be_unmapped_and_released(void)
{
	for (int paused = 0; paused < 2; paused++) {
		struct made m;

		begin("own", STAYPUT_HOST);
		m = make(SIZE);
		OK(stayput_pause("own"));
		if (!paused)
			OK(stayput_resume("own"));
		CUDA(cudaDeviceReset());
		CUDA(cudaFree(NULL));
		CHECK_EQ(region_info("own").bytes_backup, 0);
		OK(stayput_resume("own"));
		CHECK_EQ(used(), SIZE);
		DRIVER(cuMemUnmap(m.ptr, SIZE));
		DRIVER(cuMemRelease(m.handle));
		CHECK_EQ(used(), 0);
		CHECK_EQ(cuMemAddressFree(m.ptr, SIZE), CUDA_ERROR_INVALID_VALUE);
	}
}

static void a_forked_child_is_told_by_the_driver(void)
{
	struct made m;
	int status;
	pid_t pid;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	pid = fork();
	if (pid == 0) {
		CHECK_EQ(cuMemUnmap(m.ptr, SIZE), CUDA_ERROR_NOT_INITIALIZED);
		CHECK_EQ(cuMemRelease(m.handle), CUDA_ERROR_NOT_INITIALIZED);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	unmake(m, SIZE);
}

/* Whatever fails, the program can repeat what it was told has failed. */
static void check_program_calls_fail_clean(bool paused)
{
	struct fakecuda_report before;
	bool failed = true;

	catch_stderr();
	begin("own", STAYPUT_HOST);
	before = report();
	for (int n = 1; failed; n++) {
		CUmemGenericAllocationHandle handle = create(SIZE);
		CUdeviceptr ptr = reserve(SIZE);

		fail_nth(n, "UNKNOWN");
		if (cuMemMap(ptr, SIZE, 0, handle, 0) != CUDA_SUCCESS)
			DRIVER(cuMemMap(ptr, SIZE, 0, handle, 0));
		if (let_use(ptr, SIZE) != CUDA_SUCCESS)
			DRIVER(let_use(ptr, SIZE));
		if (paused && stayput_pause("own") != STAYPUT_OK)
			OK(stayput_pause("own"));
		if (cuMemUnmap(ptr, SIZE) != CUDA_SUCCESS)
			DRIVER(cuMemUnmap(ptr, SIZE));
		if (cuMemRelease(handle) != CUDA_SUCCESS)
			DRIVER(cuMemRelease(handle));
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		DRIVER(cuMemAddressFree(ptr, SIZE));
		CHECK_EQ(region_info("own").bytes_device, 0);
		OK(stayput_host_trim(0));
		CHECK_EQ(report().handles, before.handles);
		CHECK_EQ(used(), before.bytes_used[0]);
		CHECK(n < 1000);
	}
}

static void program_calls_fail_clean(void)
{
	check_program_calls_fail_clean(false);
}

static void program_calls_fail_clean_while_paused(void)
{
	check_program_calls_fail_clean(true);
}

static void pause_and_resume_lose_nothing_whatever_fails(void)
{
	struct made a, b;
	bool failed = true;

	catch_stderr();
	begin("own", STAYPUT_HOST);
	a = make(SIZE);
	b = make(2 * SIZE);
	write_pattern(at(a.ptr), SIZE, 1);
	write_pattern(at(b.ptr), 2 * SIZE, 2);
	for (int n = 1; failed; n++) {
		fail_nth(n, n % 2 ? "UNKNOWN" : "OUT_OF_MEMORY");
		if (stayput_pause("own") != STAYPUT_OK)
			OK(stayput_pause("own"));
		CHECK_EQ(used(), 0);
		if (stayput_resume("own") != STAYPUT_OK)
			OK(stayput_resume("own"));
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		CHECK_EQ(used(), 3 * SIZE);
		CHECK_EQ(wrong_bytes(at(a.ptr), SIZE, 1), 0);
		CHECK_EQ(wrong_bytes(at(b.ptr), 2 * SIZE, 2), 0);
		CHECK(n < 1000);
	}
	unmake(a, SIZE);
	unmake(b, 2 * SIZE);
	CHECK_EQ(used(), 0);
}

/* Gives another thread every chance to do what it must not. */
static void let_others_run(void)
{
	for (int i = 0; i < 2000; i++)
		sched_yield();
}

static void wait_for_call(const char *name, unsigned long calls)
{
	while (fakecuda_calls(name) < calls)
		sched_yield();
}

static void *unmap_in_thread(void *made)
{
	struct made *m = made;

	DRIVER(cuMemUnmap(m->ptr, SIZE));
	return NULL;
}

static void *pause_in_thread(void *unused)
{
	OK(stayput_pause("own"));
	return unused;
}

static void a_pause_waits_for_calls_on_their_way(void)
{
	unsigned long calls = fakecuda_calls("cuMemUnmap");
	pthread_t unmapping, pausing;
	struct made m, other;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	other = make(SIZE);
	fakecuda_hold("cuMemUnmap");
	CHECK_EQ(pthread_create(&unmapping, NULL, unmap_in_thread, &m), 0);
	wait_for_call("cuMemUnmap", calls + 1);
	CHECK_EQ(pthread_create(&pausing, NULL, pause_in_thread, NULL), 0);
	let_others_run();
	CHECK_EQ(query(at(other.ptr)).state, STAYPUT_ACTIVE);
	fakecuda_hold(NULL);
	CHECK_EQ(pthread_join(unmapping, NULL), 0);
	CHECK_EQ(pthread_join(pausing, NULL), 0);
	CHECK_EQ(query(at(other.ptr)).state, STAYPUT_PAUSED);
	CHECK_EQ(used(), SIZE);
	DRIVER(cuMemRelease(m.handle));
	CHECK_EQ(used(), 0);
}

static void calls_wait_for_a_pause_on_its_way(void)
{
	unsigned long unmaps, syncs;
	pthread_t unmapping, pausing;
	struct made m;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	unmaps = fakecuda_calls("cuMemUnmap");
	syncs = fakecuda_calls("cuCtxSynchronize");
	fakecuda_hold("cuCtxSynchronize");
	CHECK_EQ(pthread_create(&pausing, NULL, pause_in_thread, NULL), 0);
	wait_for_call("cuCtxSynchronize", syncs + 1);
	CHECK_EQ(query(at(m.ptr)).state, STAYPUT_PAUSING);
	CHECK_EQ(pthread_create(&unmapping, NULL, unmap_in_thread, &m), 0);
	let_others_run();
	CHECK_EQ(fakecuda_calls("cuMemUnmap"), unmaps);
	CHECK_EQ(query(at(m.ptr)).state, STAYPUT_PAUSING);
	fakecuda_hold(NULL);
	CHECK_EQ(pthread_join(pausing, NULL), 0);
	CHECK_EQ(pthread_join(unmapping, NULL), 0);
	CHECK_EQ(region_info("own").mappings, 0);
	DRIVER(cuMemRelease(m.handle));
	CHECK_EQ(used(), 0);
}

/* In a callback of a pause, which waits for it. */
static void use_what_is_going(int change, const char *tag,
	const struct stayput_range *ranges, size_t count, void *made)
{
	const struct made *m = made;
	CUmemGenericAllocationHandle again;
	int fd;

	(void)tag;
	if (change != STAYPUT_RELEASING)
		return;
	CHECK_EQ(count, 1);
	CHECK_EQ(ranges[0].base, m->ptr);
	CHECK_EQ(cuMemUnmap(m->ptr, SIZE), CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQ(cuMemRelease(m->handle), CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQ(let_use(m->ptr, SIZE), CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQ(cuMemMap(m->ptr, SIZE, 0, m->handle, 0), CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQ(cuMemAddressFree(m->ptr, SIZE), CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQ(cuMemExportToShareableHandle(
			 &fd, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_ERROR_ILLEGAL_STATE);
	CHECK_EQ(access_of(m->ptr, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	DRIVER(cuMemRetainAllocationHandle(&again, at(m->ptr)));
	CHECK_EQ(again, m->handle);
}

static void a_callback_cannot_take_away_what_is_going(void)
{
	struct made m;

	begin("own", STAYPUT_HOST);
	m = make(SIZE);
	write_pattern(at(m.ptr), SIZE, 1);
	OK(stayput_on_change(use_what_is_going, &m));
	OK(stayput_pause("own"));
	CHECK_EQ(used(), 0);
	OK(stayput_resume("own"));
	CHECK_EQ(wrong_bytes(at(m.ptr), SIZE, 1), 0);
	DRIVER(cuMemRelease(m.handle));
	unmake(m, SIZE);
	CHECK_EQ(used(), 0);
}

enum { WORKERS = 3, ROUNDS = 60 };

static void *make_and_unmake(void *unused)
{
	CUDA(cudaFree(NULL));
	OK(stayput_region_push("busy", STAYPUT_HOST));
	for (int i = 0; i < ROUNDS; i++) {
		struct made m = make(2 * MIB);
		CUmemGenericAllocationHandle again;

		DRIVER(cuMemRetainAllocationHandle(&again, at(m.ptr)));
		CHECK_EQ(again, m.handle);
		CHECK_EQ(access_of(m.ptr, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		DRIVER(let(m.ptr, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
		DRIVER(cuMemRelease(again));
		DRIVER(cuMemUnmap(m.ptr, 2 * MIB));
		DRIVER(cuMemRelease(m.handle));
		DRIVER(cuMemAddressFree(m.ptr, 2 * MIB));
	}
	return unused;
}

static void pauses_beside_threads_that_map(void)
{
	pthread_t workers[WORKERS];
	struct made m;

	begin("busy", STAYPUT_HOST);
	m = make(SIZE);
	write_pattern(at(m.ptr), SIZE, 1);
	for (int i = 0; i < WORKERS; i++)
		CHECK_EQ(pthread_create(&workers[i], NULL, make_and_unmake, NULL), 0);
	for (int i = 0; i < ROUNDS; i++) {
		OK(stayput_pause("busy"));
		CHECK_EQ(query(at(m.ptr)).state, STAYPUT_PAUSED);
		OK(stayput_resume("busy"));
	}
	for (int i = 0; i < WORKERS; i++)
		CHECK_EQ(pthread_join(workers[i], NULL), 0);
	CHECK_EQ(wrong_bytes(at(m.ptr), SIZE, 1), 0);
	CHECK_EQ(region_info("busy").bytes_device, SIZE);
	unmake(m, SIZE);
	CHECK_EQ(used(), 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(contents_survive_pauses),
		TEST(zero_clears_it),
		TEST(discard_leaves_it_usable),
		TEST(it_counts_in_its_region),
		TEST(unmapped_memory_counts_as_the_regions),
		TEST(a_handle_may_be_released_before_the_pause),
		TEST(a_handle_may_be_released_while_paused),
		TEST(a_handle_may_be_retained_while_paused),
		TEST(unmapping_paused_memory_drops_its_backup),
		TEST(a_released_handle_is_not_mistaken_for_a_later_one),
		TEST(what_is_unmapped_while_paused_can_be_mapped_again),
		TEST(what_is_unmapped_while_paused_can_be_exported),
		TEST(addresses_stay_taken_while_paused),
		TEST(access_set_while_paused_is_there_after_the_resume),
		TEST(access_of_peers_survives_a_pause),
		TEST(enabling_peers_changes_no_access),
		TEST(access_taken_away_while_paused_stays_away),
		TEST(ranges_of_several_mappings_may_be_partly_paused),
		TEST(exported_memory_is_held_and_said),
#if CUDA_VERSION >= 12010
		TEST(memory_bound_to_a_multicast_object_is_held),
#endif
		TEST(arrays_are_mapped_with_the_drivers_handles),
		TEST(memory_mapped_twice_is_held_until_it_is_not),
		TEST(memory_that_its_device_cannot_use_is_held),
		TEST(outside_of_regions_handles_are_the_drivers),
		TEST(libraries_that_share_it_and_pytorch_keep_the_drivers),
		TEST(memory_of_another_device_than_the_current_is_native),
		TEST(default_region_adopts_too),
		TEST(every_call_answers_as_the_driver_does_paused_or_not),
		TEST(a_resume_without_memory_leaves_it_paused),
		TEST(after_a_reset_it_can_be_unmapped_and_released),
		TEST(a_forked_child_is_told_by_the_driver),
		TEST(program_calls_fail_clean),
		TEST(program_calls_fail_clean_while_paused),
		TEST(pause_and_resume_lose_nothing_whatever_fails),
		TEST(a_pause_waits_for_calls_on_their_way),
		TEST(calls_wait_for_a_pause_on_its_way),
		TEST(a_callback_cannot_take_away_what_is_going),
		TEST(pauses_beside_threads_that_map),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
