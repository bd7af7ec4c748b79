/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One region, paused and resumed: its memory is free for others meanwhile, and pointer
 * and contents are the same afterwards. Run with libstayput.so preloaded: `make demo`.
 */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stayput.h"

static void check_cuda(cudaError_t err, const char *what)
{
	if (err != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(err));
		exit(1);
	}
}

static void check(int err, const char *what)
{
	if (err != STAYPUT_OK) {
		fprintf(stderr, "%s: %s\n", what, stayput_last_error());
		exit(1);
	}
}

static size_t free_mib(void)
{
	size_t free_bytes, total;

	check_cuda(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
	return free_bytes >> 20;
}

int main(void)
{
	const size_t size = (size_t)1 << 30;
	unsigned char *host = malloc(size), *back = malloc(size);
	void *weights;

	if (!host || !back)
		return 1;
	for (size_t i = 0; i < size; i++)
		host[i] = (unsigned char)(i * 2654435761u >> 13);

	check(stayput_region_push("weights", STAYPUT_HOST), "push");
	check_cuda(cudaMalloc(&weights, size), "cudaMalloc");
	check(stayput_region_pop(), "pop");
	check_cuda(cudaMemcpy(weights, host, size, cudaMemcpyHostToDevice), "copy in");
	printf("active  weights at %p, %zu MiB free\n", weights, free_mib());

	check(stayput_pause("weights"), "pause");
	printf("paused  weights at %p, %zu MiB free\n", weights, free_mib());

	check(stayput_resume("weights"), "resume");
	check_cuda(cudaMemcpy(back, weights, size, cudaMemcpyDeviceToHost), "copy out");
	printf("resumed weights at %p, %zu MiB free, contents %s\n", weights, free_mib(),
		memcmp(host, back, size) == 0 ? "the same" : "DIFFER");
	check_cuda(cudaFree(weights), "cudaFree");
	free(host);
	free(back);
	return 0;
}
