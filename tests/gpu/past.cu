/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory on a GPU: counted in a region, not inside of captures; pools trimmed
 * by a pause. */
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "check.h"

static const size_t SIZE = 256 << 20;

static uint64_t counted()
{
	struct stayput_region_info info = {};

	info.struct_size = sizeof info;
	OK(stayput_region_info("r", &info));
	return info.bytes_stream_ordered;
}

static size_t free_memory()
{
	size_t free_bytes, total;

	CUDA(cudaMemGetInfo(&free_bytes, &total));
	return free_bytes;
}

static void count(cudaStream_t stream)
{
	void *ptr, *other;
	cudaMemPool_t pool;

	CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
	CUDA(cudaMallocAsync(&ptr, SIZE, stream));
	CUDA(cudaMallocFromPoolAsync(&other, SIZE, pool, stream));
	CHECK(counted() == 2 * SIZE);
	CUDA(cudaFreeAsync(ptr, stream));
	CHECK(counted() == SIZE);
	CUDA(cudaFree(other));
	CHECK(counted() == 0);
}

static void capture(cudaStream_t stream)
{
	cudaGraphExec_t exec;
	cudaGraph_t graph;
	void *ptr;

	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	CUDA(cudaMallocAsync(&ptr, SIZE, stream));
	CUDA(cudaMemsetAsync(ptr, 1, SIZE, stream));
	CUDA(cudaFreeAsync(ptr, stream));
	CUDA(cudaStreamEndCapture(stream, &graph));
	CHECK(counted() == 0);
	CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
	CUDA(cudaGraphLaunch(exec, stream));
	CUDA(cudaGraphLaunch(exec, stream));
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaGraphExecDestroy(exec));
	CUDA(cudaGraphDestroy(graph));
	CHECK(counted() == 0);
}

static void trim(cudaStream_t stream)
{
	uint64_t all = UINT64_MAX;
	cudaMemPool_t pool;
	size_t before;
	void *ptr;

	CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
	CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
	CUDA(cudaMallocAsync(&ptr, SIZE, stream));
	CUDA(cudaFreeAsync(ptr, stream));
	CUDA(cudaDeviceSynchronize());
	before = free_memory();
	OK(stayput_pause("r"));
	printf("a pause gave %zu MiB of the pool back\n", (free_memory() - before) >> 20);
	CHECK(free_memory() >= before + SIZE);
}

int main()
{
	cudaStream_t stream;

	CUDA(cudaSetDevice(0));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	OK(stayput_region_push("r", STAYPUT_HOST));
	count(stream);
	capture(stream);
	trim(stream);
	OK(stayput_region_pop());
	printf("stream-ordered memory: ok\n");
	return 0;
}
