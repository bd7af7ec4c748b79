/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call costs, with and without the library: the same program, run both ways.
 * Prints "name nanoseconds", the median of many rounds.
 *
 *   overhead                                    native
 *   LD_PRELOAD=build/libstayput.so overhead     hooked; also small allocations in a
 *                                               region, and native ones that a rule with
 *                                               module= is asked about, by malloc+free
 */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

/* The environment is read once, so a process of its own measures with a rule. */
static void measure_with_rule(const char *self)
{
	pid_t child = fork();

	if (child == 0) {
		setenv("STAYPUT_RULES", "none:module=no-such-file", 1);
		execl("/proc/self/exe", self, "rule", (char *)NULL);
		_exit(1);
	}
	if (child > 0)
		waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	int (*push)(const char *, int) = NULL;

	*(void **)&push = dlsym(RTLD_DEFAULT, "stayput_region_push");
	if (argc > 1 && strcmp(argv[1], "rule") == 0) {
		keep_some(4096);
		measure("native 4 KiB malloc+free, asked for its module", 4096);
		return 0;
	}
	if (push)
		measure_with_rule(argv[0]);
	keep_some(4096);
	measure("native 4 KiB malloc+free", 4096);
	if (push && push("small", 0) == 0) {
		keep_some(4096);
		measure("region 4 KiB malloc+free", 4096);
	}
	return 0;
}
