/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating and freeing in regions: who gets what, and what wrong calls get. */
#include <sys/resource.h>

#include "support.h"

static void region_memory_is_vmm_and_other_memory_is_native(void)
{
	struct fakecuda_report before, after;
	void *native, *ours;

	CUDA(cudaFree(0));
	fakecuda_report(&before);
	CUDA(cudaMalloc(&native, 4 * MIB));
	ours = region_malloc("r", STAYPUT_HOST, 4 * MIB);
	fakecuda_report(&after);
	CHECK_EQ(after.native_allocs - before.native_allocs, 1);
	CHECK_EQ(after.mappings - before.mappings, 1);
	CUDA(cudaFree(native));
	CUDA(cudaFree(ours));
	fakecuda_report(&after);
	CHECK_EQ(after.mappings, before.mappings);
	CHECK_EQ(after.handles, before.handles);
	CHECK_EQ(after.native_allocs, before.native_allocs);
}

static void query_answers_for_any_address_inside(void)
{
	char *large = region_malloc("big.one", STAYPUT_DISCARD, 5 * MIB + 3);
	char *small = region_malloc("small:1", STAYPUT_ZERO, 1000);
	struct stayput_info info = query(large + 5 * MIB + 2);

	CHECK_EQ(strcmp(info.tag, "big.one"), 0);
	CHECK_EQ(info.policy, STAYPUT_DISCARD);
	CHECK_EQ(info.state, STAYPUT_ACTIVE);
	CHECK_EQ(info.base, (uintptr_t)large);
	CHECK_EQ(info.size, 5 * MIB + 3);
	info = query(small + 999);
	CHECK_EQ(strcmp(info.tag, "small:1"), 0);
	CHECK_EQ(info.base, (uintptr_t)small);
	CHECK_EQ(stayput_query(small + 1000, &info), STAYPUT_ERR_NOT_FOUND);
	CHECK_EQ(stayput_query(large + 5 * MIB + 3, &info), STAYPUT_ERR_NOT_FOUND);
	CHECK_EQ(stayput_query(&info, &info), STAYPUT_ERR_NOT_FOUND);
	CHECK_EQ(stayput_query(NULL, &info), STAYPUT_ERR_NOT_FOUND);
	info.struct_size = 1;
	CHECK_EQ(stayput_query(large, &info), STAYPUT_ERR_INVALID);
	CHECK_HAS(stayput_last_error(), "struct_size");
}

static void regions_nest_to_any_depth(void)
{
	char tag[16];
	void *ptr;

	for (int i = 0; i < 100; i++) {
		snprintf(tag, sizeof tag, "level%d", i);
		OK(stayput_region_push(tag, STAYPUT_HOST));
	}
	for (int i = 99; i >= 0; i--) {
		snprintf(tag, sizeof tag, "level%d", i);
		CUDA(cudaMalloc(&ptr, 4096));
		CHECK_EQ(strcmp(query(ptr).tag, tag), 0);
		OK(stayput_region_pop());
	}
	CHECK_EQ(stayput_region_pop(), STAYPUT_ERR_INVALID);
}

static void scarce_addresses_are_shared_by_all_regions(void)
{
	char tag[16];

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	SKIP("a sanitizer needs more addresses than the limit leaves");
#endif
	CHECK_EQ(setrlimit(RLIMIT_AS, &(struct rlimit){220 * GIB, 220 * GIB}), 0);
	for (int i = 0; i < 100; i++) {
		snprintf(tag, sizeof tag, "few%d", i);
		write_pattern(region_malloc(tag, STAYPUT_HOST, 3 * MIB), 3 * MIB, i);
	}
	region_malloc("few0", STAYPUT_HOST, 1 * GIB);
}

static void pop_without_push_is_an_error(void)
{
	CHECK_EQ(stayput_region_pop(), STAYPUT_ERR_INVALID);
	CHECK_HAS(stayput_last_error(), "pop without a push");
}

static void wrong_tags_and_policies_are_refused(void)
{
	char longest[65];

	memset(longest, 'x', 64);
	longest[64] = '\0';
	CHECK_EQ(stayput_region_push(longest, STAYPUT_HOST), STAYPUT_ERR_INVALID);
	CHECK_HAS(stayput_last_error(), "1 to 63 bytes");
	CHECK_EQ(stayput_region_push("a/b", STAYPUT_HOST), STAYPUT_ERR_INVALID);
	CHECK_HAS(stayput_last_error(), "a/b");
	CHECK_EQ(stayput_region_push("", STAYPUT_HOST), STAYPUT_ERR_INVALID);
	CHECK_EQ(stayput_region_push(NULL, STAYPUT_HOST), STAYPUT_ERR_INVALID);
	CHECK_EQ(stayput_region_push("ok", 5), STAYPUT_ERR_INVALID);
	CHECK_HAS(stayput_last_error(), "policy 5");
	CHECK_EQ(stayput_region_push("ok", -1), STAYPUT_ERR_INVALID);
	CHECK_EQ(stayput_region_pop(), STAYPUT_ERR_INVALID);
	longest[63] = '\0';
	OK(stayput_region_push(longest, STAYPUT_HOST));
	OK(stayput_region_pop());
}

static void native_push_makes_native_memory_until_its_pop(void)
{
	struct stayput_info info = {.struct_size = sizeof info};
	void *native, *ours;

	OK(stayput_region_push("r", STAYPUT_HOST));
	OK(stayput_native_push());
	CUDA(cudaMalloc(&native, 4 * MIB));
	OK(stayput_region_pop());
	CUDA(cudaMalloc(&ours, 4 * MIB));
	OK(stayput_region_pop());
	CHECK_EQ(stayput_query(native, &info), STAYPUT_ERR_NOT_FOUND);
	CHECK_EQ(strcmp(query(ours).tag, "r"), 0);
	CUDA(cudaFree(native));
}

static void *malloc_in_thread(void *unused)
{
	void *ptr;

	(void)unused;
	CUDA(cudaMalloc(&ptr, 4 * MIB));
	return ptr;
}

static void a_region_is_the_threads_own(void)
{
	struct stayput_info info = {.struct_size = sizeof info};
	pthread_t thread;
	void *ptr;

	OK(stayput_region_push("mine", STAYPUT_HOST));
	CHECK_EQ(pthread_create(&thread, NULL, malloc_in_thread, NULL), 0);
	CHECK_EQ(pthread_join(thread, &ptr), 0);
	CHECK_EQ(stayput_query(ptr, &info), STAYPUT_ERR_NOT_FOUND);
}

static void keep_is_native_and_counted(void)
{
	char *ptr = region_malloc("kept", STAYPUT_KEEP, 4 * MIB);
	struct fakecuda_report report;

	fakecuda_report(&report);
	CHECK_EQ(report.mappings, 0);
	CHECK_EQ(region_info("kept").bytes_kept, 4 * MIB);
	CHECK_EQ(region_info("kept").count_kept, 1);
	CHECK_EQ(query(ptr + 100).policy, STAYPUT_KEEP);
	OK(stayput_pause("kept"));
	CHECK_EQ(device_used(0), 4 * MIB);
	CUDA(cudaFree(ptr));
	CHECK_EQ(region_info("kept").bytes_kept, 0);
	CHECK_EQ(device_used(0), 0);
}

static void default_tag_catches_every_thread(void)
{
	pthread_t thread;
	void *ptr;

	setenv("STAYPUT_DEFAULT", "engine", 1);
	CUDA(cudaMalloc(&ptr, 4 * MIB));
	CHECK_EQ(strcmp(query(ptr).tag, "engine"), 0);
	CHECK_EQ(query(ptr).policy, STAYPUT_HOST);
	CHECK_EQ(pthread_create(&thread, NULL, malloc_in_thread, NULL), 0);
	CHECK_EQ(pthread_join(thread, &ptr), 0);
	CHECK_EQ(strcmp(query(ptr).tag, "engine"), 0);
	OK(stayput_native_push());
	CUDA(cudaMalloc(&ptr, 4 * MIB));
	CHECK_EQ(stayput_query(ptr, &(struct stayput_info){.struct_size = sizeof(
								   struct stayput_info)}),
		STAYPUT_ERR_NOT_FOUND);
}

static void environment_decides_what_may_be_released(void)
{
	setenv("STAYPUT_REGIONS", "kv=discard,asked,late=zero", 1);
	CHECK_EQ(query(region_malloc("kv", STAYPUT_HOST, 4096)).policy, STAYPUT_DISCARD);
	CHECK_EQ(query(region_malloc("asked", STAYPUT_ZERO, 4096)).policy, STAYPUT_ZERO);
	CHECK_EQ(query(region_malloc("asked", STAYPUT_POLICY_DEFAULT, 4096)).policy,
		STAYPUT_HOST);
	CHECK_EQ(query(region_malloc("late", STAYPUT_POLICY_DEFAULT, 4096)).policy,
		STAYPUT_ZERO);
	CHECK_EQ(query(region_malloc("other", STAYPUT_DISCARD, 4096)).policy,
		STAYPUT_KEEP);
}

static void the_first_matching_rule_wins(void)
{
	setenv("STAYPUT_REGIONS", "a=zero,*=discard,a=host", 1);
	CHECK_EQ(query(region_malloc("a", STAYPUT_HOST, 4096)).policy, STAYPUT_ZERO);
	CHECK_EQ(query(region_malloc("b", STAYPUT_HOST, 4096)).policy, STAYPUT_DISCARD);
}

static void a_malformed_environment_is_told_once_and_harms_nothing(void)
{
	setenv("STAYPUT_REGIONS", "kv=discrad", 1);
	setenv("STAYPUT_DEFAULT", "a/b", 1);
	setenv("STAYPUT_LOG", "True", 1);
	catch_stderr();
	CHECK_EQ(query(region_malloc("kv", STAYPUT_ZERO, 4096)).policy, STAYPUT_ZERO);
	region_malloc("kv", STAYPUT_ZERO, 4096);
	CHECK_HAS(stderr_text(), "STAYPUT_REGIONS: \"kv=discrad\" cannot be read");
	CHECK_HAS(stderr_text(), "STAYPUT_DEFAULT: \"a/b\"");
	CHECK_HAS(stderr_text(), "STAYPUT_LOG: \"True\"");
	CHECK(!strstr(strstr(stderr_text(), "STAYPUT_LOG: ") + 1, "STAYPUT_LOG: "));
}

static void odd_sizes_work_and_impossible_ones_are_out_of_memory(void)
{
	static const size_t sizes[] = {1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 4 * MIB - 1};
	void *none = (void *)1, *ptr = (void *)1;

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		char *p = region_malloc("sizes", STAYPUT_HOST, sizes[i]);

		write_pattern(p, sizes[i], 3);
		CHECK_EQ(query(p).size, sizes[i]);
		CHECK_EQ(wrong_bytes(p, sizes[i], 3), 0);
		CUDA(cudaFree(p));
	}
	catch_stderr();
	OK(stayput_region_push("sizes", STAYPUT_HOST));
	CUDA(cudaMalloc(&none, 0));
	CHECK(!none);
	CHECK_EQ(cudaMalloc(&ptr, (size_t)1 << 63), cudaErrorMemoryAllocation);
	CHECK_EQ(cudaMalloc(&ptr, SIZE_MAX), cudaErrorMemoryAllocation);
	CHECK_EQ(cudaMalloc(&ptr, 5 * GIB), cudaErrorMemoryAllocation);
	CHECK_EQ(cudaMalloc(NULL, 4096), cudaErrorInvalidValue);
	CHECK(ptr == (void *)1);
	CHECK_EQ(strlen(stderr_text()), 0);
	CHECK_EQ(device_used(0), 0);
}

static void out_of_memory_leaves_no_trace_and_can_be_retried(void)
{
	void *half = region_malloc("half", STAYPUT_HOST, 3 * GIB), *more = (void *)1;
	struct fakecuda_report before, after;

	catch_stderr();
	OK(stayput_region_push("more", STAYPUT_HOST));
	fakecuda_report(&before);
	CHECK_EQ(cudaMalloc(&more, 2 * GIB), cudaErrorMemoryAllocation);
	fakecuda_report(&after);
	CHECK(more == (void *)1);
	CHECK_EQ(cudaGetLastError(), cudaSuccess);
	CHECK_EQ(after.handles, before.handles);
	CHECK_EQ(after.mappings, before.mappings);
	CHECK_EQ(strlen(stderr_text()), 0);
	CUDA(cudaFree(half));
	CUDA(cudaMalloc(&more, 2 * GIB));
}

static void small_allocations_share_blocks(void)
{
	char *p[256];

	for (int i = 0; i < 256; i++) {
		p[i] = region_malloc("small", STAYPUT_HOST, 4096);
		CHECK_EQ((uintptr_t)p[i] % 512, 0);
		write_pattern(p[i], 4096, i);
	}
	CHECK(device_used(0) <= 4 * MIB);
	for (int i = 0; i < 256; i++)
		CHECK_EQ(wrong_bytes(p[i], 4096, i), 0);
	for (int i = 0; i < 256; i++)
		CUDA(cudaFree(p[(i * 37) % 256]));
	CHECK_EQ(device_used(0), 0);
}

static void shared_blocks_waste_less_than_they_hold(void)
{
	size_t held = 0;

	for (int i = 0; i < 500; i++) {
		size_t size = 512 * (1 + (size_t)i * 2654435761u % 4096);

		region_malloc("mixed", STAYPUT_DISCARD, size);
		held += size;
		CHECK(device_used(0) <= 2 * held + 2 * MIB);
	}
	CHECK(region_info("mixed").mappings < 40);
	CHECK_EQ(region_info("mixed").bytes_device, device_used(0));
}

static void freed_segments_are_joined_and_used_again(void)
{
	char *p[1024];

	for (int i = 0; i < 1024; i++)
		p[i] = region_malloc("join", STAYPUT_DISCARD, 2048);
	CHECK_EQ(device_used(0), 2 * MIB);
	for (int i = 1; i < 1024; i += 2)
		CUDA(cudaFree(p[i]));
	for (int i = 2; i < 1024; i += 2)
		CUDA(cudaFree(p[i]));
	region_malloc("join", STAYPUT_DISCARD, 2 * MIB - 2048);
	CHECK_EQ(device_used(0), 2 * MIB);
}

static void wrong_pointers_get_the_native_error_and_damage_nothing(void)
{
	char *large = region_malloc("ptr", STAYPUT_HOST, 8 * MIB), local;
	char *small = region_malloc("ptr", STAYPUT_HOST, 4096);

	write_pattern(small, 4096, 1);
	CHECK_EQ(cudaFree(large + 512), cudaErrorInvalidValue);
	CHECK_EQ(cudaFree(large + 2 * MIB), cudaErrorInvalidValue);
	CHECK_EQ(cudaFree(small + 512), cudaErrorInvalidValue);
	CHECK_EQ(cudaFree(&local), cudaErrorInvalidValue);
	CUDA(cudaFree(large));
	catch_stderr();
	CHECK_EQ(cudaFree(large), cudaErrorInvalidValue);
	CHECK_HAS(stderr_text(), "freed twice, or an address inside of one");
	CHECK_EQ(cuMemFree((CUdeviceptr)large), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(wrong_bytes(small, 4096, 1), 0);
	CUDA(cudaFree(small));
	CHECK_EQ(cudaFree(small), cudaErrorInvalidValue);
	CUDA(cudaFree(NULL));
	CHECK_EQ(device_used(0), 0);
}

cudaError_t cudaFreeAsync_ptsz(void *, cudaStream_t);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);

static void every_way_to_free_recognises_our_memory(void)
{
	for (size_t size = 4096; size <= 4 * MIB; size *= 1024) {
		CUdeviceptr p[6];

		for (int i = 0; i < 6; i++)
			p[i] = (CUdeviceptr)region_malloc("free", STAYPUT_HOST, size);
		CUDA(cudaFree((void *)p[0]));
		CUDA(cudaFreeAsync((void *)p[1], NULL));
		CUDA(cudaFreeAsync_ptsz((void *)p[2], NULL));
		CHECK_EQ(cuMemFree(p[3]), CUDA_SUCCESS);
		CHECK_EQ(cuMemFreeAsync(p[4], NULL), CUDA_SUCCESS);
		CHECK_EQ(cuMemFreeAsync_ptsz(p[5], NULL), CUDA_SUCCESS);
		CHECK_EQ(device_used(0), 0);
	}
}

static void every_way_to_allocate_is_in_the_region(void)
{
	struct cudaPitchedPtr volume;
	size_t pitch = 0, driver_pitch = 0;
	CUdeviceptr linear, rows;
	void *pitched;

	CUDA(cudaFree(0));
	OK(stayput_region_push("ways", STAYPUT_HOST));
	CUDA(cudaMallocPitch(&pitched, &pitch, 1000, 3000));
	CUDA(cudaMalloc3D(&volume, ((struct cudaExtent){1000, 30, 100})));
	CHECK_EQ(cuMemAlloc(&linear, 4 * MIB), CUDA_SUCCESS);
	CHECK_EQ(cuMemAllocPitch(&rows, &driver_pitch, 1000, 3000, 4), CUDA_SUCCESS);
	CHECK_EQ(cuMemAllocPitch(&rows, &driver_pitch, 1000, 3000, 3),
		CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cudaMallocPitch(&pitched, &pitch, SIZE_MAX, 2),
		cudaErrorMemoryAllocation);
	OK(stayput_region_pop());
	CHECK_EQ(pitch, 1024);
	CHECK_EQ(driver_pitch, 1024);
	CHECK_EQ(volume.pitch, 1024);
	CHECK_EQ(volume.xsize, 1000);
	CHECK_EQ(volume.ysize, 30);
	CHECK_EQ(query(pitched).size, 1024 * 3000);
	CHECK_EQ(query(volume.ptr).size, 1024 * 3000);
	CHECK_EQ(query((void *)linear).size, 4 * MIB);
	CHECK_EQ(query((void *)rows).size, 1024 * 3000);
	CUDA(cudaFree(pitched));
	CUDA(cudaFree(volume.ptr));
}

static void range_queries_answer_as_for_native_memory(void)
{
	char *p[2];
	CUpointer_attribute names[] = {
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
	CUdeviceptr base, start;
	size_t size, length;
	void *data[] = {&start, &length};

	p[0] = region_malloc("range", STAYPUT_HOST, 5 * MIB + 7);
	p[1] = region_malloc("range", STAYPUT_HOST, 1000);
	for (int paused = 0; paused < 2; paused++) {
		for (int i = 0; i < 2; i++) {
			CUdeviceptr inside = (CUdeviceptr)p[i] + 700;
			size_t want = i ? 1000 : 5 * MIB + 7;

			CHECK_EQ(
				cuMemGetAddressRange(&base, &size, inside), CUDA_SUCCESS);
			CHECK_EQ(base, (CUdeviceptr)p[i]);
			CHECK_EQ(size, want);
			CHECK_EQ(cuPointerGetAttributes(2, names, data, inside),
				CUDA_SUCCESS);
			CHECK_EQ(start, (CUdeviceptr)p[i]);
			CHECK_EQ(length, want);
			size = 0;
			CHECK_EQ(cuPointerGetAttribute(&size, names[1], inside),
				CUDA_SUCCESS);
			CHECK_EQ(size, want);
		}
		OK(stayput_pause("range"));
	}
}

static void without_vmm_regions_are_native_and_pause_says_so(void)
{
	void *ptr;

	setenv("FAKECUDA_VMM", "0", 1);
	catch_stderr();
	ptr = region_malloc("old", STAYPUT_HOST, 4 * MIB);
	region_malloc("old", STAYPUT_HOST, 4 * MIB);
	CHECK_HAS(stderr_text(), "no virtual memory management");
	CHECK(!strstr(strstr(stderr_text(), "no virtual") + 1, "no virtual"));
	CHECK_EQ(region_info("old").bytes_kept, 8 * MIB);
	CHECK_EQ(stayput_pause("old"), STAYPUT_ERR_UNSUPPORTED);
	CHECK_HAS(stayput_last_error(), "region old");
	CUDA(cudaFree(ptr));
}

static void a_reset_takes_the_devices_memory_and_only_that(void)
{
	void *other;
	struct fakecuda_report report;

	setenv("FAKECUDA_DEVICES", "2", 1);
	CUDA(cudaSetDevice(1));
	other = region_malloc("reset", STAYPUT_HOST, 4 * MIB);
	write_pattern(other, 4 * MIB, 1);
	CUDA(cudaSetDevice(0));
	region_malloc("reset", STAYPUT_HOST, 4 * MIB);
	region_malloc("reset", STAYPUT_HOST, 4096);
	region_malloc("kept", STAYPUT_KEEP, 4096);
	OK(stayput_pause("reset"));
	OK(stayput_resume("reset"));
	CUDA(cudaDeviceReset());
	CHECK_EQ(device_used(0), 0);
	CHECK_EQ(region_info("reset").bytes_active, 4 * MIB);
	CHECK_EQ(region_info("kept").bytes_kept, 0);
	fakecuda_report(&report);
	CHECK_EQ(report.mappings, 1);
	CHECK_EQ(report.handles, 1);
	CUDA(cudaSetDevice(1));
	CHECK_EQ(wrong_bytes(other, 4 * MIB, 1), 0);
	CUDA(cudaSetDevice(0));
	write_pattern(region_malloc("reset", STAYPUT_HOST, 4 * MIB), 4 * MIB, 2);
}

static void a_reset_ends_captures_and_what_waits_for_them(void)
{
	struct fakecuda_report report;
	cudaStream_t stream;
	char *p = region_malloc("r", STAYPUT_HOST, 4 * MIB);

	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	CUDA(cudaFree(p));
	CUDA(cudaDeviceReset());
	fakecuda_report(&report);
	CHECK_EQ(report.handles, 0);
	p = region_malloc("r", STAYPUT_HOST, 4 * MIB);
	write_pattern(p, 4 * MIB, 1);
	OK(stayput_pause("r"));
	OK(stayput_resume("r"));
	CHECK_EQ(wrong_bytes(p, 4 * MIB, 1), 0);
	CUDA(cudaFree(p));
	CHECK_EQ(device_used(0), 0);
}

static void memory_of_a_destroyed_context_goes_with_it(void)
{
	CUcontext ctx, popped;
	CUdeviceptr ptr;

	CHECK_EQ(cuInit(0), CUDA_SUCCESS);
	CHECK_EQ(cuDevicePrimaryCtxRetain(&ctx, 0), CUDA_SUCCESS);
	CHECK_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
#if CUDA_VERSION >= 13000
	CHECK_EQ(cuCtxCreate(&ctx, NULL, 0, 0), CUDA_SUCCESS);
#else
	CHECK_EQ(cuCtxCreate(&ctx, 0, 0), CUDA_SUCCESS);
#endif
	OK(stayput_region_push("ctx", STAYPUT_HOST));
	CHECK_EQ(cuMemAlloc(&ptr, 4 * MIB), CUDA_SUCCESS);
	OK(stayput_pause("ctx"));
	OK(stayput_resume("ctx"));
	CHECK_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
	CHECK_EQ(cuMemAlloc(&ptr, 4 * MIB), CUDA_ERROR_INVALID_CONTEXT);
	CHECK_EQ(cuCtxDestroy(ctx), CUDA_SUCCESS);
	CHECK_EQ(device_used(0), 0);
	OK(stayput_pause("ctx"));
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(region_memory_is_vmm_and_other_memory_is_native),
		TEST(query_answers_for_any_address_inside),
		TEST(regions_nest_to_any_depth),
		TEST(scarce_addresses_are_shared_by_all_regions),
		TEST(pop_without_push_is_an_error),
		TEST(wrong_tags_and_policies_are_refused),
		TEST(native_push_makes_native_memory_until_its_pop),
		TEST(a_region_is_the_threads_own),
		TEST(keep_is_native_and_counted),
		TEST(default_tag_catches_every_thread),
		TEST(environment_decides_what_may_be_released),
		TEST(the_first_matching_rule_wins),
		TEST(a_malformed_environment_is_told_once_and_harms_nothing),
		TEST(odd_sizes_work_and_impossible_ones_are_out_of_memory),
		TEST(out_of_memory_leaves_no_trace_and_can_be_retried),
		TEST(small_allocations_share_blocks),
		TEST(shared_blocks_waste_less_than_they_hold),
		TEST(freed_segments_are_joined_and_used_again),
		TEST(wrong_pointers_get_the_native_error_and_damage_nothing),
		TEST(every_way_to_free_recognises_our_memory),
		TEST(every_way_to_allocate_is_in_the_region),
		TEST(range_queries_answer_as_for_native_memory),
		TEST(without_vmm_regions_are_native_and_pause_says_so),
		TEST(a_reset_takes_the_devices_memory_and_only_that),
		TEST(a_reset_ends_captures_and_what_waits_for_them),
		TEST(memory_of_a_destroyed_context_goes_with_it),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
