/* SPDX-License-Identifier: Apache-2.0 */
/* On two GPUs: kernels of one on region memory of the other, before and after pauses, with
 * access enabled before and after the allocation; copies between them. */
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "check.h"

static const size_t WORDS = 16 << 20;

__global__ void add(unsigned *data, size_t n, unsigned value)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
		i += gridDim.x * blockDim.x)
		data[i] += value + (unsigned)i;
}

static unsigned *region_malloc(int device)
{
	unsigned *ptr;

	CUDA(cudaSetDevice(device));
	OK(stayput_region_push("peer", STAYPUT_HOST));
	CUDA(cudaMalloc((void **)&ptr, WORDS * 4));
	OK(stayput_region_pop());
	CUDA(cudaMemset(ptr, 0, WORDS * 4));
	CUDA(cudaDeviceSynchronize());
	return ptr;
}

/* A kernel on `device` adds 1 + i to every word. */
static void add_on(int device, unsigned *ptr)
{
	CUDA(cudaSetDevice(device));
	add<<<512, 256>>>(ptr, WORDS, 1);
	CUDA(cudaDeviceSynchronize());
}

static void check(const unsigned *ptr, unsigned times)
{
	unsigned *host = (unsigned *)malloc(WORDS * 4);

	CUDA(cudaMemcpy(host, ptr, WORDS * 4, cudaMemcpyDefault));
	for (size_t i = 0; i < WORDS; i++)
		CHECK(host[i] == times * (1 + (unsigned)i));
	free(host);
}

static void enable(int accessor, int owner)
{
	CUDA(cudaSetDevice(accessor));
	CUDA(cudaDeviceEnablePeerAccess(owner, 0));
}

/* While `other` is the current device: copies between the host and the memory of `device`.
 * Native memory needs no peer access for that, the region's does (docs/limits.md). */
static void copy_from_elsewhere(int device, int other, bool has_access)
{
	unsigned *in_region = region_malloc(device), word = 3;

	CUDA(cudaSetDevice(other));
	CHECK((cudaMemcpy(in_region, &word, 4, cudaMemcpyHostToDevice) == cudaSuccess) ==
		has_access);
	CHECK((cudaMemcpy(&word, in_region, 4, cudaMemcpyDeviceToHost) == cudaSuccess) ==
		has_access);
	cudaGetLastError();
	CUDA(cudaSetDevice(device));
	CUDA(cudaFree(in_region));
}

int main()
{
	unsigned *before = region_malloc(0), *after, *other;
	int devices;

	CUDA(cudaGetDeviceCount(&devices));
	if (devices < 2) {
		printf("skipped: one GPU\n");
		return 0;
	}
	copy_from_elsewhere(1, 0, false);
	enable(1, 0);
	enable(0, 1);
	copy_from_elsewhere(1, 0, true);
	after = region_malloc(0);
	other = region_malloc(1);
	for (unsigned cycle = 1; cycle <= 3; cycle++) {
		add_on(1, before);
		add_on(1, after);
		add_on(0, other);
		OK(stayput_pause("peer"));
		OK(stayput_resume("peer"));
		check(before, 2 * cycle - 1);
		check(other, 2 * cycle - 1);
		add_on(1, before);
		add_on(1, after);
		add_on(0, other);
		check(before, 2 * cycle);
		check(after, 2 * cycle);
		CUDA(cudaMemcpyPeer(after, 0, other, 1, WORDS * 4));
		check(after, 2 * cycle);
		CUDA(cudaMemcpy(after, other, WORDS * 4, cudaMemcpyDefault));
		check(after, 2 * cycle);
	}
	printf("peer kernels and copies right before and after 3 pauses\n");
	return 0;
}
