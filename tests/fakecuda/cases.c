/* SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"

#include <pthread.h>

const CUmemAllocationProp cases_prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
};

sem_t cases_running, cases_go;

static const char ptx[] =
	".version 7.0\n.target sm_52\n.address_size 64\n"
	".visible .entry touch(\n\t.param .u64 touch_param_0\n)\n{ ret; }\n"
	".visible .entry wait(.param .u64 p) { ret; }\n"
	".visible .entry hold(.param .u64 p) { ret; }\n"
	".visible .entry nothing(.param .u64 p) { ret; }\n";

static void touch(void **params, unsigned grid_blocks)
{
	int *at = fakecuda_at(*(CUdeviceptr *)params[0], sizeof *at);

	(void)grid_blocks;
	if (at)
		*at = 42;
}

static void wait_and_touch(void **params, unsigned grid_blocks)
{
	int *at = fakecuda_at(*(CUdeviceptr *)params[0], sizeof *at);

	(void)grid_blocks;
	sem_post(&cases_running);
	sem_wait(&cases_go);
	if (at)
		*at = 42;
}

static void hold(void **params, unsigned grid_blocks)
{
	(void)params;
	(void)grid_blocks;
	sem_wait(&cases_go);
}

static void nothing(void **params, unsigned grid_blocks)
{
	(void)params;
	(void)grid_blocks;
}

CUcontext cases_enter(int device)
{
	CUcontext ctx;

	CHECK_EQ(cuDevicePrimaryCtxRetain(&ctx, device), 0);
	CHECK_EQ(cuCtxSetCurrent(ctx), 0);
	return ctx;
}

void cases_start(void)
{
	CHECK_EQ(cuInit(0), 0);
	cases_enter(0);
	sem_init(&cases_running, 0, 0);
	sem_init(&cases_go, 0, 0);
	fakecuda_kernel("touch", touch);
	fakecuda_kernel("wait", wait_and_touch);
	fakecuda_kernel("hold", hold);
	fakecuda_kernel("nothing", nothing);
}

CUdeviceptr cases_reserve(size_t size)
{
	CUdeviceptr at;

	CHECK_EQ(cuMemAddressReserve(&at, size, 0, 0, 0), 0);
	return at;
}

void cases_map(CUdeviceptr at, size_t size, int device)
{
	CUmemAllocationProp prop = cases_prop;
	CUmemGenericAllocationHandle handle;

	prop.location.id = device;
	CHECK_EQ(cuMemCreate(&handle, size, &prop, 0), 0);
	CHECK_EQ(cuMemMap(at, size, 0, handle, 0), 0);
	CHECK_EQ(cuMemRelease(handle), 0);
}

CUmemAccessDesc cases_desc(int device)
{
	return (CUmemAccessDesc){.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

CUresult cases_access(CUdeviceptr at, size_t size, int device)
{
	const CUmemAccessDesc desc = cases_desc(device);

	return cuMemSetAccess(at, size, &desc, 1);
}

CUdeviceptr cases_allocate(size_t size)
{
	CUdeviceptr at = cases_reserve(size);

	cases_map(at, size, 0);
	CHECK_EQ(cases_access(at, size, 0), 0);
	return at;
}

struct fakecuda_report cases_report(void)
{
	struct fakecuda_report report;

	fakecuda_report(&report);
	return report;
}

CUdeviceptr cases_range_start(CUdeviceptr at)
{
	CUdeviceptr start;

	CHECK_EQ(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at),
		0);
	return start;
}

size_t cases_range_size(CUdeviceptr at)
{
	size_t size;

	CHECK_EQ(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at), 0);
	return size;
}

void cases_launch(const char *kernel, CUdeviceptr at, CUstream stream)
{
	void *params[] = {&at};
	CUmodule module;
	CUfunction fn;

	CHECK_EQ(cuModuleLoadData(&module, ptx), 0);
	CHECK_EQ(cuModuleGetFunction(&fn, module, kernel), 0);
	/* The module stays: by now the kernel may have lost the context. */
	CHECK_EQ(cuLaunchKernel(fn, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL), 0);
}

void cases_hold(CUstream stream)
{
	cases_launch("hold", 0, stream);
}

static void *post(void *semaphore)
{
	usleep(20000);
	sem_post(semaphore);
	return NULL;
}

void cases_post_later(sem_t *semaphore)
{
	pthread_t thread;

	CHECK_EQ(pthread_create(&thread, NULL, post, semaphore), 0);
	pthread_detach(thread);
}

CUstream cases_capture(CUstreamCaptureMode mode)
{
	CUstream stream;

	CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	CHECK_EQ(cuStreamBeginCapture(stream, mode), 0);
	return stream;
}

CUgraphExec cases_end_capture(CUstream stream)
{
	CUgraphExec exec;
	CUgraph graph;

	CHECK_EQ(cuStreamEndCapture(stream, &graph), 0);
	CHECK_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
	CHECK_EQ(cuGraphDestroy(graph), 0);
	return exec;
}

int cases_child(void (*fn)(void))
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		alarm(TEST_SECONDS);
		fn();
		exit(0);
	}
	CHECK(pid > 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void cases_temporary(char path[32])
{
	strcpy(path, "/tmp/fakecuda-XXXXXX");
	close(mkstemp(path));
}
