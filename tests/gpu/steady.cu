/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steady GIB - a program that knows nothing of stayput: keeps a table in device memory, and
 * for every line on standard input checks it by a kernel and says "right" or "wrong N". With
 * nvcc's static runtime.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(cudaError_t err)
{
	if (err == cudaSuccess)
		return;
	printf("%s\n", cudaGetErrorString(err));
	exit(1);
}

__device__ static uint64_t value_at(uint64_t i, uint64_t seed)
{
	uint64_t x = i + seed * 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

__global__ static void fill(uint64_t *table, size_t n, uint64_t seed)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
		i += (size_t)gridDim.x * blockDim.x)
		table[i] = value_at(i, seed);
}

__global__ static void compare(
	const uint64_t *table, size_t n, uint64_t seed, unsigned long long *wrong)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
		i += (size_t)gridDim.x * blockDim.x)
		if (table[i] != value_at(i, seed))
			atomicAdd(wrong, 1);
}

int main(int argc, char **argv)
{
	const size_t part = (size_t)512 << 20, n = part / sizeof(uint64_t);
	std::vector<uint64_t *> parts(argc > 1 ? 2 * atoi(argv[1]) : 2);
	unsigned long long *wrong, count;
	char line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	check(cudaMalloc(&wrong, sizeof *wrong));
	for (size_t i = 0; i < parts.size(); i++) {
		check(cudaMalloc(&parts[i], part));
		fill<<<1024, 256>>>(parts[i], n, i);
	}
	check(cudaDeviceSynchronize());
	printf("ready\n");
	while (fgets(line, sizeof line, stdin)) {
		check(cudaMemset(wrong, 0, sizeof *wrong));
		for (size_t i = 0; i < parts.size(); i++)
			compare<<<1024, 256>>>(parts[i], n, i, wrong);
		check(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost));
		if (count)
			printf("wrong %llu\n", count);
		else
			printf("right\n");
	}
	return 0;
}
