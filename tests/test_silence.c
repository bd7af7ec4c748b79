/* SPDX-License-Identifier: Apache-2.0 */
/* What goes past the library, and when it says so. Libraries are built into loading/. */
#include <dlfcn.h>
#include <limits.h>

#include "loading/libraries.h"
#include "support.h"

static void *open_library(const char *name)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path / 2);
	void *handle;

	CHECK(n > 0);
	path[n] = '\0';
	sprintf(strrchr(path, '/'), "/loading/%s", name);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CHECK(handle);
	return handle;
}

/* A pool's memory, made by that library's code. */
static CUmemGenericAllocationHandle create(void *library, size_t size)
{
	typeof(&pool_create) make = (typeof(&pool_create))dlsym(library, "pool_create");
	CUmemGenericAllocationHandle handle = 0;

	CHECK(make);
	CUDA(cudaSetDevice(0));
	CUDA(cudaFree(0));
	CHECK_EQ(make(&handle, size, 0), CUDA_SUCCESS);
	return handle;
}

static void release(void *library, CUmemGenericAllocationHandle handle)
{
	typeof(&pool_release) give_back =
		(typeof(&pool_release))dlsym(library, "pool_release");

	CHECK_EQ(give_back(handle), CUDA_SUCCESS);
}

/* Memory that comes by nowhere, as ctypes.CDLL("libcudart.so") gets it. */
static void allocate_past_us(size_t size)
{
	void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD), *ptr;
	typeof(&cudaMalloc) real = (typeof(&cudaMalloc))dlsym(runtime, "cudaMalloc");

	CHECK(real);
	CUDA(real(&ptr, size));
}

static void push_and_pop(void)
{
	OK(stayput_region_push("r", STAYPUT_HOST));
	OK(stayput_region_pop());
}

static const char *snapshot(void)
{
	static char json[8192];

	CHECK(stayput_snapshot_json(json, sizeof json) < sizeof json);
	return json;
}

static size_t count_of(const char *text, const char *part)
{
	size_t n = 0;

	while ((text = strstr(text, part))) {
		text++;
		n++;
	}
	return n;
}

static void expandable_segments_are_named(void)
{
	void *pytorch = open_library("libc10_cuda.so");

	setenv("STAYPUT_DEFAULT", "engine", 1);
	catch_stderr();
	create(pytorch, GIB);
	CHECK_EQ(strlen(stderr_text()), 0);
	create(pytorch, 2 * MIB);
	create(pytorch, 2 * MIB);
	CHECK_HAS(stderr_text(), "region engine: 1075838976 bytes that were meant for it "
				 "stay native, because loading/libc10_cuda.so made them "
				 "by cuMemCreate");
	CHECK_HAS(stderr_text(), "expandable_segments:False");
	CHECK_EQ(count_of(stderr_text(), "warning"), 1);
}

static void other_pools_are_named_by_their_file(void)
{
	setenv("STAYPUT_RULES", "big:size>=1MiB,device=0", 1);
	catch_stderr();
	create(open_library("libpool.so"), GIB + 2 * MIB);
	CHECK_HAS(stderr_text(), "region big: ");
	CHECK_HAS(stderr_text(), "because loading/libpool.so made");
	CHECK_HAS(stderr_text(), "it manages virtual memory itself");
}

static void a_pool_of_xla_is_named(void)
{
	catch_stderr();
	OK(stayput_region_push("r", STAYPUT_HOST));
	create(open_library("libxla_plugin.so"), GIB + 2 * MIB);
	CHECK_HAS(stderr_text(), "a pool of XLA's own");
}

static void memory_by_others_is_counted_until_it_is_released(void)
{
	void *pytorch = open_library("libc10_cuda.so");
	void *xla = open_library("libxla_plugin.so"), *pool = open_library("libpool.so");
	CUmemGenericAllocationHandle handle;

	handle = create(pytorch, 2 * MIB);
	create(xla, 4 * MIB);
	OK(stayput_region_push("r", STAYPUT_HOST));
	create(pool, 6 * MIB);
	OK(stayput_region_pop());
	CHECK_EQ(region_info("r").bytes_foreign_vmm, 6 * MIB);
	CHECK_EQ(region_info("r").count_foreign_vmm, 1);
	CHECK_HAS(snapshot(), "\"bytes_foreign_vmm\":6291456,\"count_foreign_vmm\":1,");
	CHECK_HAS(snapshot(), "\"foreign_vmm\":{\"pytorch\":2097152,\"xla\":4194304,"
			      "\"other\":6291456}");
	release(pytorch, handle);
	CHECK_HAS(snapshot(), "\"foreign_vmm\":{\"pytorch\":0,\"xla\":4194304,");
}

static void memory_of_the_driver_by_name_is_counted_too(void)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemGenericAllocationHandle handle;

	CUDA(cudaSetDevice(0));
	CUDA(cudaFree(0));
	CHECK_EQ(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_HAS(snapshot(), "\"other\":2097152}");
	CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
	CHECK_HAS(snapshot(), "\"other\":0}");
	CHECK_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemCreate(&handle, 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQ(cuMemCreate(&handle, 2 * MIB, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_HAS(snapshot(), "\"other\":0}");
}

static void our_own_memory_is_not_counted_as_others(void)
{
	region_malloc("r", STAYPUT_DISCARD, 4 * MIB);
	OK(stayput_pause("r"));
	OK(stayput_resume("r"));
	CHECK_HAS(snapshot(), "{\"pytorch\":0,\"xla\":0,\"other\":0}");
}

static void a_pause_says_what_went_past_an_empty_region(void)
{
	catch_stderr();
	OK(stayput_region_push("r", STAYPUT_HOST));
	create(open_library("libc10_cuda.so"), 6 * MIB);
	OK(stayput_region_pop());
	OK(stayput_pause("r"));
	CHECK_HAS(stderr_text(), "region r is empty: 6291456 bytes that were meant");
	OK(stayput_pause("r"));
	CHECK_EQ(count_of(stderr_text(), "is empty"), 1);
}

static void excluded_callers_do_not_count_in_a_region(void)
{
	setenv("STAYPUT_DEFAULT", "engine", 1);
	catch_stderr();
	create(open_library("libnccl_pool.so"), GIB + 2 * MIB);
	CHECK_HAS(snapshot(), "\"other\":1075838976}");
	CHECK_EQ(region_info("engine").count_foreign_vmm, 0);
	CHECK_EQ(count_of(stderr_text(), "stay native"), 0);
}

typedef cudaError_t entry_point_by_version(
	const char *, void **, unsigned, unsigned long long, int *);

static entry_point_by_version *entry_point_in(void *handle)
{
	void *found = dlsym(handle, "cudaGetDriverEntryPointByVersion");

	CHECK(found);
	return (entry_point_by_version *)found;
}

static void lookups_of_anything_else_are_the_runtimes_own(void)
{
	static const char *const names[] = {
		"cuMemAlloc", "cuMemMap", "cuMemFreeAsync", "cuNothing"};
	entry_point_by_version *ours = entry_point_in(RTLD_DEFAULT);
	entry_point_by_version *real =
		entry_point_in(dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD));

	CHECK(ours != real);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		void *function = NULL, *own = NULL;
		int found = -1, wanted = -1;

		CHECK_EQ(ours(names[i], &function, 12000, cudaEnableDefault, &found),
			real(names[i], &own, 12000, cudaEnableDefault, &wanted));
		CHECK(function == own);
		CHECK_EQ(found, wanted);
	}
}

static void a_busy_process_of_which_nothing_comes_by_is_told(void)
{
	catch_stderr();
	allocate_past_us(GIB + MIB);
	push_and_pop();
	CHECK_HAS(stderr_text(), "warning: this process holds 1075838976 bytes of a "
				 "device, and no allocation has come by");
	CHECK_HAS(stderr_text(), "preload libstayput-deep.so instead");
	CHECK_HAS(stderr_text(), "expandable_segments");
	push_and_pop();
	snapshot();
	CHECK_EQ(count_of(stderr_text(), "come by"), 1);
}

static void a_default_or_rule_is_reason_enough(void)
{
	setenv("STAYPUT_DEFAULT", "engine", 1);
	catch_stderr();
	allocate_past_us(GIB + MIB);
	snapshot();
	CHECK_EQ(count_of(stderr_text(), "come by"), 1);
}

static void most_of_it_by_cumemcreate_is_said(void)
{
	catch_stderr();
	create(open_library("libc10_cuda.so"), 2 * GIB);
	push_and_pop();
	CHECK_HAS(stderr_text(), "2147483648 bytes were made by cuMemCreate; these are "
				 "PyTorch's");
}

static void without_a_region_nothing_is_said(void)
{
	catch_stderr();
	allocate_past_us(2 * GIB);
	create(open_library("libc10_cuda.so"), GIB + 2 * MIB);
	snapshot();
	OK(stayput_native_push());
	OK(stayput_region_pop());
	CHECK_EQ(strlen(stderr_text()), 0);
}

static void a_process_that_holds_little_is_not_told(void)
{
	catch_stderr();
	allocate_past_us(GIB);
	for (int i = 0; i < 20; i++)
		push_and_pop();
	CHECK_EQ(strlen(stderr_text()), 0);
}

static void a_process_that_allocates_outside_of_regions_is_not_told(void)
{
	void *ptr;

	catch_stderr();
	CUDA(cudaMalloc(&ptr, 2 * GIB));
	for (int i = 0; i < 20; i++)
		push_and_pop();
	CHECK_EQ(strlen(stderr_text()), 0);
	OK(stayput_pause("r"));
	CHECK_HAS(stderr_text(), "region r is empty: what came by was allocated outside");
	CHECK_HAS(stderr_text(), "a push holds for its own thread");
}

static void small_memory_in_a_region_is_not_nothing(void)
{
	catch_stderr();
	region_malloc("r", STAYPUT_HOST, 4096);
	allocate_past_us(2 * GIB);
	push_and_pop();
	push_and_pop();
	CHECK_EQ(strlen(stderr_text()), 0);
}

/* Memory may grow at any time, so one look is not enough; but each costs. */
static void it_looks_again_more_and_more_seldom(void)
{
	unsigned long looks;

	catch_stderr();
	CUDA(cudaSetDevice(0));
	CUDA(cudaFree(0));
	for (int i = 0; i < 100; i++)
		push_and_pop();
	looks = fakecuda_calls("cuDeviceTotalMem_v2");
	for (int i = 0; i < 27; i++)
		push_and_pop();
	CHECK_EQ(fakecuda_calls("cuDeviceTotalMem_v2"), looks);
	allocate_past_us(2 * GIB);
	push_and_pop();
	CHECK_EQ(count_of(stderr_text(), "no allocation has come by"), 1);
}

static void every_pause_looks(void)
{
	catch_stderr();
	CUDA(cudaSetDevice(0));
	CUDA(cudaFree(0));
	for (int i = 0; i < 5; i++)
		push_and_pop();
	allocate_past_us(2 * GIB);
	OK(stayput_pause("r"));
	CHECK_EQ(count_of(stderr_text(), "no allocation has come by"), 1);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(expandable_segments_are_named),
		TEST(other_pools_are_named_by_their_file),
		TEST(a_pool_of_xla_is_named),
		TEST(memory_by_others_is_counted_until_it_is_released),
		TEST(memory_of_the_driver_by_name_is_counted_too),
		TEST(our_own_memory_is_not_counted_as_others),
		TEST(a_pause_says_what_went_past_an_empty_region),
		TEST(excluded_callers_do_not_count_in_a_region),
		TEST(lookups_of_anything_else_are_the_runtimes_own),
		TEST(a_busy_process_of_which_nothing_comes_by_is_told),
		TEST(a_default_or_rule_is_reason_enough),
		TEST(most_of_it_by_cumemcreate_is_said),
		TEST(without_a_region_nothing_is_said),
		TEST(a_process_that_holds_little_is_not_told),
		TEST(a_process_that_allocates_outside_of_regions_is_not_told),
		TEST(small_memory_in_a_region_is_not_nothing),
		TEST(it_looks_again_more_and_more_seldom),
		TEST(every_pause_looks),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
