/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions for PyTorch's CUDAPluggableAllocator, in a process where nothing was
 * preloaded: the library is opened late and RTLD_LOCAL, and called from a library that is
 * linked to the runtime, as PyTorch's are.
 */
#include <dlfcn.h>
#include <fcntl.h>

#include "fakecuda/fakecuda.h"
#include "loading/libraries.h"
#include "stayput.h"
#include "test.h"

#define MIB ((size_t)1 << 20)

/* More than any device has. */
static const ssize_t TOO_MUCH = (ssize_t)1 << 50;

static void *torch, *ours;

#define SYMBOL(library, function) ((typeof(&function))symbol(library, #function))
#define TORCH(function) SYMBOL(torch, function)
#define OURS(function) SYMBOL(ours, function)
#define OK(call) CHECK_EQ((call), STAYPUT_OK)

static void *open_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		dprintf(test_log, "%s\n", dlerror());
	CHECK(library);
	return library;
}

static void *symbol(void *library, const char *name)
{
	void *function = dlsym(library, name);

	if (!function)
		dprintf(test_log, "%s\n", dlerror());
	CHECK(function);
	return function;
}

/* Of the fake driver. */
static struct fakecuda_report report(void)
{
	struct fakecuda_report r;

	SYMBOL(open_library("libcuda.so.1"), fakecuda_report)(&r);
	return r;
}

static void begin(void)
{
	setenv("FAKECUDA_DEVICES", "2", 1);
	torch = open_library("libconsumer13.so");
	ours = open_library("libstayput.so");
}

static void *allocate(ssize_t size, int device)
{
	return TORCH(consumer_allocate)(OURS(stayput_torch_malloc), size, device);
}

static void release(void *ptr, ssize_t size, int device)
{
	TORCH(consumer_release)(OURS(stayput_torch_free), ptr, size, device);
}

static void *allocate_in(const char *tag, int policy, ssize_t size, int device)
{
	void *ptr;

	OK(OURS(stayput_region_push)(tag, policy));
	ptr = allocate(size, device);
	OK(OURS(stayput_region_pop)());
	return ptr;
}

static bool is_ours(const void *ptr)
{
	struct stayput_info info = {.struct_size = sizeof info};

	return OURS(stayput_query)(ptr, &info) == STAYPUT_OK;
}

static void a_pushed_region_is_followed_and_other_memory_is_native(void)
{
	struct fakecuda_report before, after;
	void *native, *region;

	begin();
	native = allocate(4 * MIB, 0);
	before = report();
	region = allocate_in("r", STAYPUT_HOST, 4 * MIB, 0);
	after = report();
	CHECK(native && !is_ours(native));
	CHECK(region && is_ours(region));
	CHECK_EQ(after.native_allocs, before.native_allocs);
	CHECK_EQ(after.mappings, before.mappings + 1);
	release(region, 4 * MIB, 0);
	release(native, 4 * MIB, 0);
	release(NULL, 0, 0);
	after = report();
	CHECK_EQ(after.mappings, before.mappings);
	CHECK_EQ(after.native_allocs, before.native_allocs - 1);
}

static void the_default_region_counts_here_too(void)
{
	setenv("STAYPUT_DEFAULT", "everything", 1);
	begin();
	CHECK(is_ours(allocate(4 * MIB, 0)));
}

static void contents_survive_a_pause(void)
{
	size_t used;
	char *ptr, byte = 0;

	begin();
	ptr = allocate_in("r", STAYPUT_HOST, 8 * MIB, 0);
	CHECK_EQ(TORCH(consumer_write)(ptr, 42, 8 * MIB), cudaSuccess);
	used = report().bytes_used[0];
	OK(OURS(stayput_pause)("r"));
	CHECK_EQ(report().bytes_used[0], used - 8 * MIB);
	OK(OURS(stayput_resume)("r"));
	CHECK_EQ(TORCH(consumer_read)(&byte, ptr + 8 * MIB - 1, 1), cudaSuccess);
	CHECK_EQ(byte, 42);
	OK(OURS(stayput_pause)("r"));
	release(ptr, 8 * MIB, 0);
	CHECK(!is_ours(ptr));
}

static void the_device_is_the_one_asked_for_and_the_threads_stays(void)
{
	struct stayput_info info = {.struct_size = sizeof info};
	void *region, *native;
	size_t used;

	begin();
	CHECK_EQ(TORCH(consumer_set_device)(0), cudaSuccess);
	region = allocate_in("r", STAYPUT_DISCARD, 4 * MIB, 1);
	OK(OURS(stayput_query)(region, &info));
	CHECK_EQ(info.device, 1);
	CHECK_EQ(TORCH(consumer_device)(), 0);
	used = report().bytes_used[1];
	native = allocate(4 * MIB, 1);
	CHECK_EQ(report().bytes_used[1], used + 4 * MIB);
	CHECK_EQ(TORCH(consumer_device)(), 0);
	CHECK(!allocate_in("r", STAYPUT_DISCARD, TOO_MUCH, 1));
	CHECK_EQ(TORCH(consumer_device)(), 0);
	release(region, 4 * MIB, 1);
	release(native, 4 * MIB, 1);
	CHECK_EQ(TORCH(consumer_device)(), 0);
	CHECK_EQ(report().bytes_used[1], used - 4 * MIB);
}

static void no_context_is_made_on_another_device(void)
{
	begin();
	CHECK_EQ(TORCH(consumer_set_device)(1), cudaSuccess);
	CHECK(allocate_in("r", STAYPUT_DISCARD, 4 * MIB, 1));
	CHECK(allocate(4 * MIB, 1));
	CHECK_EQ(report().bytes_used[0], 0);
}

static void without_memory_the_answer_is_null_and_no_error_stays(void)
{
	begin();
	CHECK(!allocate_in("r", STAYPUT_HOST, TOO_MUCH, 0));
	CHECK_HAS(OURS(stayput_last_error)(), "1125899906842624 bytes on device 0");
	CHECK_HAS(OURS(stayput_last_error)(), "OUT_OF_MEMORY");
	CHECK_EQ(TORCH(consumer_last_error)(), cudaSuccess);
	CHECK(!allocate(TOO_MUCH, 0));
	CHECK_HAS(OURS(stayput_last_error)(), "OUT_OF_MEMORY");
	CHECK(allocate_in("r", STAYPUT_HOST, 4 * MIB, 0));
}

static void wrong_sizes_and_devices_are_answered(void)
{
	static const int devices[] = {-1, 2, 1000};

	begin();
	CHECK(!allocate(0, 0));
	CHECK_HAS(OURS(stayput_last_error)(), "0 bytes cannot be allocated");
	CHECK(!allocate(-5, 0));
	CHECK_HAS(OURS(stayput_last_error)(), "-5 bytes cannot be allocated");
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
		CHECK(!allocate(4096, devices[i]));
		CHECK_HAS(OURS(stayput_last_error)(), "cannot be used");
		CHECK(!allocate_in("r", STAYPUT_HOST, 4096, devices[i]));
	}
	CHECK_EQ(TORCH(consumer_device)(), 0);
}

static void without_a_runtime_the_answer_says_so(void)
{
	ours = open_library("libstayput.so");
	CHECK(!OURS(stayput_torch_malloc)(4096, 0, NULL));
	CHECK_HAS(OURS(stayput_last_error)(), "no CUDA runtime");
	OK(OURS(stayput_region_push)("r", STAYPUT_HOST));
	CHECK(!OURS(stayput_torch_malloc)(4096, 0, NULL));
	OURS(stayput_torch_free)(NULL, 0, 0, NULL);
}

/* Each runtime notes its own failures alone. */
static void the_runtime_is_the_callers(void)
{
	void *other;

	begin();
	other = open_library("libconsumer12.so");
	CHECK(!allocate(TOO_MUCH, 0));
	CHECK_EQ(SYMBOL(other, consumer_last_error)(), cudaSuccess);
	CHECK_EQ(TORCH(consumer_last_error)(), cudaErrorMemoryAllocation);
	CHECK(!SYMBOL(other, consumer_allocate)(OURS(stayput_torch_malloc), TOO_MUCH, 0));
	CHECK_EQ(TORCH(consumer_last_error)(), cudaSuccess);
	CHECK_EQ(SYMBOL(other, consumer_last_error)(), cudaErrorMemoryAllocation);
}

static void whatever_fails_is_null_and_leaves_nothing(void)
{
	struct fakecuda_report before;
	char order[64];
	void *driver, *ptr;
	int n = 0;

	begin();
	driver = open_library("libcuda.so.1");
	/* What is kept for later is there. */
	release(allocate_in("r", STAYPUT_HOST, 4 * MIB, 1), 4 * MIB, 1);
	before = report();
	do {
		snprintf(order, sizeof order, "*:%d:OUT_OF_MEMORY", ++n);
		SYMBOL(driver, fakecuda_fail)(order);
		ptr = allocate_in("r", STAYPUT_HOST, 4 * MIB, 1);
		if (SYMBOL(driver, fakecuda_failed)() == 0)
			break;
		SYMBOL(driver, fakecuda_fail)(NULL);
		if (ptr)
			release(ptr, 4 * MIB, 1);
		else
			CHECK(*OURS(stayput_last_error)());
		CHECK_EQ(report().mappings, before.mappings);
		CHECK_EQ(report().handles, before.handles);
		CHECK_EQ(report().bytes_used[1], before.bytes_used[1]);
		/* Had going back failed, the thread would be on the other one. */
		CHECK_EQ(TORCH(consumer_set_device)(0), cudaSuccess);
	} while (n < 1000);
	CHECK(n > 4 && n < 1000);
}

static void a_forked_child_is_answered(void)
{
	void *ptr;
	pid_t child;
	int status;

	begin();
	ptr = allocate_in("r", STAYPUT_HOST, 4 * MIB, 0);
	CHECK(ptr);
	child = fork();
	if (child == 0) {
		alarm(TEST_SECONDS);
		dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
		CHECK(!allocate_in("r", STAYPUT_HOST, 4 * MIB, 0));
		CHECK(!allocate(4 * MIB, 0));
		release(ptr, 4 * MIB, 0);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK(is_ours(ptr));
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_pushed_region_is_followed_and_other_memory_is_native),
		TEST(the_default_region_counts_here_too),
		TEST(contents_survive_a_pause),
		TEST(the_device_is_the_one_asked_for_and_the_threads_stays),
		TEST(no_context_is_made_on_another_device),
		TEST(without_memory_the_answer_is_null_and_no_error_stays),
		TEST(wrong_sizes_and_devices_are_answered),
		TEST(without_a_runtime_the_answer_says_so),
		TEST(the_runtime_is_the_callers),
		TEST(whatever_fails_is_null_and_leaves_nothing),
		TEST(a_forked_child_is_answered),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
