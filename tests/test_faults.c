/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every driver call of an operation fails once, the first, the second, ... until none is
 * left to fail. Afterwards nothing has leaked, states and contents are right, and the
 * same operation succeeds.
 */
#include "support.h"

static void fail_nth(int n, const char *error)
{
	char spec[64];

	snprintf(spec, sizeof spec, "*:%d:%s", n, error);
	fakecuda_fail(spec);
}

static void allocation_fails_clean_at_every_call(size_t size)
{
	void *warm = region_malloc("r", STAYPUT_HOST, size), *p;
	struct fakecuda_report before, after;
	bool failed = true;

	catch_stderr();
	CUDA(cudaFree(warm));
	fakecuda_report(&before);
	OK(stayput_region_push("r", STAYPUT_HOST));
	for (int n = 1; failed; n++) {
		cudaError_t err;

		p = (void *)1;
		fail_nth(n, "OUT_OF_MEMORY");
		err = cudaMalloc(&p, size);
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		CHECK(err == cudaSuccess || p == (void *)1);
		if (err == cudaSuccess)
			CUDA(cudaFree(p));
		cudaGetLastError();
		fakecuda_report(&after);
		CHECK_EQ(after.handles, before.handles);
		CHECK_EQ(after.mappings, before.mappings);
		CHECK_EQ(after.bytes_used[0], before.bytes_used[0]);
		CUDA(cudaMalloc(&p, size));
		CUDA(cudaFree(p));
		CHECK(n < 1000);
	}
}

static void large_allocation_fails_clean_at_every_call(void)
{
	allocation_fails_clean_at_every_call(8 * MIB);
}

static void small_allocation_fails_clean_at_every_call(void)
{
	allocation_fails_clean_at_every_call(4096);
}

enum { COUNT = 6 };

struct set {
	char *p[COUNT];
};

static size_t size_of(int i)
{
	return i % 2 ? 4096 * (size_t)(i + 1) : (size_t)(i + 3) * MIB;
}

/* Large and small, all of policy host, on two devices. */
static struct set make_set(void)
{
	struct set set;

	setenv("FAKECUDA_DEVICES", "2", 1);
	for (int i = 0; i < COUNT; i++) {
		CUDA(cudaSetDevice(i / 3));
		set.p[i] = region_malloc("set", STAYPUT_HOST, size_of(i));
		write_pattern(set.p[i], size_of(i), i);
	}
	return set;
}

static void check_contents(const struct set *set)
{
	for (int i = 0; i < COUNT; i++) {
		CUDA(cudaSetDevice(i / 3));
		CHECK_EQ(wrong_bytes(set->p[i], size_of(i), i), 0);
	}
}

static void pause_fails_whole_or_says_what_is_paused(void)
{
	struct set set = make_set();
	bool failed = true;

	catch_stderr();
	for (int n = 1; failed; n++) {
		struct stayput_report report = {.struct_size = sizeof report};
		struct stayput_region_info info;
		int err;

		fail_nth(n, "UNKNOWN");
		err = stayput_pause_ex(NULL, 0, NULL, &report);
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		info = region_info("set");
		CHECK_EQ(info.count_active + info.count_paused, COUNT);
		CHECK_EQ(info.count_paused, report.allocations);
		CHECK_EQ(info.count_active, report.failed);
		CHECK_EQ(info.bytes_device, device_used(0) + device_used(1));
		CHECK(err != STAYPUT_OK || info.count_active == 0);
		CHECK(err == STAYPUT_OK || err == STAYPUT_ERR_DRIVER ||
			err == STAYPUT_ERR_HOST_MEMORY);
		OK(stayput_pause(NULL));
		CHECK_EQ(device_used(0) + device_used(1), 0);
		OK(stayput_resume(NULL));
		check_contents(&set);
		CHECK(n < 1000);
	}
}

static void resume_fails_whole_at_every_call(const char *error)
{
	struct set set = make_set();
	struct fakecuda_report before, after;
	bool failed = true;

	catch_stderr();
	for (int n = 1; failed; n++) {
		struct stayput_region_info info;
		int err;

		OK(stayput_pause(NULL));
		fakecuda_report(&before);
		fail_nth(n, error);
		err = stayput_resume(NULL);
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		info = region_info("set");
		CHECK_EQ(info.count_active, err == STAYPUT_OK ? COUNT : 0);
		if (err != STAYPUT_OK) {
			CHECK(strlen(stayput_last_error()) > 0);
			fakecuda_report(&after);
			CHECK_EQ(after.handles, before.handles);
			CHECK_EQ(after.mappings, before.mappings);
			OK(stayput_resume(NULL));
		}
		check_contents(&set);
		CHECK(n < 1000);
	}
}

static void resume_fails_whole_when_memory_runs_out_at_any_call(void)
{
	resume_fails_whole_at_every_call("OUT_OF_MEMORY");
}

static void resume_fails_whole_when_the_driver_refuses_any_call(void)
{
	resume_fails_whole_at_every_call("UNKNOWN");
}

static void free_forgets_the_allocation_whatever_fails(void)
{
	struct stayput_info info = {.struct_size = sizeof info};
	bool failed = true;

	catch_stderr();
	region_malloc("f", STAYPUT_HOST, 4 * MIB);
	for (int n = 1; failed; n++) {
		char *p = region_malloc("f", STAYPUT_HOST, 4 * MIB);

		fail_nth(n, "UNKNOWN");
		cudaFree(p);
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		cudaGetLastError();
		CHECK_EQ(stayput_query(p, &info), STAYPUT_ERR_NOT_FOUND);
		CHECK_EQ(region_info("f").count_active, 1);
		CHECK(n < 1000);
	}
	CUDA(cudaFree(region_malloc("f", STAYPUT_HOST, 4 * MIB)));
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(large_allocation_fails_clean_at_every_call),
		TEST(small_allocation_fails_clean_at_every_call),
		TEST(pause_fails_whole_or_says_what_is_paused),
		TEST(resume_fails_whole_when_memory_runs_out_at_any_call),
		TEST(resume_fails_whole_when_the_driver_refuses_any_call),
		TEST(free_forgets_the_allocation_whatever_fails),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
