/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about several processes, and about the fake runtimes and NVML. */
#include <dlfcn.h>
#include <driver_types.h>
#include <fcntl.h>
#include <sched.h>

#include "cases.h"

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

	cases_temporary(path);
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

static CUresult create_shareable(unsigned types)
{
	CUmemAllocationProp prop = cases_prop;
	CUmemGenericAllocationHandle handle;
	CUresult err;

	prop.requestedHandleTypes = (CUmemAllocationHandleType)types;
	err = cuMemCreate(&handle, MIB2, &prop, 0);
	if (err == CUDA_SUCCESS)
		CHECK_EQ(cuMemRelease(handle), 0);
	return err;
}

static int attribute(int which)
{
	int value;

	CHECK_EQ(cuDeviceGetAttribute(&value, (CUdevice_attribute)which, 0), 0);
	return value;
}

static void fabric_handles_are_there_and_not_permitted(void)
{
	cases_start();
	CHECK_EQ(attribute(103), 1);
	CHECK_EQ(attribute(128), 1);
	CHECK_EQ(create_shareable(1), 0);
	CHECK_EQ(create_shareable(8), CUDA_ERROR_NOT_PERMITTED);
	CHECK_EQ(create_shareable(9), CUDA_ERROR_NOT_PERMITTED);
}

static void fabric_handles_may_be_permitted(void)
{
	setenv("FAKECUDA_SHAREABLE", "2", 1);
	cases_start();
	CHECK_EQ(create_shareable(9), 0);
}

static void memory_may_not_be_shareable(void)
{
	setenv("FAKECUDA_SHAREABLE", "0", 1);
	cases_start();
	CHECK_EQ(attribute(103), 0);
	CHECK_EQ(attribute(128), 0);
	CHECK_EQ(create_shareable(0), 0);
	CHECK_EQ(create_shareable(1), CUDA_ERROR_NOT_SUPPORTED);
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
	CHECK_EQ(
		cuMemCreate(&handle, 2 * MIB2, &cases_prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
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

static void nvml_tells_driver_and_link(void)
{
	unsigned generation, width;
	char version[16];
	void *device;

	CHECK_EQ(((int (*)(void))in_nvml("nvmlInit_v2"))(), 0);
	CHECK_EQ(((int (*)(unsigned, void **))in_nvml("nvmlDeviceGetHandleByIndex_v2"))(
			 0, &device),
		0);
	setenv("FAKECUDA_PCIE", "5x16", 1);
	CHECK_EQ(((int (*)(void *, unsigned *))in_nvml(
			 "nvmlDeviceGetMaxPcieLinkGeneration"))(device, &generation),
		0);
	CHECK_EQ(((int (*)(void *, unsigned *))in_nvml("nvmlDeviceGetMaxPcieLinkWidth"))(
			 device, &width),
		0);
	CHECK_EQ(generation, 5);
	CHECK_EQ(width, 16);
	CHECK_EQ(((int (*)(char *, unsigned))in_nvml("nvmlSystemGetDriverVersion"))(
			 version, 4),
		7);
	CHECK_EQ(((int (*)(char *, unsigned))in_nvml("nvmlSystemGetDriverVersion"))(
			 version, sizeof version),
		0);
	CHECK(strcmp(version, "580.00.00") == 0);
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
			 "nvmlDeviceGetComputeRunningProcesses_v3"))(
			 device, &count, infos),
		0);
	CHECK_EQ(count, 1);
	CHECK_EQ(infos[0].pid, getpid());
	CHECK_EQ(infos[0].used, 3 * MIB2);
}

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
	CHECK(ptr == NULL);
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
	CHECK_EQ(RUNTIME(cudaMalloc, runtime_malloc)(&ptr, 1),
		cudaErrorInsufficientDriver);
	runtime = dlopen("libcudart.so.12", RTLD_LAZY | RTLD_LOCAL);
	CHECK_EQ(RUNTIME(cudaMalloc, runtime_malloc)(&ptr, 1), cudaSuccess);
}

static const struct test shared[] = {
	TEST(exported_memory_stays_until_all_let_go),
	TEST(fabric_handles_are_there_and_not_permitted),
	TEST(fabric_handles_may_be_permitted),
	TEST(memory_may_not_be_shareable),
	TEST(native_memory_is_lent_by_ipc),
	TEST(processes_share_a_budget_until_they_die),
	TEST(nvml_sees_who_holds_memory),
	TEST(nvml_tells_driver_and_link),
	TEST(runtime_11_works),
	TEST(runtime_12_works),
	TEST(runtime_13_works),
	TEST(a_runtime_wants_a_driver_as_new),
};

const struct cases shared_cases = {shared, sizeof shared / sizeof *shared};
