/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads at once; run under ThreadSanitizer too. */
#include <stdatomic.h>

#include "support.h"

enum { THREADS = 6, ROUNDS = 150 };

static _Atomic bool stop;

/* Allocates, writes, reads back and frees in a region of its own. */
static void *churn(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;

	for (int round = 0; round < ROUNDS; round++) {
		size_t size = round % 5 ? 3000 + seed * 100 : 3 * MIB;
		char *p = region_malloc(seed % 2 ? "odd" : "even", STAYPUT_HOST, size);

		write_pattern(p, 3000, seed);
		CHECK_EQ(wrong_bytes(p, 3000, seed), 0);
		CUDA(cudaFree(p));
	}
	return NULL;
}

static void *pause_and_resume_other(void *unused)
{
	(void)unused;
	while (!stop) {
		OK(stayput_pause("other"));
		OK(stayput_resume("other"));
	}
	return NULL;
}

static void other_regions_go_on_during_pauses(void)
{
	char *kept = region_malloc("other", STAYPUT_HOST, 3 * MIB);
	pthread_t threads[THREADS], pauser;

	write_pattern(kept, 3 * MIB, 99);
	CHECK_EQ(pthread_create(&pauser, NULL, pause_and_resume_other, NULL), 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, churn, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	stop = true;
	CHECK_EQ(pthread_join(pauser, NULL), 0);
	CHECK_EQ(wrong_bytes(kept, 3 * MIB, 99), 0);
	CHECK_EQ(faults(), 0);
	CUDA(cudaFree(kept));
	CHECK_EQ(device_used(0), 0);
}

static void *malloc_and_free_in_same(void *argument)
{
	size_t size = argument ? 3 * MIB : 4096;

	while (!stop)
		CUDA(cudaFree(region_malloc("same", STAYPUT_HOST, size)));
	return NULL;
}

static void allocating_and_freeing_in_a_region_during_its_pauses_is_safe(void)
{
	char *kept = region_malloc("same", STAYPUT_HOST, 3 * MIB);
	char *small = region_malloc("same", STAYPUT_HOST, 3000);
	pthread_t threads[2];

	write_pattern(kept, 3 * MIB, 1);
	write_pattern(small, 3000, 2);
	for (uintptr_t i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(
				 &threads[i], NULL, malloc_and_free_in_same, (void *)i),
			0);
	for (int i = 0; i < ROUNDS; i++) {
		OK(stayput_pause("same"));
		OK(stayput_resume("same"));
	}
	stop = true;
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK_EQ(wrong_bytes(kept, 3 * MIB, 1), 0);
	CHECK_EQ(wrong_bytes(small, 3000, 2), 0);
	CHECK_EQ(region_info("same").count_active, 2);
	CUDA(cudaFree(kept));
	CUDA(cudaFree(small));
	CHECK_EQ(device_used(0), 0);
}

static _Atomic int gate;

/* A kernel that runs until the test lets it end. */
static void wait_at_gate(void **params, unsigned blocks)
{
	(void)params;
	(void)blocks;
	gate = 1;
	while (gate != 2)
		sched_yield();
}

static void launch_gated_kernel(CUstream stream)
{
	CUmodule module;
	CUfunction function;

	fakecuda_kernel("gated", wait_at_gate);
	CHECK_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
	CHECK_EQ(cuModuleGetFunction(&function, module, "gated"), CUDA_SUCCESS);
	CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL),
		CUDA_SUCCESS);
	while (gate != 1)
		sched_yield();
}

static void *pause_gated(void *unused)
{
	(void)unused;
	return (void *)(intptr_t)stayput_pause("gated");
}

/* The pause has marked its region and now waits for the kernel. */
static void wait_until_pausing(const void *ptr)
{
	while (query(ptr).state != STAYPUT_PAUSING)
		sched_yield();
}

static pthread_t start_gated_pause(char **gated)
{
	cudaStream_t stream;
	pthread_t thread;

	setenv("FAKECUDA_DEVICES", "2", 1);
	*gated = region_malloc("gated", STAYPUT_DISCARD, 4 * MIB);
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	launch_gated_kernel(stream);
	CHECK_EQ(pthread_create(&thread, NULL, pause_gated, NULL), 0);
	wait_until_pausing(*gated);
	return thread;
}

static void end_gated_pause(pthread_t thread)
{
	void *answer;

	gate = 2;
	CHECK_EQ(pthread_join(thread, &answer), 0);
	CHECK_EQ((intptr_t)answer, STAYPUT_OK);
}

static void unrelated_memory_does_not_wait_behind_a_pause(void)
{
	char *gated, *p;
	pthread_t thread = start_gated_pause(&gated);
	struct stayput_info info;

	CUDA(cudaSetDevice(1));
	for (int i = 0; i < 10; i++) {
		p = region_malloc("free", STAYPUT_HOST, 4 * MIB);
		CUDA(cudaFree(p));
		p = region_malloc("free", STAYPUT_HOST, 4096);
		CUDA(cudaFree(p));
		CUDA(cudaMalloc((void **)&p, 4096));
		CUDA(cudaFree(p));
	}
	OK(stayput_pause("free"));
	OK(stayput_resume("free"));
	CUDA(cudaSetDevice(0));
	p = region_malloc("free", STAYPUT_HOST, 4 * MIB);
	p = region_malloc("gated", STAYPUT_HOST, 4 * MIB);
	info = query(gated);
	CHECK_EQ(info.state, STAYPUT_PAUSING);
	end_gated_pause(thread);
	CHECK_EQ(query(gated).state, STAYPUT_PAUSED);
	CHECK_EQ(query(p).state, STAYPUT_ACTIVE);
}

static void a_second_operation_waits_or_is_busy_as_asked(void)
{
	static const char *const tags[] = {"free", "gated"};
	struct stayput_options options = {.struct_size = sizeof options, .no_block = 1};
	char *gated;
	pthread_t thread;

	region_malloc("free", STAYPUT_DISCARD, 4096);
	thread = start_gated_pause(&gated);
	CHECK_EQ(stayput_pause_ex(tags, 2, &options, NULL), STAYPUT_ERR_BUSY);
	CHECK_HAS(stayput_last_error(), "region gated");
	CHECK_EQ(region_info("free").count_active, 1);
	gate = 2;
	OK(stayput_resume("gated"));
	end_gated_pause(thread);
}

static void *free_gated(void *ptr)
{
	CUDA(cudaFree(ptr));
	return NULL;
}

static void freeing_what_is_being_paused_waits_and_then_frees(void)
{
	char *gated;
	pthread_t thread = start_gated_pause(&gated), freer;

	CHECK_EQ(pthread_create(&freer, NULL, free_gated, gated), 0);
	end_gated_pause(thread);
	CHECK_EQ(pthread_join(freer, NULL), 0);
	CHECK_EQ(region_info("gated").count_paused, 0);
	CHECK_EQ(device_used(0), 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(other_regions_go_on_during_pauses),
		TEST(allocating_and_freeing_in_a_region_during_its_pauses_is_safe),
		TEST(unrelated_memory_does_not_wait_behind_a_pause),
		TEST(a_second_operation_waits_or_is_busy_as_asked),
		TEST(freeing_what_is_being_paused_waits_and_then_frees),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
