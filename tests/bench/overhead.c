/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call costs, with and without the library: the same program, run both ways.
 * Prints "name nanoseconds", the median of many rounds.
 *
 *   overhead                                    native
 *   LD_PRELOAD=build/libstayput.so overhead     hooked; also small allocations in a
 * region
 */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 51, CALLS = 2000, LIVE = 255 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void measure(const char *name, size_t size)
{
	double rounds[ROUNDS];

	for (int r = 0; r < ROUNDS; r++) {
		double start = now();

		for (int i = 0; i < CALLS; i++) {
			void *ptr;

			if (cudaMalloc(&ptr, size) != cudaSuccess ||
				cudaFree(ptr) != cudaSuccess)
				exit(1);
		}
		rounds[r] = (now() - start) / CALLS;
	}
	qsort(rounds, ROUNDS, sizeof *rounds, ascending);
	printf("%s %.0f\n", name, rounds[ROUNDS / 2]);
}

static void keep_some(size_t size)
{
	for (int i = 0; i < LIVE; i++) {
		void *ptr;

		if (cudaMalloc(&ptr, size) != cudaSuccess)
			exit(1);
	}
}

int main(void)
{
	int (*push)(const char *, int) = NULL;

	*(void **)&push = dlsym(RTLD_DEFAULT, "stayput_region_push");
	keep_some(4096);
	measure("native 4 KiB malloc+free", 4096);
	if (push && push("small", 0) == 0) {
		keep_some(4096);
		measure("region 4 KiB malloc+free", 4096);
	}
	return 0;
}
