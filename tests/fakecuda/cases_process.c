/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a process as a whole: its life, ordered failures, look-ups, devices. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include "cases.h"

static void calls_need_init_and_a_context(void)
{
	CUdeviceptr at;
	CUdevice dev;

	CHECK_EQ(cuDeviceGet(&dev, 0), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQ(cuMemAlloc(&at, 16), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQ(cuInit(0), 0);
	CHECK_EQ(cuCtxGetDevice(&dev), CUDA_ERROR_INVALID_CONTEXT);
	CHECK_EQ(cuMemAlloc(&at, 16), CUDA_ERROR_INVALID_CONTEXT);
	cases_enter(0);
	CHECK_EQ(cuMemAlloc(&at, 16), 0);
}

static void use_cuda_in_a_child(void)
{
	CUdeviceptr at;

	CHECK_EQ(cuMemAlloc(&at, 16), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQ(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
}

static void a_forked_child_has_no_driver(void)
{
	CUdeviceptr at;

	cases_start();
	at = cases_allocate(MIB2);
	CHECK_EQ(cases_child(use_cuda_in_a_child), 0);
	CHECK_EQ(cuMemUnmap(at, MIB2), 0);
	CHECK_EQ(cases_report().bytes_used[0], 0);
}

static void use_cuda_too_late(void)
{
	CUdeviceptr at;

	_exit(cuMemAlloc(&at, 16) == CUDA_ERROR_DEINITIALIZED ? 3 : 1);
}

/* Exit handlers run in reverse: this one after the driver's. */
static void outlive_the_driver(void)
{
	atexit(use_cuda_too_late);
	cases_start();
}

static void nothing_is_served_after_exit(void)
{
	CHECK_EQ(cases_child(outlive_the_driver), 3);
}

static void a_reset_leaves_vmm_memory(void)
{
	CUdeviceptr vmm, native;

	cases_start();
	vmm = cases_allocate(MIB2);
	CHECK_EQ(cuMemAlloc(&native, MIB2), 0);
	CHECK_EQ(cuDevicePrimaryCtxReset(0), 0);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CHECK_EQ(cases_report().bytes_used[0], MIB2);
	CHECK_EQ(cases_report().native_allocs, 0);
	CHECK_EQ(cuMemUnmap(vmm, MIB2), 0);
	CHECK_EQ(cases_report().bytes_used[0], 0);
	CHECK_EQ(cuMemAddressFree(vmm, MIB2), CUDA_ERROR_INVALID_VALUE);
}

static void contexts_stack_per_thread(void)
{
	CUcontext primary, own, popped;
	unsigned flags;
	int active;

	cases_start();
	CHECK_EQ(cuCtxGetCurrent(&primary), 0);
	CHECK_EQ(cuDevicePrimaryCtxRetain(&own, 0), 0);
	CHECK(own == primary);
	CHECK_EQ(cuCtxPushCurrent(primary), 0);
	CHECK_EQ(cuCtxPopCurrent(&popped), 0);
	CHECK(popped == primary);
	CHECK_EQ(cuDevicePrimaryCtxRelease(0), 0);
	CHECK_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
	CHECK_EQ(active, 1);
	CHECK_EQ(cuDevicePrimaryCtxRelease(0), 0);
	CHECK_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
	CHECK_EQ(active, 0);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static void the_nth_call_fails_without_effect(void)
{
	CUmemGenericAllocationHandle handle;

	cases_start();
	fakecuda_fail("cuMemCreate:2:OUT_OF_MEMORY;cuMemRelease:*:999");
	CHECK_EQ(cuMemCreate(&handle, MIB2, &cases_prop, 0), 0);
	CHECK_EQ(cuMemRelease(handle), CUDA_ERROR_UNKNOWN);
	CHECK_EQ(cuMemCreate(&handle, MIB2, &cases_prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQ(cases_report().bytes_used[0], MIB2);
	CHECK_EQ(fakecuda_failed(), 2);
	CHECK_EQ(cuMemCreate(&handle, MIB2, &cases_prop, 0), 0);
	fakecuda_fail("*:2:INVALID_VALUE");
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_VALUE);
	fakecuda_fail(NULL);
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(fakecuda_calls("cuCtxSynchronize"), 3);
	CHECK_EQ(fakecuda_calls("cuMemCreate"), 3);
}

static void *create_in_thread(void *handle)
{
	CHECK_EQ(cuMemCreate(handle, MIB2, &cases_prop, 0), 0);
	return NULL;
}

static void a_held_call_waits(void)
{
	CUmemGenericAllocationHandle handle = 0;
	pthread_t thread;

	cases_start();
	fakecuda_hold("cuMemCreate");
	CHECK_EQ(pthread_create(&thread, NULL, create_in_thread, &handle), 0);
	while (fakecuda_calls("cuMemCreate") == 0)
		sched_yield();
	CHECK_EQ(cases_report().bytes_used[0], 0);
	CHECK_EQ(cuCtxSynchronize(), 0);
	fakecuda_hold(NULL);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(cases_report().bytes_used[0], MIB2);
	CHECK_EQ(cuMemRelease(handle), 0);
}

static void failures_may_come_from_the_environment(void)
{
	CUdeviceptr at;

	setenv("FAKECUDA_FAIL", "cuMemAlloc:1:NOT_PERMITTED", 1);
	cases_start();
	CHECK_EQ(cuMemAlloc(&at, 16), CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQ(cuMemAlloc(&at, 16), 0);
}

/* Reads what an unlinked temporary file has been given. */
static void read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, text, size - 1);

	CHECK(n >= 0);
	text[n] = 0;
	close(fd);
	unlink(path);
}

static void calls_are_logged(void)
{
	char path[32], text[8192];
	CUdeviceptr at;

	cases_temporary(path);
	setenv("FAKECUDA_LOG", path, 1);
	cases_start();
	CHECK_EQ(cuMemAlloc(&at, (size_t)1 << 60), CUDA_ERROR_OUT_OF_MEMORY);
	read_file(path, text, sizeof text);
	CHECK_HAS(text, "cuInit(0) = SUCCESS\n");
	CHECK_HAS(text, "cuMemAlloc_v2(0, 1152921504606846976) = OUT_OF_MEMORY\n");
}

static void leave_a_mapping(void)
{
	cases_start();
	cases_allocate(MIB2);
}

static void leaks_are_told_at_exit(void)
{
	char path[32], text[1024];

	cases_temporary(path);
	setenv("FAKECUDA_LEAKS", path, 1);
	CHECK_EQ(cases_child(leave_a_mapping), 0);
	read_file(path, text, sizeof text);
	CHECK_HAS(text, "leak: VMM mapping of 2097152 bytes");
	CHECK_HAS(text, "leak: 1 reservations");
}

static void the_report_counts(void)
{
	CUmemGenericAllocationHandle handle;
	struct fakecuda_report report;
	CUdeviceptr native;
	void *host;

	cases_start();
	cases_allocate(MIB2);
	CHECK_EQ(cuMemCreate(&handle, MIB2, &cases_prop, 0), 0);
	CHECK_EQ(cuMemAlloc(&native, 100), 0);
	CHECK_EQ(cuMemAllocHost(&host, 100), 0);
	report = cases_report();
	CHECK_EQ(report.handles, 1);
	CHECK_EQ(report.mappings, 1);
	CHECK_EQ(report.reservations, 1);
	CHECK_EQ(report.native_allocs, 1);
	CHECK_EQ(report.host_registrations, 1);
	CHECK_EQ(report.bytes_used[0], 3 * MIB2);
	CHECK_EQ(report.faults, 0);
}

static void *in_driver(const char *symbol)
{
	return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), symbol);
}

/* By its own name: headers before 12 know only the older form. */
static CUresult look_up(
	const char *name, void **function, int version, cuuint64_t flags, int *status)
{
	typedef CUresult look_up_v2(const char *, void **, int, cuuint64_t, int *);

	return ((look_up_v2 *)in_driver("cuGetProcAddress_v2"))(
		name, function, version, flags, status);
}

static void *looked_up(const char *name, int version, cuuint64_t flags)
{
	void *function;

	CHECK_EQ(look_up(name, &function, version, flags, NULL), 0);
	return function;
}

static void proc_addresses_follow_version_and_flavour(void)
{
	void *function;
	int status;

	CHECK(looked_up("cuMemAlloc", 12000, 0) == in_driver("cuMemAlloc_v2"));
	CHECK(looked_up("cuGetProcAddress", 11030, 0) == in_driver("cuGetProcAddress"));
	CHECK(looked_up("cuGetProcAddress", 13000, 0) ==
		in_driver("cuGetProcAddress_v2"));
	CHECK(looked_up("cuMemFreeAsync", 12000, 2) == in_driver("cuMemFreeAsync_ptsz"));
	CHECK(looked_up("cuMemFreeAsync", 12000, 1) == in_driver("cuMemFreeAsync"));
	CHECK(looked_up("cuMemcpyHtoD", 12000, 2) == in_driver("cuMemcpyHtoD_v2_ptds"));
	CHECK(looked_up("cuMemCreate", 12000, 2) == in_driver("cuMemCreate"));
	CHECK(!looked_up("cuMemAlloc", 2000, 0));
	/* Known, but newer than asked for; then not known. */
	CHECK_EQ(look_up("cuMemCreate", &function, 10000, 0, &status), 0);
	CHECK_EQ(status, 2);
	CHECK_EQ(look_up("cuNoSuch", &function, 10000, 0, &status), 0);
	CHECK_EQ(status, 1);
	CHECK(!function);
	CHECK_EQ(look_up("", &function, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(look_up("cuInit", &function, 99000, 0, &status),
		CUDA_ERROR_INVALID_VALUE);
}

static void an_old_driver_hides_what_is_newer(void)
{
	void *function;

	setenv("FAKECUDA_VERSION", "11080", 1);
	CHECK(looked_up("cuMemCreate", 11080, 0));
	CHECK(looked_up("cuGetProcAddress", 11080, 0) == in_driver("cuGetProcAddress"));
	CHECK(!looked_up("cuStreamBeginCaptureToGraph", 11080, 0));
	CHECK_EQ(look_up("cuMemCreate", &function, 12000, 0, NULL),
		CUDA_ERROR_INVALID_VALUE);
}

static void start_two_devices(void)
{
	setenv("FAKECUDA_DEVICES", "2", 1);
	cases_start();
}

static void peer_access_does_nothing_for_vmm_memory(void)
{
	CUcontext first, second;
	CUdeviceptr vmm, native;

	start_two_devices();
	vmm = cases_allocate(MIB2);
	first = cases_enter(0);
	second = cases_enter(1);
	CHECK_EQ(cuCtxEnablePeerAccess(first, 0), 0);
	CHECK_EQ(cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	CHECK_EQ(cuMemAlloc(&native, 64), 0);
	CHECK_EQ(cuMemcpy(native, vmm, 64), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemcpyPeer(native, second, vmm, first, 64), 0);
	CHECK_EQ(cases_access(vmm, MIB2, 1), 0);
	CHECK_EQ(cuMemcpy(native, vmm, 64), 0);
	cases_launch("touch", vmm, NULL);
	CHECK_EQ(cuCtxSynchronize(), 0);
}

/* Native memory is reached while any device is current. */
static void a_copy_to_the_host_needs_access_of_the_current_device(void)
{
	CUdeviceptr vmm, native;
	char host[64];

	start_two_devices();
	vmm = cases_allocate(MIB2);
	cases_enter(0);
	CHECK_EQ(cuMemAlloc(&native, 64), 0);
	cases_enter(1);
	CHECK_EQ(cuMemcpyDtoH(host, native, 64), 0);
	CHECK_EQ(cuMemcpyDtoH(host, vmm, 64), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemcpyHtoD(vmm, host, 64), CUDA_ERROR_INVALID_VALUE);
}

static void a_kernel_needs_access_to_vmm_memory_of_a_peer(void)
{
	CUcontext first;
	CUdeviceptr vmm;

	start_two_devices();
	vmm = cases_allocate(MIB2);
	first = cases_enter(0);
	cases_enter(1);
	CHECK_EQ(cuCtxEnablePeerAccess(first, 0), 0);
	cases_launch("touch", vmm, NULL);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void a_kernel_needs_peer_access_to_native_memory(void)
{
	CUcontext first;
	CUdeviceptr native;

	start_two_devices();
	first = cases_enter(0);
	CHECK_EQ(cuMemAlloc(&native, 64), 0);
	cases_enter(1);
	CHECK_EQ(cuCtxEnablePeerAccess(first, 0), 0);
	cases_launch("touch", native, NULL);
	CHECK_EQ(cuCtxSynchronize(), 0);
	CHECK_EQ(cuCtxDisablePeerAccess(first), 0);
	cases_launch("touch", native, NULL);
	CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static const struct test process[] = {
	TEST(calls_need_init_and_a_context),
	TEST(a_forked_child_has_no_driver),
	TEST(nothing_is_served_after_exit),
	TEST(a_reset_leaves_vmm_memory),
	TEST(contexts_stack_per_thread),
	TEST(the_nth_call_fails_without_effect),
	TEST(a_held_call_waits),
	TEST(failures_may_come_from_the_environment),
	TEST(calls_are_logged),
	TEST(leaks_are_told_at_exit),
	TEST(the_report_counts),
	TEST(proc_addresses_follow_version_and_flavour),
	TEST(an_old_driver_hides_what_is_newer),
	TEST(peer_access_does_nothing_for_vmm_memory),
	TEST(a_copy_to_the_host_needs_access_of_the_current_device),
	TEST(a_kernel_needs_access_to_vmm_memory_of_a_peer),
	TEST(a_kernel_needs_peer_access_to_native_memory),
};

const struct cases process_cases = {process, sizeof process / sizeof *process};
