/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a process as a whole, about several of them, and about the runtimes. */
#include <dlfcn.h>
#include <driver_types.h>
#include <fcntl.h>
#include <sched.h>

#include "cases.h"

/* ---- From cuInit() to exit ---- */

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

/* ---- Failures by order, counts, the log ---- */

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

static void temporary(char path[32])
{
	strcpy(path, "/tmp/fakecuda-XXXXXX");
	close(mkstemp(path));
}

static void calls_are_logged(void)
{
	char path[32], text[8192];
	CUdeviceptr at;

	temporary(path);
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

	temporary(path);
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

/* ---- cuGetProcAddress ---- */

static void *in_driver(const char *symbol)
{
	return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), symbol);
}

static void *looked_up(const char *name, int version, cuuint64_t flags)
{
	void *function;

	CHECK_EQ(cuGetProcAddress(name, &function, version, flags, NULL), 0);
	return function;
}

static void proc_addresses_follow_version_and_flavour(void)
{
	CUdriverProcAddressQueryResult status;
	void *function;

	CHECK(looked_up("cuMemAlloc", 12000, 0) == in_driver("cuMemAlloc_v2"));
	CHECK(looked_up("cuGetProcAddress", 11030, 0) == in_driver("cuGetProcAddress"));
	CHECK(looked_up("cuGetProcAddress", 13000, 0) == in_driver("cuGetProcAddress_v2"));
	CHECK(looked_up("cuMemFreeAsync", 12000, 2) == in_driver("cuMemFreeAsync_ptsz"));
	CHECK(looked_up("cuMemFreeAsync", 12000, 1) == in_driver("cuMemFreeAsync"));
	CHECK(looked_up("cuMemcpyHtoD", 12000, 2) == in_driver("cuMemcpyHtoD_v2_ptds"));
	CHECK(looked_up("cuMemCreate", 12000, 2) == in_driver("cuMemCreate"));
	CHECK(!looked_up("cuMemAlloc", 2000, 0));
	CHECK_EQ(cuGetProcAddress("cuMemCreate", &function, 10000, 0, &status), 0);
	CHECK_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	CHECK_EQ(cuGetProcAddress("cuNoSuch", &function, 10000, 0, &status), 0);
	CHECK_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CHECK(!function);
	CHECK_EQ(cuGetProcAddress("", &function, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuGetProcAddress("cuInit", &function, 99000, 0, &status),
		CUDA_ERROR_INVALID_VALUE);
}

static void an_old_driver_hides_what_is_newer(void)
{
	void *function;

	setenv("FAKECUDA_VERSION", "11080", 1);
	CHECK(looked_up("cuMemCreate", 11080, 0));
	CHECK(looked_up("cuGetProcAddress", 11080, 0) == in_driver("cuGetProcAddress"));
	CHECK(!looked_up("cuStreamBeginCaptureToGraph", 11080, 0));
	CHECK_EQ(cuGetProcAddress("cuMemCreate", &function, 12000, 0, NULL),
		CUDA_ERROR_INVALID_VALUE);
}

/* ---- Several devices ---- */

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

/* ---- Several processes. The parent of both has no driver. ---- */

/* What one process tells the other, and waits for. */
static int to_second[2], to_first[2];

struct message {
	int fd;
	CUipcMemHandle handle;
};

static void tell(int pipe, const void *data, size_t size)
{
	CHECK_EQ(write(pipe, data, size), size);
}

static void hear(int pipe, void *data, size_t size)
{
	CHECK_EQ(read(pipe, data, size), size);
}

static void step(int pipe)
{
	tell(pipe, "", 1);
}

static void await(int pipe)
{
	char c;

	hear(pipe, &c, 1);
}

/* Each keeps its own ends only, so that it hears when the other has died. */
static pid_t start(void (*fn)(void), const int reads[2], const int writes[2])
{
	pid_t pid = fork();

	if (pid == 0) {
		alarm(TEST_SECONDS);
		close(reads[1]);
		close(writes[0]);
		fn();
		exit(0);
	}
	CHECK(pid > 0);
	close(reads[0]);
	close(writes[1]);
	return pid;
}

static int status_of(pid_t pid)
{
	int status;

	CHECK_EQ(waitpid(pid, &status, 0), pid);
	return status;
}

/* Runs both at once, with a ledger in common. */
static void run_two(void (*first)(void), void (*second)(void))
{
	int status;
	char path[32];
	pid_t pids[2];

	temporary(path);
	setenv("FAKECUDA_SHARE", path, 1);
	CHECK_EQ(pipe(to_first), 0);
	CHECK_EQ(pipe(to_second), 0);
	pids[0] = start(first, to_first, to_second);
	pids[1] = start(second, to_second, to_first);
	status = status_of(pids[0]) | status_of(pids[1]);
	unlink(path);
	CHECK_EQ(status, 0);
}

static void export_memory(void)
{
	CUmemAllocationProp prop = cases_prop;
	CUmemGenericAllocationHandle handle;
	struct message message = {0};
	CUdeviceptr at;

	cases_start();
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	at = cases_reserve(MIB2);
	CHECK_EQ(cuMemCreate(&handle, MIB2, &prop, 0), 0);
	CHECK_EQ(cuMemMap(at, MIB2, 0, handle, 0), 0);
	CHECK_EQ(cases_access(at, MIB2, 0), 0);
	CHECK_EQ(cuMemsetD8(at, 5, MIB2), 0);
	CHECK_EQ(cuMemExportToShareableHandle(
			 &message.fd, handle, prop.requestedHandleTypes, 0),
		0);
	tell(to_second[1], &message, sizeof message);
	await(to_first[0]);
	CHECK_EQ(cases_report().bytes_used[0], MIB2);
	CHECK_EQ(cuMemUnmap(at, MIB2), 0);
	CHECK_EQ(cuMemRelease(handle), 0);
	CHECK_EQ(cases_report().bytes_used[0], MIB2);
	step(to_second[1]);
	await(to_first[0]);
	CHECK_EQ(cases_report().bytes_used[0], 0);
	step(to_second[1]);
}

/* Descriptors of a sibling are within reach under /proc. */
static int sibling_fd(int fd)
{
	char path[64], children[64] = "";
	FILE *file;
	int pid = 0, other = 0;

	snprintf(path, sizeof path, "/proc/%d/task/%d/children", getppid(), getppid());
	file = fopen(path, "r");
	CHECK(file);
	CHECK(fgets(children, sizeof children, file));
	fclose(file);
	CHECK_EQ(sscanf(children, "%d %d", &pid, &other), 2);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid == getpid() ? other : pid, fd);
	return open(path, O_RDWR);
}

static void import_memory(void)
{
	CUmemGenericAllocationHandle handle;
	unsigned char byte = 0;
	struct message message;
	CUdeviceptr at;

	cases_start();
	hear(to_second[0], &message, sizeof message);
	CHECK_EQ(cuMemImportFromShareableHandle(&handle,
			 (void *)(intptr_t)sibling_fd(message.fd),
			 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		0);
	at = cases_reserve(MIB2);
	CHECK_EQ(cuMemMap(at, MIB2, 0, handle, 0), 0);
	CHECK_EQ(cuMemRelease(handle), 0);
	CHECK_EQ(cases_access(at, MIB2, 0), 0);
	CHECK_EQ(cuMemcpyDtoH(&byte, at + MIB2 - 1, 1), 0);
	CHECK_EQ(byte, 5);
	step(to_first[1]);
	await(to_second[0]);
	CHECK_EQ(cuMemUnmap(at, MIB2), 0);
	step(to_first[1]);
	await(to_second[0]);
}

static void exported_memory_stays_until_all_let_go(void)
{
	run_two(export_memory, import_memory);
}

static void lend_native_memory(void)
{
	struct message message = {0};
	unsigned char byte = 0;
	CUdeviceptr at;

	cases_start();
	CHECK_EQ(cuMemAlloc(&at, 1000), 0);
	CHECK_EQ(cuMemsetD8(at, 5, 1000), 0);
	CHECK_EQ(cuIpcGetMemHandle(&message.handle, at), 0);
	CHECK_EQ(cuIpcOpenMemHandle(&at, message.handle, 1), CUDA_ERROR_INVALID_CONTEXT);
	tell(to_second[1], &message, sizeof message);
	await(to_first[0]);
	CHECK_EQ(cuMemcpyDtoH(&byte, at + 999, 1), 0);
	CHECK_EQ(byte, 6);
}

static void borrow_native_memory(void)
{
	struct message message;
	unsigned char byte = 0;
	CUdeviceptr at, again;

	cases_start();
	hear(to_second[0], &message, sizeof message);
	CHECK_EQ(cuIpcOpenMemHandle(&at, message.handle, 1), 0);
	CHECK_EQ(cuIpcOpenMemHandle(&again, message.handle, 1), 0);
	CHECK_EQ(at, again);
	CHECK_EQ(cuMemcpyDtoH(&byte, at + 999, 1), 0);
	CHECK_EQ(byte, 5);
	CHECK_EQ(cuMemsetD8(at, 6, 1000), 0);
	CHECK_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuIpcCloseMemHandle(at), 0);
	CHECK_EQ(cuIpcCloseMemHandle(at), 0);
	CHECK_EQ(cuIpcCloseMemHandle(at), CUDA_ERROR_INVALID_VALUE);
	step(to_first[1]);
}

static void native_memory_is_lent_by_ipc(void)
{
	run_two(lend_native_memory, borrow_native_memory);
}

static void take_most_and_die(void)
{
	setenv("FAKECUDA_MEMORY", "8MiB", 1);
	cases_start();
	cases_allocate(3 * MIB2);
	step(to_second[1]);
	await(to_first[0]);
	_exit(0);
}

static void find_little(void)
{
	CUmemGenericAllocationHandle handle;

	await(to_second[0]);
	cases_start();
	CHECK_EQ(cuMemCreate(&handle, 2 * MIB2, &cases_prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	step(to_first[1]);
	while (cases_report().bytes_used[0])
		sched_yield();
	CHECK_EQ(cuMemCreate(&handle, 4 * MIB2, &cases_prop, 0), 0);
}

static void processes_share_a_budget_until_they_die(void)
{
	run_two(take_most_and_die, find_little);
}

struct nvml_memory {
	unsigned long long total, free, used;
};

static void *in_nvml(const char *symbol)
{
	void *function = dlsym(dlopen("libnvidia-ml.so.1", RTLD_LAZY), symbol);

	CHECK(function);
	return function;
}

static void nvml_sees_who_holds_memory(void)
{
	unsigned count = 4;
	struct nvml_memory memory;
	struct {
		unsigned pid;
		unsigned long long used;
		unsigned instances[2];
	} infos[4];
	void *device;

	cases_start();
	cases_allocate(3 * MIB2);
	CHECK_EQ(((int (*)(void))in_nvml("nvmlInit_v2"))(), 0);
	CHECK_EQ(((int (*)(unsigned, void **))in_nvml("nvmlDeviceGetHandleByIndex_v2"))(
			 0, &device),
		0);
	CHECK_EQ(((int (*)(void *, void *))in_nvml("nvmlDeviceGetMemoryInfo"))(
			 device, &memory),
		0);
	CHECK_EQ(memory.used, 3 * MIB2);
	CHECK_EQ(((int (*)(void *, unsigned *, void *))in_nvml(
			 "nvmlDeviceGetComputeRunningProcesses_v3"))(device, &count, infos),
		0);
	CHECK_EQ(count, 1);
	CHECK_EQ(infos[0].pid, getpid());
	CHECK_EQ(infos[0].used, 3 * MIB2);
}

/* ---- The runtimes ---- */

typedef cudaError_t runtime_malloc(void **, size_t);
typedef cudaError_t runtime_free(void *);
typedef cudaError_t runtime_void(void);
typedef cudaError_t runtime_int(int);
typedef cudaError_t runtime_attributes(struct cudaPointerAttributes *, const void *);

static void *runtime;

static void *in_runtime(const char *symbol)
{
	void *function = dlsym(runtime, symbol);

	CHECK(function);
	return function;
}

#define RUNTIME(name, type) ((type *)in_runtime(#name))

static void check_allocation(void)
{
	void *ptr = &ptr;

	CHECK_EQ(RUNTIME(cudaMalloc, runtime_malloc)(&ptr, 0), cudaSuccess);
	CHECK(!ptr);
	ptr = &ptr;
	CHECK_EQ(RUNTIME(cudaMalloc, runtime_malloc)(&ptr, (size_t)1 << 63),
		cudaErrorMemoryAllocation);
	CHECK(ptr == &ptr);
	CHECK_EQ(RUNTIME(cudaPeekAtLastError, runtime_void)(), cudaErrorMemoryAllocation);
	CHECK_EQ(RUNTIME(cudaGetLastError, runtime_void)(), cudaErrorMemoryAllocation);
	CHECK_EQ(RUNTIME(cudaGetLastError, runtime_void)(), cudaSuccess);
	CHECK_EQ(RUNTIME(cudaMalloc, runtime_malloc)(&ptr, 100), cudaSuccess);
	CHECK_EQ(RUNTIME(cudaFree, runtime_free)(ptr), cudaSuccess);
	CHECK_EQ(RUNTIME(cudaFree, runtime_free)(ptr), cudaErrorInvalidValue);
}

static void check_unregistered(void)
{
	/* Room for the struct of any version. */
	union {
		struct cudaPointerAttributes attributes;
		char room[256];
	} u;

	CHECK_EQ(RUNTIME(cudaPointerGetAttributes, runtime_attributes)(
			 &u.attributes, (void *)cases_reserve(MIB2)),
		cudaSuccess);
	CHECK_EQ(u.attributes.type, cudaMemoryTypeUnregistered);
}

static void check_runtime(const char *name, int version, bool binds_at_once)
{
	CUcontext ctx = NULL;
	int got;

	runtime = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
	CHECK(runtime);
	CHECK(dlvsym(runtime, "cudaMalloc", name));
	CHECK_EQ(((cudaError_t(*)(int *))in_runtime("cudaRuntimeGetVersion"))(&got), 0);
	CHECK_EQ(got, version);
	CHECK_EQ(RUNTIME(cudaSetDevice, runtime_int)(0), cudaSuccess);
	CHECK_EQ(cuCtxGetCurrent(&ctx), 0);
	CHECK_EQ(ctx != NULL, binds_at_once);
	CHECK_EQ(RUNTIME(cudaFree, runtime_free)(NULL), cudaSuccess);
	CHECK_EQ(cuCtxGetCurrent(&ctx), 0);
	CHECK(ctx);
	check_allocation();
	check_unregistered();
	CHECK_EQ(RUNTIME(cudaDeviceReset, runtime_void)(), cudaSuccess);
	check_allocation();
}

static void runtime_11_works(void)
{
	check_runtime("libcudart.so.11.0", 11080, false);
}

static void runtime_12_works(void)
{
	check_runtime("libcudart.so.12", 12080, true);
}

static void runtime_13_works(void)
{
	check_runtime("libcudart.so.13", 13000, true);
}

static void a_runtime_wants_a_driver_as_new(void)
{
	void *ptr;

	setenv("FAKECUDA_VERSION", "12080", 1);
	runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_LOCAL);
	CHECK_EQ(RUNTIME(cudaMalloc, runtime_malloc)(&ptr, 1), cudaErrorInsufficientDriver);
	runtime = dlopen("libcudart.so.12", RTLD_LAZY | RTLD_LOCAL);
	CHECK_EQ(RUNTIME(cudaMalloc, runtime_malloc)(&ptr, 1), cudaSuccess);
}

const struct test cases_process[] = {
	TEST(calls_need_init_and_a_context),
	TEST(a_forked_child_has_no_driver),
	TEST(nothing_is_served_after_exit),
	TEST(a_reset_leaves_vmm_memory),
	TEST(contexts_stack_per_thread),
	TEST(the_nth_call_fails_without_effect),
	TEST(failures_may_come_from_the_environment),
	TEST(calls_are_logged),
	TEST(leaks_are_told_at_exit),
	TEST(the_report_counts),
	TEST(proc_addresses_follow_version_and_flavour),
	TEST(an_old_driver_hides_what_is_newer),
	TEST(peer_access_does_nothing_for_vmm_memory),
	TEST(a_kernel_needs_access_to_vmm_memory_of_a_peer),
	TEST(a_kernel_needs_peer_access_to_native_memory),
	TEST(exported_memory_stays_until_all_let_go),
	TEST(native_memory_is_lent_by_ipc),
	TEST(processes_share_a_budget_until_they_die),
	TEST(nvml_sees_who_holds_memory),
	TEST(runtime_11_works),
	TEST(runtime_12_works),
	TEST(runtime_13_works),
	TEST(a_runtime_wants_a_driver_as_new),
};

const size_t cases_process_count = sizeof cases_process / sizeof *cases_process;
