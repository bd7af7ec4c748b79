/* SPDX-License-Identifier: Apache-2.0 */
/* Pause and resume: what is released, what comes back, what every wrong order gets. */
#include "support.h"

static void paused_memory_is_free_and_comes_back_at_the_same_address(void)
{
	char *p = region_malloc("kv", STAYPUT_DISCARD, 64 * MIB);
	struct stayput_report report = {.struct_size = sizeof report};

	CHECK_EQ(device_used(0), 64 * MIB);
	OK(stayput_pause_ex(NULL, 0, NULL, &report));
	CHECK_EQ(device_used(0), 0);
	CHECK_EQ(query(p).state, STAYPUT_PAUSED);
	CHECK_EQ(report.allocations, 1);
	CHECK_EQ(report.failed, 0);
	CHECK_EQ(report.device_count, 1);
	CHECK_EQ(report.total.bytes_released, 64 * MIB);
	CHECK_EQ(report.total.bytes_released_driver, 64 * MIB);
	CHECK_EQ(report.total.bytes_copied, 0);
	CHECK_EQ(report.device[0].bytes_released, 64 * MIB);
	OK(stayput_resume_ex(NULL, 0, NULL, &report));
	CHECK_EQ(report.total.bytes_restored, 64 * MIB);
	CHECK_EQ(device_used(0), 64 * MIB);
	CHECK_EQ(query(p).state, STAYPUT_ACTIVE);
	CHECK_EQ(query(p).base, (uintptr_t)p);
	write_pattern(p, 64 * MIB, 1);
	CHECK_EQ(wrong_bytes(p, 64 * MIB, 1), 0);
	CUDA(cudaFree(p));
	CHECK_EQ(device_used(0), 0);
}

static void host_contents_come_back_byte_for_byte(void)
{
	char *large = region_malloc("w", STAYPUT_HOST, 6 * MIB + 5), *small[20];

	write_pattern(large, 6 * MIB + 5, 9);
	for (int i = 0; i < 20; i++) {
		small[i] = region_malloc("w", STAYPUT_HOST, 100000 + i);
		write_pattern(small[i], 100000 + i, i);
	}
	for (int cycle = 0; cycle < 3; cycle++) {
		OK(stayput_pause("w"));
		CHECK_EQ(device_used(0), 0);
		OK(stayput_resume("w"));
		CHECK_EQ(wrong_bytes(large, 6 * MIB + 5, 9), 0);
		for (int i = 0; i < 20; i++)
			CHECK_EQ(wrong_bytes(small[i], 100000 + i, i), 0);
	}
}

static void zero_is_zero_whatever_the_driver_hands_out(void)
{
	char *large = region_malloc("state", STAYPUT_ZERO, 6 * MIB);
	char *small = region_malloc("state", STAYPUT_ZERO, 1000);
	struct stayput_report report = {.struct_size = sizeof report};

	write_pattern(large, 6 * MIB, 1);
	write_pattern(small, 1000, 1);
	OK(stayput_pause("state"));
	OK(stayput_resume_ex(NULL, 0, NULL, &report));
	CHECK_EQ(report.total.bytes_zeroed, 8 * MIB);
	CHECK_EQ(bytes_other_than(large, 6 * MIB, 0), 0);
	CHECK_EQ(bytes_other_than(small, 1000, 0), 0);
}

static void one_tag_may_hold_several_policies(void)
{
	char *kept = region_malloc("mix", STAYPUT_HOST, 4 * MIB);
	char *zero = region_malloc("mix", STAYPUT_ZERO, 4 * MIB);
	char *gone = region_malloc("mix", STAYPUT_DISCARD, 4 * MIB);
	char *native = region_malloc("mix", STAYPUT_KEEP, 4 * MIB);

	write_pattern(kept, 4 * MIB, 1);
	write_pattern(zero, 4 * MIB, 1);
	write_pattern(gone, 4 * MIB, 1);
	write_pattern(native, 4 * MIB, 1);
	OK(stayput_pause("mix"));
	CHECK_EQ(device_used(0), 4 * MIB);
	CHECK_EQ(region_info("mix").bytes_backup, 4 * MIB);
	OK(stayput_resume("mix"));
	CHECK_EQ(wrong_bytes(kept, 4 * MIB, 1), 0);
	CHECK_EQ(bytes_other_than(zero, 4 * MIB, 0), 0);
	CHECK(wrong_bytes(gone, 4 * MIB, 1) > 0);
	CHECK_EQ(wrong_bytes(native, 4 * MIB, 1), 0);
}

static void a_policy_for_one_pause_overrides_and_then_ends(void)
{
	char *p = region_malloc("grads", STAYPUT_HOST, 4 * MIB);
	struct stayput_options options = {
		.struct_size = sizeof options, .policy = STAYPUT_ZERO};

	write_pattern(p, 4 * MIB, 1);
	OK(stayput_pause_ex(NULL, 0, &options, NULL));
	OK(stayput_resume(NULL));
	CHECK_EQ(bytes_other_than(p, 4 * MIB, 0), 0);
	write_pattern(p, 4 * MIB, 2);
	OK(stayput_pause(NULL));
	OK(stayput_resume(NULL));
	CHECK_EQ(wrong_bytes(p, 4 * MIB, 2), 0);
	options.policy = STAYPUT_KEEP;
	CHECK_EQ(stayput_pause_ex(NULL, 0, &options, NULL), STAYPUT_ERR_INVALID);
	CHECK_HAS(stayput_last_error(), "policy 4");
}

static void repeating_is_no_error(void)
{
	char *a = region_malloc("a", STAYPUT_HOST, 4 * MIB);
	char *b = region_malloc("b", STAYPUT_HOST, 4 * MIB);

	write_pattern(a, 4 * MIB, 1);
	write_pattern(b, 4 * MIB, 2);
	OK(stayput_resume("a"));
	OK(stayput_pause("a"));
	OK(stayput_pause("a"));
	OK(stayput_pause(NULL));
	OK(stayput_pause(NULL));
	CHECK_EQ(device_used(0), 0);
	OK(stayput_resume("b"));
	OK(stayput_resume(NULL));
	OK(stayput_resume(NULL));
	CHECK_EQ(wrong_bytes(a, 4 * MIB, 1), 0);
	CHECK_EQ(wrong_bytes(b, 4 * MIB, 2), 0);
	CHECK_EQ(query(a).generation, 1);
	CHECK_EQ(query(b).generation, 1);
}

static void unknown_tags_are_not_found_and_nothing_is_paused(void)
{
	static const char *const tags[] = {"known", "unknown"};

	region_malloc("known", STAYPUT_HOST, 4 * MIB);
	CHECK_EQ(stayput_pause("unknown"), STAYPUT_ERR_NOT_FOUND);
	CHECK_HAS(stayput_last_error(), "unknown");
	CHECK_EQ(stayput_resume("unknown"), STAYPUT_ERR_NOT_FOUND);
	CHECK_EQ(stayput_pause("un/known"), STAYPUT_ERR_INVALID);
	CHECK_EQ(stayput_pause_ex(tags, 2, NULL, NULL), STAYPUT_ERR_NOT_FOUND);
	CHECK_EQ(device_used(0), 4 * MIB);
	CHECK_EQ(stayput_pause_ex(NULL, 1, NULL, NULL), STAYPUT_ERR_INVALID);
	CHECK_EQ(stayput_pause_ex(tags, 0, NULL, NULL), STAYPUT_ERR_INVALID);
	CHECK_EQ(device_used(0), 4 * MIB);
	CHECK_EQ(stayput_region_info("unknown", NULL), STAYPUT_ERR_INVALID);
}

static void pausing_an_empty_region_is_told_once(void)
{
	catch_stderr();
	OK(stayput_region_push("empty", STAYPUT_HOST));
	OK(stayput_region_pop());
	OK(stayput_pause("empty"));
	CHECK_HAS(stderr_text(), "region empty is empty: nothing has come by");
	OK(stayput_pause("empty"));
	CHECK(!strstr(strstr(stderr_text(), "is empty") + 1, "is empty"));
	OK(stayput_pause(NULL));
}

static void several_tags_are_one_step(void)
{
	static const char *const tags[] = {"a", "b", "a"};
	struct stayput_report report = {.struct_size = sizeof report};

	region_malloc("a", STAYPUT_DISCARD, 4 * MIB);
	region_malloc("b", STAYPUT_DISCARD, 4 * MIB);
	region_malloc("c", STAYPUT_DISCARD, 4 * MIB);
	OK(stayput_pause_ex(tags, 3, NULL, &report));
	CHECK_EQ(report.allocations, 2);
	CHECK_EQ(device_used(0), 4 * MIB);
}

static void freeing_while_paused_drops_memory_address_and_backup(void)
{
	char *large = region_malloc("f", STAYPUT_HOST, 4 * MIB);
	char *small = region_malloc("f", STAYPUT_HOST, 4096);
	char *stays = region_malloc("f", STAYPUT_HOST, 4096);

	write_pattern(stays, 4096, 1);
	OK(stayput_pause("f"));
	CUDA(cudaFree(large));
	CUDA(cudaFree(small));
	CHECK_EQ(cudaFree(large), cudaErrorInvalidValue);
	CHECK_EQ(region_info("f").count_paused, 1);
	CHECK_EQ(region_info("f").bytes_backup, 2 * MIB);
	OK(stayput_resume("f"));
	CHECK_EQ(device_used(0), 2 * MIB);
	CHECK_EQ(wrong_bytes(stays, 4096, 1), 0);
	OK(stayput_pause("f"));
	CUDA(cudaFree(stays));
	CHECK_EQ(region_info("f").mappings, 0);
	CHECK_EQ(region_info("f").bytes_backup, 0);
	OK(stayput_resume("f"));
	CHECK_EQ(device_used(0), 0);
}

static void allocating_while_paused_gives_active_memory(void)
{
	char *old = region_malloc("g", STAYPUT_HOST, 4 * MIB), *fresh, *tiny;

	write_pattern(old, 4 * MIB, 1);
	region_malloc("g", STAYPUT_HOST, 4096);
	OK(stayput_pause("g"));
	fresh = region_malloc("g", STAYPUT_HOST, 4 * MIB);
	tiny = region_malloc("g", STAYPUT_HOST, 4096);
	write_pattern(fresh, 4 * MIB, 2);
	write_pattern(tiny, 4096, 3);
	CHECK_EQ(region_info("g").state, STAYPUT_PARTLY);
	CHECK_EQ(query(fresh).state, STAYPUT_ACTIVE);
	OK(stayput_resume("g"));
	CHECK_EQ(wrong_bytes(old, 4 * MIB, 1), 0);
	CHECK_EQ(wrong_bytes(fresh, 4 * MIB, 2), 0);
	CHECK_EQ(wrong_bytes(tiny, 4096, 3), 0);
	CHECK_EQ(query(old).generation, 1);
	CHECK_EQ(query(fresh).generation, 0);
}

static void resume_without_memory_keeps_everything_and_can_be_repeated(void)
{
	char *a = region_malloc("a", STAYPUT_HOST, 1 * GIB);
	char *b = region_malloc("b", STAYPUT_HOST, 64 * MIB);
	struct fakecuda_report before, after;
	void *hog;

	write_pattern(b, 64 * MIB, 5);
	OK(stayput_pause(NULL));
	CUDA(cudaMalloc(&hog, 3 * GIB + 512 * MIB));
	fakecuda_report(&before);
	CHECK_EQ(stayput_resume(NULL), STAYPUT_ERR_DEVICE_MEMORY);
	CHECK_HAS(stayput_last_error(),
		"needs 1140850688 bytes on device 0 and 536870912 are");
	fakecuda_report(&after);
	CHECK_EQ(after.handles, before.handles);
	CHECK_EQ(after.mappings, before.mappings);
	CHECK_EQ(query(a).state, STAYPUT_PAUSED);
	CHECK_EQ(query(b).state, STAYPUT_PAUSED);
	OK(stayput_resume("b"));
	CHECK_EQ(wrong_bytes(b, 64 * MIB, 5), 0);
	CUDA(cudaFree(hog));
	OK(stayput_resume(NULL));
	CHECK_EQ(query(a).state, STAYPUT_ACTIVE);
}

static void *free_hog(void *hog)
{
	/* The resume under test has to be waiting: its first look at free memory fails.
	 */
	unsigned long looks = fakecuda_calls("cuMemGetInfo");

	while (fakecuda_calls("cuMemGetInfo") < looks + 2)
		sched_yield();
	CUDA(cudaFree(hog));
	return NULL;
}

static void resume_waits_for_memory_as_long_as_asked(void)
{
	char *p = region_malloc("kv", STAYPUT_DISCARD, 2 * GIB);
	struct stayput_options options = {
		.struct_size = sizeof options, .wait_ms = 30000};
	pthread_t thread;
	void *hog;

	OK(stayput_pause("kv"));
	CUDA(cudaMalloc(&hog, 3 * GIB));
	CHECK_EQ(pthread_create(&thread, NULL, free_hog, hog), 0);
	OK(stayput_resume_ex(NULL, 0, &options, NULL));
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(query(p).state, STAYPUT_ACTIVE);
}

static void the_environment_sets_how_long_resume_waits(void)
{
	pthread_t thread;
	void *hog;

	setenv("STAYPUT_RESUME_WAIT", "30", 1);
	region_malloc("kv", STAYPUT_DISCARD, 2 * GIB);
	OK(stayput_pause("kv"));
	CUDA(cudaMalloc(&hog, 3 * GIB));
	CHECK_EQ(pthread_create(&thread, NULL, free_hog, hog), 0);
	OK(stayput_resume("kv"));
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void without_host_memory_pause_fails_whole(void)
{
	char *a, *b;

	setenv("STAYPUT_HOST_LIMIT", "512MiB", 1);
	a = region_malloc("a", STAYPUT_DISCARD, 64 * MIB);
	b = region_malloc("b", STAYPUT_HOST, 1 * GIB);
	write_pattern(b, MIB, 1);
	CHECK_EQ(stayput_pause(NULL), STAYPUT_ERR_HOST_MEMORY);
	CHECK_HAS(stayput_last_error(), "need 1073741824 bytes");
	CHECK_HAS(stayput_last_error(), "allows 536870912 in all");
	CHECK_EQ(query(a).state, STAYPUT_ACTIVE);
	CHECK_EQ(query(b).state, STAYPUT_ACTIVE);
	CHECK_EQ(device_used(0), 1 * GIB + 64 * MIB);
	CHECK_EQ(wrong_bytes(b, MIB, 1), 0);
	OK(stayput_pause("a"));
	CHECK_EQ(device_used(0), 1 * GIB);
}

static char *pause_under_late_work(int policy)
{
	char *p = region_malloc("busy", policy, 8 * MIB);
	cudaStream_t stream;

	write_pattern(p, 8 * MIB, 1);
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	fakecuda_delay_us(100000);
	CUDA(cudaMemsetAsync(p, 7, 8 * MIB, stream));
	OK(stayput_pause("busy"));
	fakecuda_delay_us(0);
	CUDA(cudaDeviceSynchronize());
	CHECK_EQ(faults(), 0);
	OK(stayput_resume("busy"));
	return p;
}

static void pause_waits_for_work_on_a_non_blocking_stream(void)
{
	char *p;

	/* Nothing else takes time here: without a wait the memory goes under the work. */
	CUDA(cudaFree(pause_under_late_work(STAYPUT_DISCARD)));
	p = pause_under_late_work(STAYPUT_HOST);
	CHECK_EQ(bytes_other_than(p, 8 * MIB, 7), 0);
}

static void free_waits_for_work_that_uses_the_memory(void)
{
	for (size_t size = 4096; size <= 4 * MIB; size *= 1024) {
		char *p = region_malloc("busy", STAYPUT_HOST, size);
		cudaStream_t stream;

		CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
		fakecuda_delay_us(100000);
		CUDA(cudaMemsetAsync(p, 7, size, stream));
		CUDA(cudaFree(p));
		fakecuda_delay_us(0);
		CUDA(cudaDeviceSynchronize());
		CHECK_EQ(faults(), 0);
	}
}

static void a_capture_survives_allocating_freeing_and_a_refused_pause(void)
{
	char *out = region_malloc("out", STAYPUT_HOST, 4 * MIB), *inside;
	char *large = region_malloc("gone", STAYPUT_DISCARD, 4 * MIB);
	char *small = region_malloc("gone", STAYPUT_DISCARD, 4096);
	cudaGraphExec_t exec;
	cudaStream_t stream;
	cudaGraph_t graph;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	inside = region_malloc("graph", STAYPUT_DISCARD, 4 * MIB);
	CUDA(cudaMemsetAsync(inside, 5, 4 * MIB, stream));
	CUDA(cudaMemcpyAsync(out, inside, 4 * MIB, cudaMemcpyDeviceToDevice, stream));
	CUDA(cudaFree(large));
	CUDA(cudaFree(small));
	CHECK_EQ(stayput_pause(NULL), STAYPUT_ERR_BUSY);
	CHECK_HAS(stayput_last_error(), "capture");
	CHECK_EQ(query(out).state, STAYPUT_ACTIVE);
	CHECK_EQ(region_info("gone").count_active, 0);
	CHECK_EQ(device_used(0), 14 * MIB);
	CUDA(cudaStreamEndCapture(stream, &graph));
	CHECK_EQ(device_used(0), 8 * MIB);
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	OK(stayput_pause(NULL));
	OK(stayput_resume(NULL));
	CUDA(cudaGraphLaunch(exec, stream));
	CUDA(cudaStreamSynchronize(stream));
	CHECK_EQ(bytes_other_than(out, 4 * MIB, 5), 0);
	CHECK_EQ(faults(), 0);
}

static void a_destroyed_stream_ends_its_capture(void)
{
	cudaStream_t stream;

	region_malloc("r", STAYPUT_HOST, 4 * MIB);
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	CHECK_EQ(stayput_pause("r"), STAYPUT_ERR_BUSY);
	CUDA(cudaStreamDestroy(stream));
	OK(stayput_pause("r"));
}

static void a_retained_handle_is_seen_in_the_report(void)
{
	char *p = region_malloc("held", STAYPUT_DISCARD, 64 * MIB);
	struct stayput_report report = {.struct_size = sizeof report};
	CUmemGenericAllocationHandle handle;

	catch_stderr();
	CHECK_EQ(cuMemRetainAllocationHandle(&handle, p), CUDA_SUCCESS);
	OK(stayput_pause_ex(NULL, 0, NULL, &report));
	CHECK_EQ(report.total.bytes_released, 64 * MIB);
	CHECK_EQ(report.total.bytes_released_driver, 0);
	CHECK_HAS(stderr_text(), "67108864 bytes were released");
	CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
	OK(stayput_resume(NULL));
}

static void hundred_cycles_leave_no_residue(void)
{
	char *p[8];
	struct fakecuda_report first, last;

	for (int i = 0; i < 8; i++) {
		p[i] = region_malloc("r", i % 3 + 1, MIB << (i % 4));
		write_pattern(p[i], MIB << (i % 4), i);
	}
	for (int cycle = 0; cycle < 100; cycle++) {
		char *extra = region_malloc("r", cycle % 3 + 1, 3 * MIB);

		OK(stayput_pause(NULL));
		CHECK_EQ(device_used(0), 0);
		if (cycle % 2)
			CUDA(cudaFree(extra));
		OK(stayput_resume(NULL));
		if (cycle % 2 == 0)
			CUDA(cudaFree(extra));
		fakecuda_report(cycle ? &last : &first);
	}
	for (int i = 0; i < 8; i += 3)
		CHECK_EQ(wrong_bytes(p[i], MIB << (i % 4), i), 0);
	CHECK_EQ(memcmp(&first, &last, sizeof first), 0);
	CHECK_EQ(region_info("r").bytes_paused, 0);
	CHECK_EQ(region_info("r").count_active, 8);
}

static void both_devices_are_paused_whatever_the_current_one_is(void)
{
	struct stayput_report report = {.struct_size = sizeof report};
	char *p[2];

	setenv("FAKECUDA_DEVICES", "2", 1);
	for (int i = 0; i < 2; i++) {
		CUDA(cudaSetDevice(1 - i));
		p[i] = region_malloc("both", STAYPUT_HOST, 4 * MIB);
		write_pattern(p[i], 4 * MIB, i);
		CHECK_EQ(query(p[i]).device, 1 - i);
	}
	OK(stayput_pause_ex(NULL, 0, NULL, &report));
	CHECK_EQ(report.device_count, 2);
	CHECK_EQ(device_used(0) + device_used(1), 0);
	OK(stayput_resume("both"));
	for (int i = 0; i < 2; i++) {
		CUDA(cudaSetDevice(1 - i));
		CHECK_EQ(wrong_bytes(p[i], 4 * MIB, i), 0);
	}
}

static void when_one_device_cannot_resume_none_does(void)
{
	char *p[2];
	void *hog;

	setenv("FAKECUDA_DEVICES", "2", 1);
	for (int i = 0; i < 2; i++) {
		CUDA(cudaSetDevice(i));
		p[i] = region_malloc("both", STAYPUT_HOST, 64 * MIB);
		write_pattern(p[i], 64 * MIB, i);
	}
	OK(stayput_pause("both"));
	CUDA(cudaMalloc(&hog, 4 * GIB - MIB));
	CHECK_EQ(stayput_resume("both"), STAYPUT_ERR_DEVICE_MEMORY);
	CHECK_HAS(stayput_last_error(), "device 1");
	CHECK_EQ(device_used(0), 0);
	CHECK_EQ(query(p[0]).state, STAYPUT_PAUSED);
	CUDA(cudaFree(hog));
	OK(stayput_resume("both"));
	CHECK_EQ(wrong_bytes(p[1], 64 * MIB, 1), 0);
	CUDA(cudaSetDevice(0));
	CHECK_EQ(wrong_bytes(p[0], 64 * MIB, 0), 0);
}

static void host_copy_shows_paused_contents_and_nothing_else(void)
{
	unsigned char *p = region_malloc("w", STAYPUT_HOST, 4 * MIB);
	unsigned char *small = region_malloc("w", STAYPUT_HOST, 1000);
	unsigned char *gone = region_malloc("d", STAYPUT_DISCARD, 4 * MIB);
	const unsigned char *copy;

	write_pattern(p, 4 * MIB, 1);
	write_pattern(small, 1000, 2);
	CHECK(!stayput_host_copy(p, 1));
	OK(stayput_pause(NULL));
	copy = stayput_host_copy(p + 1000, 4 * MIB - 1000);
	CHECK(copy);
	for (size_t i = 0; i < 4 * MIB - 1000; i++)
		CHECK_EQ(copy[i], pattern_at(i + 1000, 1));
	copy = stayput_host_copy(small, 1000);
	CHECK(copy);
	for (size_t i = 0; i < 1000; i++)
		CHECK_EQ(copy[i], pattern_at(i, 2));
	CHECK(!stayput_host_copy(p + 1000, 4 * MIB));
	CHECK(!stayput_host_copy(small, 1001));
	CHECK(!stayput_host_copy(gone, 1));
	CHECK(!stayput_host_copy(&copy, 1));
	CHECK(!stayput_host_copy(NULL, 1));
	OK(stayput_resume(NULL));
	CHECK(!stayput_host_copy(p, 1));
}

static void lists_and_snapshots_say_what_is_there(void)
{
	struct stayput_region_info infos[2] = {{.struct_size = sizeof *infos}};
	char json[4096], cut[16];
	size_t count;

	region_malloc("a", STAYPUT_DISCARD, 4 * MIB);
	region_malloc("b", STAYPUT_HOST, 1000);
	region_malloc("c", STAYPUT_KEEP, 1000);
	OK(stayput_pause("a"));
	OK(stayput_region_list(infos, 2, &count));
	CHECK_EQ(count, 3);
	CHECK_EQ(infos[0].bytes_paused, 4 * MIB);
	CHECK_EQ(infos[0].state, STAYPUT_PAUSED);
	CHECK_EQ(infos[1].bytes_active, 1000);
	CHECK_EQ(infos[1].bytes_device, 2 * MIB);
	CHECK_EQ(stayput_snapshot_json(json, sizeof json), strlen(json));
	CHECK_HAS(json, "{\"tag\":\"a\",\"state\":\"paused\",\"bytes_active\":0,"
			"\"bytes_paused\":4194304");
	CHECK_HAS(json, "\"bytes_kept\":1000");
	CHECK_EQ(stayput_snapshot_json(cut, sizeof cut), strlen(json));
	CHECK_EQ(strlen(cut), sizeof cut - 1);
	CHECK_EQ(stayput_snapshot_json(NULL, 0), strlen(json));
}

static pthread_key_t late_key;

static void err_late(void *unused)
{
	(void)unused;
	CHECK_EQ(stayput_region_pop(), STAYPUT_ERR_INVALID);
	CHECK_HAS(stayput_last_error(), "pop without a push");
}

static void *err_and_end(void *unused)
{
	(void)unused;
	CHECK_EQ(stayput_region_pop(), STAYPUT_ERR_INVALID);
	CHECK_EQ(pthread_key_create(&late_key, err_late), 0);
	CHECK_EQ(pthread_setspecific(late_key, &late_key), 0);
	return NULL;
}

static void errors_in_a_threads_last_moments_do_no_harm(void)
{
	pthread_t thread;

	CHECK_EQ(pthread_create(&thread, NULL, err_and_end, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void errors_have_names_and_the_thread_its_sentence(void)
{
	CHECK_EQ(strlen(stayput_last_error()), 0);
	CHECK_EQ(strcmp(stayput_strerror(STAYPUT_OK), "no error"), 0);
	for (int code = STAYPUT_ERR_CORRUPT; code < 0; code++)
		CHECK(strcmp(stayput_strerror(code), stayput_strerror(-100)) != 0);
	CHECK_EQ(strcmp(stayput_version(), STAYPUT_VERSION), 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(paused_memory_is_free_and_comes_back_at_the_same_address),
		TEST(host_contents_come_back_byte_for_byte),
		TEST(zero_is_zero_whatever_the_driver_hands_out),
		TEST(one_tag_may_hold_several_policies),
		TEST(a_policy_for_one_pause_overrides_and_then_ends),
		TEST(repeating_is_no_error),
		TEST(unknown_tags_are_not_found_and_nothing_is_paused),
		TEST(pausing_an_empty_region_is_told_once),
		TEST(several_tags_are_one_step),
		TEST(freeing_while_paused_drops_memory_address_and_backup),
		TEST(allocating_while_paused_gives_active_memory),
		TEST(resume_without_memory_keeps_everything_and_can_be_repeated),
		TEST(resume_waits_for_memory_as_long_as_asked),
		TEST(the_environment_sets_how_long_resume_waits),
		TEST(without_host_memory_pause_fails_whole),
		TEST(pause_waits_for_work_on_a_non_blocking_stream),
		TEST(free_waits_for_work_that_uses_the_memory),
		TEST(a_capture_survives_allocating_freeing_and_a_refused_pause),
		TEST(a_destroyed_stream_ends_its_capture),
		TEST(a_retained_handle_is_seen_in_the_report),
		TEST(hundred_cycles_leave_no_residue),
		TEST(both_devices_are_paused_whatever_the_current_one_is),
		TEST(when_one_device_cannot_resume_none_does),
		TEST(host_copy_shows_paused_contents_and_nothing_else),
		TEST(lists_and_snapshots_say_what_is_there),
		TEST(errors_in_a_threads_last_moments_do_no_harm),
		TEST(errors_have_names_and_the_thread_its_sentence),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
