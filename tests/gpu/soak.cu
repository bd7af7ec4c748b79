/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 200 pauses with random frees, allocations and writes between them: every byte is checked
 * on the device after every resume, and neither device nor host memory may grow.
 *
 *   soak [cycles] [GiB]
 */
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "check.h"

__global__ void fill(unsigned char *data, size_t n, unsigned seed)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
		i += gridDim.x * (size_t)blockDim.x)
		data[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 11);
}

__global__ void count_wrong(
	const unsigned char *data, size_t n, unsigned seed, unsigned long long *wrong)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
		i += gridDim.x * (size_t)blockDim.x)
		if (data[i] != (unsigned char)((i * 2654435761u + seed * 40503u) >> 11))
			atomicAdd(wrong, 1ull);
}

struct slot {
	unsigned char *ptr;
	size_t size;
	unsigned seed;
};

static unsigned random_state = 12345;

static unsigned next_random()
{
	random_state = random_state * 1664525u + 1013904223u;
	return random_state >> 8;
}

static size_t random_size(size_t most)
{
	return next_random() % 3 ? 1 + next_random() % (64 << 10)
				 : 1 + (size_t)next_random() * 131 % most;
}

static void change(slot &s, size_t most, bool anew)
{
	if (s.ptr && (anew || next_random() % 3 == 0)) {
		CUDA(cudaFree(s.ptr));
		s.ptr = nullptr;
	}
	if (!s.ptr) {
		s.size = random_size(most);
		OK(stayput_region_push("soak", STAYPUT_HOST));
		CUDA(cudaMalloc((void **)&s.ptr, s.size));
		OK(stayput_region_pop());
	}
	s.seed = next_random();
	fill<<<512, 256>>>(s.ptr, s.size, s.seed);
}

static size_t resident_mib()
{
	long pages[2] = {0, 0};
	FILE *file = fopen("/proc/self/statm", "r");

	if (file && fscanf(file, "%ld %ld", &pages[0], &pages[1]) != 2)
		pages[1] = 0;
	if (file)
		fclose(file);
	return (size_t)pages[1] * sysconf(_SC_PAGESIZE) >> 20;
}

int main(int argc, char **argv)
{
	int cycles = argc > 1 ? atoi(argv[1]) : 200;
	size_t total = (argc > 2 ? atoi(argv[2]) : 8) * ((size_t)1 << 30);
	std::vector<slot> slots(300);
	unsigned long long *wrong, answer = 0, checked = 0;
	size_t outside = 0, first_host = 0, last_host = 0, all;

	CUDA(cudaMalloc(&wrong, sizeof *wrong));
	CUDA(cudaMemset(wrong, 0, sizeof *wrong));
	for (slot &s : slots)
		change(s, total / 50, true);
	for (int cycle = 0; cycle < cycles; cycle++) {
		size_t free_bytes;

		for (int i = 0; i < 30; i++)
			change(slots[next_random() % slots.size()], total / 50, false);
		OK(stayput_pause("soak"));
		CUDA(cudaMemGetInfo(&free_bytes, &all));
		if (cycle == 0)
			outside = all - free_bytes;
		CHECK(all - free_bytes <= outside + (8 << 20));
		change(slots[cycle % slots.size()], total / 50, true);
		OK(stayput_resume("soak"));
		for (slot &s : slots) {
			count_wrong<<<512, 256>>>(s.ptr, s.size, s.seed, wrong);
			checked += s.size;
		}
		CUDA(cudaMemcpy(&answer, wrong, sizeof answer, cudaMemcpyDeviceToHost));
		CHECK(answer == 0);
		last_host = resident_mib();
		if (cycle == cycles / 4)
			first_host = last_host;
	}
	OK(stayput_host_trim(0));
	printf("%d cycles, %llu GiB checked, 0 bytes wrong; host %zu MiB after a quarter, %zu "
	       "at the end, %zu trimmed\n",
		cycles, checked >> 30, first_host, last_host, resident_mib());
	return 0;
}
