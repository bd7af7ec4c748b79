/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what CUDA answers to sequences of calls, right and wrong ones. Run without the
 * library and with it, everything in a region, the output is the same: native memory is the
 * reference. What differs on purpose (docs/limits.md) is not asked here.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MIB = 1 << 20 };

/* The code, and what is left behind for cudaGetLastError(). */
static void say(const char *what, cudaError_t answer)
{
	printf("%-44s %s", what, cudaGetErrorName(answer));
	printf(", then %s\n", cudaGetErrorName(cudaGetLastError()));
}

static void say_driver(const char *what, CUresult answer)
{
	const char *name = "?";

	cuGetErrorName(answer, &name);
	printf("%-44s %s\n", what, name);
}

static void say_number(const char *what, unsigned long long number)
{
	printf("%-44s %llu\n", what, number);
}

static void first_call_on_a_second_device(void)
{
	void *p = NULL;
	int count = 0, device = -1;
	struct cudaPointerAttributes attributes;

	say("cudaGetDeviceCount", cudaGetDeviceCount(&count));
	if (count > 1)
		cudaSetDevice(1);
	say("the first call allocates", cudaMalloc(&p, MIB));
	cudaPointerGetAttributes(&attributes, p);
	cudaGetDevice(&device);
	say_number("it is on the current device", attributes.device == device);
	say_number("it is device memory", attributes.type == cudaMemoryTypeDevice);
	say("free", cudaFree(p));
	cudaSetDevice(0);
}

static void odd_sizes(void)
{
	static const size_t sizes[] = {0, 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1};
	size_t pitch = 0;
	void *p;

	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		p = (void *)1;
		say_number("bytes asked for", sizes[i]);
		say("cudaMalloc", cudaMalloc(&p, sizes[i]));
		say_number("the answer is NULL", p == NULL);
		say("cudaFree", cudaFree(p));
	}
	say("cudaMalloc of no pointer", cudaMalloc(NULL, MIB));
	p = (void *)1;
	say("cudaMallocPitch without width", cudaMallocPitch(&p, &pitch, 0, 4));
	p = (void *)1;
	say("cudaMallocPitch without height", cudaMallocPitch(&p, &pitch, 4, 0));
}

/* Native memory answers NULL as well, and leaves an error for cudaGetLastError(): a region
 * touches neither. */
static void too_large(void)
{
	void *p = (void *)1;
	CUdeviceptr d = 1;

	say_number("2^63 bytes", cudaMalloc(&p, (size_t)1 << 63));
	say_number("2^50 bytes", cudaMalloc(&p, (size_t)1 << 50));
	say_driver("cuMemAlloc of 2^50 bytes", cuMemAlloc(&d, (size_t)1 << 50));
	cudaGetLastError();
}

static void wrong_frees(void)
{
	static char in_data[64];
	char on_stack[64];
	char *p, *small;

	cudaMalloc((void **)&p, 8 * MIB);
	cudaMalloc((void **)&small, 1000);
	say("free of NULL", cudaFree(NULL));
	say("free inside an allocation", cudaFree(p + 4096));
	say("free inside a small allocation", cudaFree(small + 8));
	say("free of a stack address", cudaFree(on_stack));
	say("free of a static address", cudaFree(in_data));
	say("free", cudaFree(p));
	say("free again", cudaFree(p));
	say("free", cudaFree(small));
	say("free again", cudaFree(small));
	say_driver("cuMemFree again", cuMemFree((CUdeviceptr)small));
	say_driver("cuMemFree of 0", cuMemFree(0));
}

static void each_way_to_free(void)
{
	cudaStream_t stream;
	CUdeviceptr d;
	void *p;

	cudaStreamCreate(&stream);
	cudaMalloc(&p, MIB);
	say("cudaFreeAsync", cudaFreeAsync(p, stream));
	cudaMalloc(&p, MIB);
	say_driver("cuMemFree", cuMemFree((CUdeviceptr)p));
	cudaMalloc(&p, 4 * MIB);
	say_driver("cuMemFreeAsync", cuMemFreeAsync((CUdeviceptr)p, stream));
	cuMemAlloc(&d, MIB);
	say("cudaFree of cuMemAlloc's", cudaFree((void *)d));
	cudaMallocAsync(&p, MIB, stream);
	say("cudaFree of cudaMallocAsync's", cudaFree(p));
	cudaMallocAsync(&p, MIB, stream);
	say("cudaFreeAsync of cudaMallocAsync's", cudaFreeAsync(p, stream));
	say("synchronize", cudaStreamSynchronize(stream));
	cudaStreamDestroy(stream);
}

static void ranges(void)
{
	CUdeviceptr base = 0, start = 0;
	size_t size = 0, range = 0;
	char *p;

	cudaMalloc((void **)&p, 3000);
	say_driver("cuMemGetAddressRange",
		cuMemGetAddressRange(&base, &size, (CUdeviceptr)p + 100));
	say_number("base is right", base == (CUdeviceptr)p);
	say_number("size", size);
	say_driver("RANGE_START_ADDR",
		cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
			(CUdeviceptr)p + 100));
	say_driver(
		"RANGE_SIZE", cuPointerGetAttribute(&range,
				      CU_POINTER_ATTRIBUTE_RANGE_SIZE, (CUdeviceptr)p));
	say_number("start is right", start == (CUdeviceptr)p);
	say_number("size", range);
	say_driver("cuMemGetAddressRange of a host address",
		cuMemGetAddressRange(&base, &size, (CUdeviceptr)&base));
	cudaFree(p);
}

static void captures(enum cudaStreamCaptureMode mode)
{
	cudaGraphExec_t exec;
	cudaStream_t stream;
	cudaGraph_t graph = NULL;
	char *kept, *freed;

	cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	cudaMalloc((void **)&kept, MIB);
	cudaMalloc((void **)&freed, 4 * MIB);
	say("begin capture", cudaStreamBeginCapture(stream, mode));
	say("memset in capture", cudaMemsetAsync(kept, 7, MIB, stream));
	say("end capture", cudaStreamEndCapture(stream, &graph));
	say("instantiate", cudaGraphInstantiateWithFlags(&exec, graph, 0));
	say("launch", cudaGraphLaunch(exec, stream));
	say("synchronize", cudaStreamSynchronize(stream));
	say("end capture without beginning", cudaStreamEndCapture(stream, &graph));
	say("free after capture", cudaFree(freed));
	cudaGraphExecDestroy(exec);
	cudaStreamDestroy(stream);
	cudaFree(kept);
}

static void peers(void)
{
	int count = 0;

	cudaGetDeviceCount(&count);
	say("peer access to itself", cudaDeviceEnablePeerAccess(0, 0));
	say("peer access to no device", cudaDeviceEnablePeerAccess(99, 0));
	say("an end to no peer access", cudaDeviceDisablePeerAccess(99));
	if (count < 2)
		return;
	say("an end before a beginning", cudaDeviceDisablePeerAccess(1));
	say("peer access", cudaDeviceEnablePeerAccess(1, 0));
	say("peer access again", cudaDeviceEnablePeerAccess(1, 0));
	say("its end", cudaDeviceDisablePeerAccess(1));
}

static void *use_cuda(void *unused)
{
	void *p;

	(void)unused;
	say("a thread's first call allocates", cudaMalloc(&p, MIB));
	say("and frees", cudaFree(p));
	return NULL;
}

static void another_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, use_cuda, NULL);
	pthread_join(thread, NULL);
}

static void ipc(void)
{
	cudaIpcMemHandle_t handle;
	void *p, *opened;
	char on_stack[8];

	memset(&handle, 0, sizeof handle);
	cudaMalloc(&p, MIB);
	say("handle of memory", cudaIpcGetMemHandle(&handle, p));
	say("handle of an address inside", cudaIpcGetMemHandle(&handle, (char *)p + 512));
	say("handle of a stack address", cudaIpcGetMemHandle(&handle, on_stack));
	cudaIpcGetMemHandle(&handle, p);
	/* What a hook answers by itself is not left behind for cudaGetLastError(). */
	say_number("opened where it was made",
		cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
	cudaGetLastError();
	say("close of what was not opened", cudaIpcCloseMemHandle(p));
	memset(&handle, 0x5a, sizeof handle);
	say("an invented handle",
		cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
	cudaFree(p);
}

static void reset(void)
{
	void *p;

	cudaMalloc(&p, MIB);
	say("reset", cudaDeviceReset());
	say("free of what the reset freed", cudaFree(p));
	say("allocation after it", cudaMalloc(&p, MIB));
	say("free", cudaFree(p));
}

int main(void)
{
	first_call_on_a_second_device();
	odd_sizes();
	too_large();
	wrong_frees();
	each_way_to_free();
	ranges();
	captures(cudaStreamCaptureModeGlobal);
	captures(cudaStreamCaptureModeThreadLocal);
	captures(cudaStreamCaptureModeRelaxed);
	peers();
	another_thread();
	ipc();
	reset();
	return 0;
}
