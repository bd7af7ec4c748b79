/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that is linked to nothing of CUDA and opens libraries that are, as an
 * interpreter does. Jobs for tests/test_loading.c; libstayput.so is preloaded.
 */
#include <pthread.h>
#include <sched.h>

#include "libraries.h"
#include "preloaded.h"

/* More than any device has. */
static const size_t TOO_MUCH = (size_t)1 << 50;

static void *open_library(const char *name, int flags)
{
	void *library = dlopen(name, RTLD_NOW | flags);

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	return library;
}

#define IN(library, function) ((typeof(&function))symbol(library, #function))

static void use_nothing(void)
{
	begin_region();
	end_region();
	CHECK(is_loaded("libstayput"));
	CHECK(!is_loaded("libcuda"));
}

/* Region memory and native memory through a library, both freed again. */
static void use_consumer(void *library)
{
	void *ptr = NULL;

	begin_region();
	CHECK_EQ(IN(library, consumer_malloc)(&ptr, MIB), cudaSuccess);
	end_region();
	CHECK(is_region_memory(ptr));
	CHECK_EQ(IN(library, consumer_free)(ptr), cudaSuccess);
	CHECK_EQ(IN(library, consumer_malloc)(&ptr, MIB), cudaSuccess);
	CHECK(!is_region_memory(ptr));
	CHECK_EQ(IN(library, consumer_free)(ptr), cudaSuccess);
}

static void open_local(void)
{
	use_consumer(open_library("libconsumer13.so", RTLD_LOCAL));
}

static void open_as_dependency(void)
{
	void *outer = open_library("libouter.so", RTLD_LOCAL);
	void *ptr = NULL;

	begin_region();
	CHECK_EQ(IN(outer, outer_malloc)(&ptr, MIB), cudaSuccess);
	end_region();
	CHECK(is_region_memory(ptr));
	CHECK_EQ(IN(outer, outer_free)(ptr), cudaSuccess);
	CHECK_EQ(IN(outer, outer_malloc)(&ptr, MIB), cudaSuccess);
	CHECK(!is_region_memory(ptr));
	CHECK_EQ(IN(outer, outer_free)(ptr), cudaSuccess);
}

static void open_hashed(void)
{
	void *library = open_library("libconsumer_hashed.so", RTLD_LOCAL);

	CHECK(is_loaded("libcudart-a1b2c3d4.so.12"));
	CHECK(!is_loaded("libcudart.so"));
	use_consumer(library);
}

/* The program itself has no runtime among its dependencies: any that is loaded is taken.
 */
static void call_without_dependency(void)
{
	void *ptr = NULL;

	open_library("libconsumer_hashed.so", RTLD_LOCAL);
	CHECK_EQ(STAYPUT(cudaMalloc)(&ptr, MIB), cudaSuccess);
	CHECK_EQ(STAYPUT(cudaFree)(ptr), cudaSuccess);
}

/* A failing cudaMalloc() of the one is noted by its runtime and not by the other's. */
static void expect_own_runtime(void *one, void *other)
{
	void *ptr;

	CHECK_EQ(IN(one, consumer_malloc)(&ptr, TOO_MUCH), cudaErrorMemoryAllocation);
	CHECK_EQ(IN(other, consumer_last_error)(), cudaSuccess);
	CHECK_EQ(IN(one, consumer_last_error)(), cudaErrorMemoryAllocation);
}

static void use_both(void *library12, void *library13)
{
	CHECK_EQ(IN(library12, consumer_runtime)(), 12);
	CHECK_EQ(IN(library13, consumer_runtime)(), 13);
	expect_own_runtime(library12, library13);
	expect_own_runtime(library13, library12);
	use_consumer(library12);
	use_consumer(library13);
	expect_own_runtime(library12, library13);
	expect_own_runtime(library13, library12);
}

static void open_two_runtimes(void)
{
	void *library12 = open_library("libconsumer12.so", RTLD_LOCAL);
	void *library13 = open_library("libconsumer13.so", RTLD_LOCAL);

	use_both(library12, library13);
}

/* As PyTorch opens its own runtime, and another package then brings an older one. */
static void open_global_and_local(void)
{
	void *library13, *library12;

	open_library("libcudart.so.13", RTLD_GLOBAL);
	library13 = open_library("libconsumer13.so", RTLD_LOCAL);
	library12 = open_library("libconsumer12.so", RTLD_LOCAL);
	use_both(library12, library13);
}

/* A failing cudaMalloc() through the library, which is unloaded again: where its code was. */
static void *fail_in(const char *name, int runtime)
{
	void *library = open_library(name, RTLD_LOCAL), *place, *ptr;

	place = (void *)IN(library, consumer_malloc);
	CHECK_EQ(IN(library, consumer_runtime)(), runtime);
	CHECK_EQ(IN(library, consumer_malloc)(&ptr, TOO_MUCH), cudaErrorMemoryAllocation);
	CHECK_EQ(IN(library, consumer_last_error)(), cudaErrorMemoryAllocation);
	CHECK_EQ(dlclose(library), 0);
	return place;
}

/* Its runtimes stay, so that the library alone goes, and the next gets its place. */
static void replace_by_other_runtime(void)
{
	void *place;

	open_library("libcudart.so.12", RTLD_LOCAL);
	open_library("libcudart.so.13", RTLD_LOCAL);
	place = fail_in("libplaced12.so", 12);
	if (fail_in("libplaced13.so", 13) != place)
		SKIP("the address was not free");
}

static void call_before_runtime(void)
{
	void *ptr = NULL;

	for (int i = 0; i < 3; i++) {
		CHECK_EQ(STAYPUT(cudaMalloc)(&ptr, MIB), cudaErrorInitializationError);
		CHECK_EQ(STAYPUT(cudaFree)(NULL), cudaErrorInitializationError);
	}
	open_library("libcudart.so.13", RTLD_LOCAL);
	CHECK_EQ(STAYPUT(cudaMalloc)(&ptr, MIB), cudaSuccess);
	CHECK_EQ(STAYPUT(cudaFree)(ptr), cudaSuccess);
	begin_region();
	CHECK_EQ(STAYPUT(cudaMalloc)(&ptr, MIB), cudaSuccess);
	end_region();
	CHECK(is_region_memory(ptr));
	CHECK_EQ(STAYPUT(cudaFree)(ptr), cudaSuccess);
}

static _Atomic bool in_constructor, call_returned;
static _Atomic pid_t caller;

/* The thread waits for something: here that can only be the loader's lock, which whoever
 * runs a constructor holds. */
static bool is_asleep(pid_t thread)
{
	char path[64], text[512] = "", *state;
	FILE *file;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
	file = fopen(path, "r");
	CHECK(file);
	CHECK(fgets(text, sizeof text, file));
	fclose(file);
	state = strrchr(text, ')');
	CHECK(state);
	return state[2] == 'S';
}

static void *make_first_call(void *hook)
{
	typeof(&cudaMalloc) malloc_hook = (typeof(&cudaMalloc))hook;
	void *ptr = NULL;

	while (!in_constructor)
		sched_yield();
	caller = gettid();
	CHECK_EQ(malloc_hook(&ptr, MIB), cudaSuccess);
	CHECK(is_region_memory(ptr));
	call_returned = true;
	return NULL;
}

__attribute__((visibility("default"))) void early_hold(void)
{
	in_constructor = true;
	while (!call_returned && !(caller && is_asleep(caller)))
		sched_yield();
}

/* The environment gives every thread a region. */
static void construct_beside_first_call(void)
{
	void *hook = (void *)STAYPUT(cudaMalloc), *library;
	pthread_t thread;

	CHECK_EQ(pthread_create(&thread, NULL, make_first_call, hook), 0);
	library = open_library("libearly.so", RTLD_LOCAL);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(is_region_memory(IN(library, early_memory)()));
}

static void give_to_destructor(void)
{
	void *consumer = open_library("libconsumer13.so", RTLD_LOCAL);
	void *late = open_library("liblate.so", RTLD_LOCAL);
	static const size_t sizes[] = {1000, 2000, 8 * MIB, 16 * MIB};
	void *ptr;

	begin_region();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		CHECK_EQ(IN(consumer, consumer_malloc)(&ptr, sizes[i]), cudaSuccess);
		IN(late, late_keep)(ptr);
	}
	end_region();
}

static void free_active_in_destructor(void)
{
	give_to_destructor();
}

static void free_paused_in_destructor(void)
{
	give_to_destructor();
	CHECK_EQ(STAYPUT(stayput_pause)(NULL), STAYPUT_OK);
}

int main(int argc, char **argv)
{
	static const struct job jobs[] = {
		JOB(use_nothing),
		JOB(open_local),
		JOB(open_as_dependency),
		JOB(open_hashed),
		JOB(call_without_dependency),
		JOB(open_two_runtimes),
		JOB(open_global_and_local),
		JOB(replace_by_other_runtime),
		JOB(call_before_runtime),
		JOB(construct_beside_first_call),
		JOB(free_active_in_destructor),
		JOB(free_paused_in_destructor),
	};

	return do_job(jobs, sizeof jobs / sizeof *jobs, argc, argv);
}
