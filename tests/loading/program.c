/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that is linked to a runtime as usual. Jobs for tests/test_loading.c;
 * libstayput.so is preloaded unless the test says otherwise.
 */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "libraries.h"
#include "preloaded.h"

#define CUDA(call) CHECK_EQ((call), cudaSuccess)

static void *region_malloc(size_t size)
{
	void *ptr = NULL;

	begin_region();
	CUDA(cudaMalloc(&ptr, size));
	end_region();
	CHECK(is_region_memory(ptr));
	return ptr;
}

static void write_pattern(void *device, size_t size)
{
	unsigned char *host = malloc(size);

	CHECK(host);
	for (size_t i = 0; i < size; i++)
		host[i] = pattern_at(i);
	CUDA(cudaMemcpy(device, host, size, cudaMemcpyHostToDevice));
	free(host);
}

static size_t wrong_bytes(const void *device, size_t size)
{
	unsigned char *host = malloc(size);
	size_t wrong = 0;

	CHECK(host);
	CUDA(cudaMemcpy(host, device, size, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < size; i++)
		wrong += host[i] != pattern_at(i);
	free(host);
	return wrong;
}

static void pause_and_resume(void)
{
	CHECK_EQ(STAYPUT(stayput_pause)("weights"), STAYPUT_OK);
	CHECK_EQ(STAYPUT(stayput_resume)("weights"), STAYPUT_OK);
}

static void use_nothing(void)
{
	begin_region();
	end_region();
	CHECK(is_loaded("libstayput"));
	CHECK(is_loaded("libcudart"));
	CHECK(!is_loaded("libcuda.so"));
	CHECK(!is_loaded("libnvidia-ml"));
}

static void keep_contents(void)
{
	void *ptr = region_malloc(3 * MIB), *native = NULL;
	int version = 0;

	write_pattern(ptr, 3 * MIB);
	pause_and_resume();
	CHECK_EQ(wrong_bytes(ptr, 3 * MIB), 0);
	CUDA(cudaFree(ptr));
	CUDA(cudaMalloc(&native, MIB));
	CHECK(!is_region_memory(native));
	CUDA(cudaFree(native));
	CUDA(cudaRuntimeGetVersion(&version));
	printf("%d\n", version / 1000);
}

/* Before any other CUDA call than this there is neither context nor driver. */
static void allocate_first(void)
{
	void *ptr = region_malloc(3 * MIB);

	write_pattern(ptr, 3 * MIB);
	pause_and_resume();
	CHECK_EQ(wrong_bytes(ptr, 3 * MIB), 0);
	CUDA(cudaFree(ptr));
}

/* There is no driver. The runtime's answer to an allocation outside of any region is the
 * right one inside, too. */
static void answer_without_driver(void)
{
	void *nothing = &nothing, *ptr = nothing;
	cudaError_t outside = cudaMalloc(&ptr, MIB), inside;

	CHECK(outside != cudaSuccess);
	begin_region();
	inside = cudaMalloc(&ptr, MIB);
	end_region();
	CHECK_EQ(inside, outside);
	CHECK(ptr == nothing);
	CHECK(cudaFree(nothing) != cudaSuccess);
}

static int device_of(const void *ptr)
{
	struct stayput_info info;

	CHECK_EQ(query(ptr, &info), STAYPUT_OK);
	return info.device;
}

static void allocate_on_second_device(void)
{
	void *first, *second, *again;

	CUDA(cudaSetDevice(1));
	second = region_malloc(3 * MIB);
	CHECK_EQ(device_of(second), 1);
	CUDA(cudaSetDevice(0));
	first = region_malloc(3 * MIB);
	CHECK_EQ(device_of(first), 0);
	CUDA(cudaSetDevice(1));
	again = region_malloc(1000);
	CHECK_EQ(device_of(again), 1);
	write_pattern(second, 3 * MIB);
	CUDA(cudaSetDevice(0));
	pause_and_resume();
	CUDA(cudaFree(again));
	CUDA(cudaSetDevice(1));
	CHECK_EQ(wrong_bytes(second, 3 * MIB), 0);
	CUDA(cudaFree(second));
	CUDA(cudaFree(first));
}

static void *allocate_and_free(void *theirs)
{
	CUDA(cudaFree(theirs));
	return region_malloc(3 * MIB);
}

static void use_thread_without_context(void)
{
	pthread_t thread;
	void *ptr;

	for (int i = 0; i < 2; i++) {
		ptr = region_malloc(1000);
		CHECK_EQ(pthread_create(&thread, NULL, allocate_and_free, ptr), 0);
		CHECK_EQ(pthread_join(thread, &ptr), 0);
		CUDA(cudaFree(ptr));
	}
}

static void use_early_memory(void)
{
	void *early = STAYPUT(early_memory)();

	CHECK(early);
	CHECK(is_region_memory(early));
	CUDA(cudaFree(early));
	CHECK(!is_region_memory(early));
}

/* A region allocation is made by us, so only a preload before ours sees it. */
static void be_seen_by_shim(void)
{
	void *ours = region_malloc(MIB), *native = NULL;
	int mallocs = STAYPUT(shim_mallocs)(), frees = STAYPUT(shim_frees)();

	CUDA(cudaMalloc(&native, MIB));
	CHECK_EQ(STAYPUT(shim_mallocs)(), mallocs + 1);
	CHECK(!is_region_memory(native));
	CUDA(cudaFree(native));
	CHECK_EQ(STAYPUT(shim_frees)(), frees + 1);
	CUDA(cudaFree(ours));
	CHECK(!is_region_memory(ours));
}

static void be_seen_by_shim_through_library(void)
{
	void *library = dlopen("libconsumer13.so", RTLD_NOW | RTLD_LOCAL);
	typeof(&consumer_malloc) malloc_in =
		(typeof(&consumer_malloc))symbol(library, "consumer_malloc");
	typeof(&consumer_free) free_in =
		(typeof(&consumer_free))symbol(library, "consumer_free");
	void *ptr;

	CUDA(malloc_in(&ptr, MIB));
	CHECK_EQ(STAYPUT(shim_mallocs)(), 1);
	CUDA(free_in(ptr));
	CHECK_EQ(STAYPUT(shim_frees)(), 1);
}

static void expect_success(pid_t child)
{
	int status = -1;

	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

/* In a child: everything that could wait for a thread that only the parent has. */
static void use_library_in_child(void *inherited)
{
	struct stayput_region_info infos[4] = {{.struct_size = sizeof *infos}};
	struct stayput_info info;
	size_t count;

	CHECK_EQ(cudaFree(inherited), NOT_IN_A_CHILD);
	CHECK_EQ(STAYPUT(stayput_pause)("weights"), STAYPUT_ERR_UNSUPPORTED);
	CHECK_EQ(STAYPUT(stayput_resume)(NULL), STAYPUT_ERR_UNSUPPORTED);
	query(inherited, &info);
	CHECK_EQ(STAYPUT(stayput_region_list)(infos, 4, &count), STAYPUT_OK);
	CHECK(STAYPUT(stayput_snapshot_json)(NULL, 0) > 0);
}

static _Atomic bool stop;

static void start_threads(pthread_t threads[2], void *(*run)(void *))
{
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, run, NULL), 0);
}

static void stop_threads(const pthread_t threads[2])
{
	stop = true;
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

/* Forks so often that some forks meet a thread inside the library. */
static void fork_often(void (*in_child)(void *), void *argument)
{
	pid_t child;

	for (int i = 0; i < 200; i++) {
		child = fork();
		if (child == 0) {
			alarm(20);
			in_child(argument);
			_exit(0);
		}
		expect_success(child);
	}
}

static void *keep_allocating(void *unused)
{
	while (!stop)
		CUDA(cudaFree(region_malloc(1000)));
	return unused;
}

static void fork_beside_allocating_threads(void)
{
	void *ptr = region_malloc(3 * MIB);
	pthread_t threads[2];

	start_threads(threads, keep_allocating);
	fork_often(use_library_in_child, ptr);
	stop_threads(threads);
	CUDA(cudaFree(ptr));
}

static void push_and_pop(void *unused)
{
	(void)unused;
	begin_region();
	end_region();
}

static void *keep_pushing(void *unused)
{
	while (!stop)
		push_and_pop(NULL);
	return unused;
}

/* Nobody has used CUDA yet. */
static void fork_beside_pushing_threads(void)
{
	pthread_t threads[2];

	start_threads(threads, keep_pushing);
	fork_often(push_and_pop, NULL);
	stop_threads(threads);
}

static _Atomic bool is_held, let_go;

static void hold_stream(void *unused)
{
	(void)unused;
	is_held = true;
	while (!let_go)
		sched_yield();
}

/* A stream whose work goes on until `let_go`. */
static void start_endless_work(void)
{
	cudaStream_t stream;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaLaunchHostFunc(stream, hold_stream, NULL));
	while (!is_held)
		sched_yield();
}

static void *pause_weights(void *unused)
{
	(void)unused;
	CHECK_EQ(STAYPUT(stayput_pause)("weights"), STAYPUT_OK);
	return NULL;
}

/* Returns while a thread is in the middle of a pause, until `let_go`. */
static pthread_t start_endless_pause(void *ptr)
{
	struct stayput_info info;
	pthread_t thread;

	start_endless_work();
	CHECK_EQ(pthread_create(&thread, NULL, pause_weights, NULL), 0);
	do {
		sched_yield();
		CHECK_EQ(query(ptr, &info), STAYPUT_OK);
	} while (info.state != STAYPUT_PAUSING);
	return thread;
}

static void fork_during_pause(void)
{
	void *ptr = region_malloc(3 * MIB);
	pthread_t pauser;
	pid_t child;

	write_pattern(ptr, 3 * MIB);
	pauser = start_endless_pause(ptr);
	child = fork();
	if (child == 0) {
		alarm(20);
		use_library_in_child(ptr);
		_exit(0);
	}
	expect_success(child);
	let_go = true;
	CHECK_EQ(pthread_join(pauser, NULL), 0);
	CHECK_EQ(STAYPUT(stayput_resume)("weights"), STAYPUT_OK);
	CHECK_EQ(wrong_bytes(ptr, 3 * MIB), 0);
}

static void free_inherited_in_child(void)
{
	void *large = region_malloc(3 * MIB), *small = region_malloc(MIB);
	pid_t child;

	write_pattern(large, 3 * MIB);
	write_pattern(small, MIB);
	child = fork();
	if (child == 0) {
		CHECK_EQ(cudaFree(large), NOT_IN_A_CHILD);
		CHECK_EQ(cudaFree(large), NOT_IN_A_CHILD);
		CHECK_EQ(cudaFree(small), NOT_IN_A_CHILD);
		CHECK_EQ(cudaFreeAsync(small, NULL), NOT_IN_A_CHILD);
		begin_region();
		CHECK_EQ(cudaMalloc(&small, MIB), NOT_IN_A_CHILD);
		end_region();
		exit(0);
	}
	expect_success(child);
	CHECK(is_region_memory(large));
	pause_and_resume();
	CHECK_EQ(wrong_bytes(large, 3 * MIB), 0);
	CHECK_EQ(wrong_bytes(small, MIB), 0);
	CUDA(cudaFree(large));
	CUDA(cudaFree(small));
}

/* The push is inherited, and the driver was not in use. */
static void use_cuda_in_child_of_pusher(void)
{
	void *ptr = NULL;
	pid_t child;

	begin_region();
	child = fork();
	if (child == 0) {
		CUDA(cudaMalloc(&ptr, 3 * MIB));
		CHECK(is_region_memory(ptr));
		write_pattern(ptr, 3 * MIB);
		pause_and_resume();
		CHECK_EQ(wrong_bytes(ptr, 3 * MIB), 0);
		CUDA(cudaFree(ptr));
		exit(0);
	}
	expect_success(child);
	CUDA(cudaMalloc(&ptr, MIB));
	end_region();
	CHECK(is_region_memory(ptr));
}

/* Workers that compute something on the host and end as programs do, atexit() and all. */
static void fork_workers(void)
{
	void *active = region_malloc(1000);
	pid_t children[20];

	pause_and_resume();
	for (int i = 0; i < 20; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			memset(malloc(MIB), i, MIB);
			exit(0);
		}
	}
	for (int i = 0; i < 20; i++)
		expect_success(children[i]);
	CUDA(cudaFree(active));
}

static void exec_in_child(void)
{
	pid_t child;

	region_malloc(3 * MIB);
	child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "program", "allocate_first", (char *)NULL);
		_exit(127);
	}
	expect_success(child);
}

static void leak(void)
{
	region_malloc(1000);
	region_malloc(3 * MIB);
	CHECK_EQ(STAYPUT(stayput_pause)("weights"), STAYPUT_OK);
	region_malloc(2000);
	region_malloc(5 * MIB);
}

enum { FREED_BEFORE = 4, FREED = 8 };

static void *to_free[FREED];
static int freed;

static void free_some(int until)
{
	for (; freed < until; freed++)
		CUDA(cudaFree(to_free[freed]));
}

static void free_before_driver_ends(void)
{
	void *native;

	CUDA(cudaMalloc(&native, MIB));
	free_some(FREED_BEFORE);
}

static void free_after_driver_ended(void)
{
	void *native;

	CHECK_EQ(freed, FREED_BEFORE);
	CHECK_EQ(cudaMalloc(&native, MIB), cudaErrorCudartUnloading);
	free_some(FREED);
	_exit(LATE_FREED);
}

/* Handlers run in the opposite order, and the driver's own is made at its first use. */
static void allocate_between_handlers(void)
{
	CHECK_EQ(atexit(free_after_driver_ended), 0);
	for (int i = 0; i < FREED; i++)
		to_free[i] = region_malloc(i % 2 ? 1000 : 3 * MIB);
	CHECK_EQ(atexit(free_before_driver_ends), 0);
}

static void free_active_at_exit(void)
{
	allocate_between_handlers();
}

static void free_paused_at_exit(void)
{
	allocate_between_handlers();
	CHECK_EQ(STAYPUT(stayput_pause)(NULL), STAYPUT_OK);
}

static void let_go_and_free(void)
{
	let_go = true;
	free_some(1);
	_exit(LATE_FREED);
}

static void exit_during_pause(void)
{
	to_free[0] = region_malloc(3 * MIB);
	pthread_detach(start_endless_pause(to_free[0]));
	CHECK_EQ(atexit(let_go_and_free), 0);
}

static _Atomic int cycles;

/* Until the process ends; after the driver's end both fail. */
static void *pause_for_ever(void *unused)
{
	while (!stop) {
		STAYPUT(stayput_pause)(NULL);
		STAYPUT(stayput_resume)(NULL);
		cycles++;
	}
	return unused;
}

static void exit_beside_pauses(void)
{
	pthread_t thread;

	allocate_between_handlers();
	CHECK_EQ(pthread_create(&thread, NULL, pause_for_ever, NULL), 0);
	pthread_detach(thread);
	while (cycles < 2)
		sched_yield();
}

int main(int argc, char **argv)
{
	static const struct job jobs[] = {
		JOB(use_nothing),
		JOB(keep_contents),
		JOB(allocate_first),
		JOB(answer_without_driver),
		JOB(allocate_on_second_device),
		JOB(use_thread_without_context),
		JOB(use_early_memory),
		JOB(be_seen_by_shim),
		JOB(be_seen_by_shim_through_library),
		JOB(fork_beside_allocating_threads),
		JOB(fork_beside_pushing_threads),
		JOB(fork_during_pause),
		JOB(free_inherited_in_child),
		JOB(use_cuda_in_child_of_pusher),
		JOB(fork_workers),
		JOB(exec_in_child),
		JOB(leak),
		JOB(free_active_at_exit),
		JOB(free_paused_at_exit),
		JOB(exit_during_pause),
		JOB(exit_beside_pauses),
	};

	return do_job(jobs, sizeof jobs / sizeof *jobs, argc, argv);
}
