/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs that libstayput.so is preloaded into: nothing here links to it, or to a
 * driver. Everything CHECKs.
 */
#ifndef PRELOADED_H
#define PRELOADED_H

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdatomic.h>

#include "../test.h"
#include "stayput.h"

#define MIB ((size_t)1 << 20)

/* What CUDA calls answer in a forked child of a process that has used CUDA. */
enum { NOT_IN_A_CHILD = cudaErrorInitializationError };

static inline void *symbol(void *handle, const char *name)
{
	void *function = dlsym(handle, name);

	if (!function)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(function);
	return function;
}

/* A function of the library, or a CUDA function as a program without a runtime finds it.
 */
#define STAYPUT(function) ((typeof(&function))symbol(RTLD_DEFAULT, #function))

/* Allocations of this thread belong to the region "weights" from here. */
static inline void begin_region(void)
{
	CHECK_EQ(STAYPUT(stayput_region_push)("weights", STAYPUT_HOST), STAYPUT_OK);
}

static inline void end_region(void)
{
	CHECK_EQ(STAYPUT(stayput_region_pop)(), STAYPUT_OK);
}

/* What the library says of `ptr`: STAYPUT_OK when it is region memory. */
static inline int query(const void *ptr, struct stayput_info *info)
{
	*info = (struct stayput_info){.struct_size = sizeof *info};
	return STAYPUT(stayput_query)(ptr, info);
}

static inline bool is_region_memory(const void *ptr)
{
	struct stayput_info info;

	return query(ptr, &info) == STAYPUT_OK;
}

static inline unsigned char pattern_at(size_t i)
{
	return (unsigned char)(i * 2654435761u >> 11);
}

/* What a program does when it is told `name`. */
struct job {
	const char *name;
	void (*run)(void);
};

#define JOB(fn)                          \
	{                                \
		.name = #fn, .run = (fn) \
	}

static inline int do_job(const struct job *jobs, size_t n, int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < n; i++)
		if (strcmp(argv[1], jobs[i].name) == 0) {
			jobs[i].run();
			return 0;
		}
	fprintf(stderr, "%s: no job of that name\n", argv[0]);
	return 2;
}

/* A library with `part` in its file name is loaded. */
static inline bool is_loaded(const char *part)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096], *file;
	bool found = false;

	CHECK(maps);
	while (!found && fgets(line, sizeof line, maps)) {
		file = strrchr(line, '/');
		found = file && strstr(file, part);
	}
	fclose(maps);
	return found;
}

#endif
