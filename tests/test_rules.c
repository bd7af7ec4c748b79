/* SPDX-License-Identifier: Apache-2.0 */
/* STAYPUT_RULES and STAYPUT_EXCLUDE: which allocation belongs to which region. The
 * libraries that allocate here are built into loading/ from one source. */
#include <dlfcn.h>
#include <limits.h>

#include "loading/libraries.h"
#include "support.h"

struct library {
	void *handle;
	typeof(&consumer_malloc) malloc;
	typeof(&consumer_free) free;
};

static struct library open_library(const char *name)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path / 2);
	struct library library;

	CHECK(n > 0);
	path[n] = '\0';
	sprintf(strrchr(path, '/'), "/loading/%s", name);
	library.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CHECK(library.handle);
	library.malloc =
		(typeof(&consumer_malloc))dlsym(library.handle, "consumer_malloc");
	library.free = (typeof(&consumer_free))dlsym(library.handle, "consumer_free");
	CHECK(library.malloc && library.free);
	return library;
}

/* The tag of the allocation at `ptr`, "" when it is native. */
static const char *tag_of(const void *ptr)
{
	static struct stayput_info info;

	info = (struct stayput_info){.struct_size = sizeof info};
	return stayput_query(ptr, &info) == STAYPUT_OK ? info.tag : "";
}

#define CHECK_TAG(ptr, tag) CHECK_HAS(tag_tell(tag_of(ptr)), tag_tell(tag))

/* In brackets, so that no tag is part of another. */
static const char *tag_tell(const char *tag)
{
	static char told[2][STAYPUT_TAG_SIZE + 2];
	static int turn;

	turn = !turn;
	snprintf(told[turn], sizeof told[turn], "[%s]", tag);
	return told[turn];
}

static void *allocate(size_t size)
{
	void *ptr = NULL;

	CUDA(cudaMalloc(&ptr, size));
	return ptr;
}

static void *allocate_in(const struct library *library, size_t size)
{
	void *ptr = NULL;

	CUDA(library->malloc(&ptr, size));
	return ptr;
}

static void sizes_choose(void)
{
	setenv("STAYPUT_RULES", "big:size>=4MiB;mid:size>=4096,size<8192", 1);
	CHECK_TAG(allocate(4 * MIB), "big");
	CHECK_TAG(allocate(4 * MIB - 1), "");
	CHECK_TAG(allocate(8192), "");
	CHECK_TAG(allocate(8191), "mid");
	CHECK_TAG(allocate(4096), "mid");
	CHECK_TAG(allocate(4095), "");
}

static void every_way_to_allocate_is_sorted_by_what_was_asked_for(void)
{
	struct cudaPitchedPtr volume;
	CUdeviceptr linear, rows;
	void *pitched;
	size_t pitch;

	setenv("STAYPUT_RULES", "exact:size>=3000000,size<3000001", 1);
	CUDA(cudaFree(0));
	CUDA(cudaMallocPitch(&pitched, &pitch, 1000, 3000));
	CUDA(cudaMalloc3D(&volume, ((struct cudaExtent){1000, 30, 100})));
	CHECK_EQ(cuMemAlloc(&linear, 3000000), CUDA_SUCCESS);
	CHECK_EQ(cuMemAllocPitch(&rows, &pitch, 1000, 3000, 4), CUDA_SUCCESS);
	CHECK_TAG(pitched, "exact");
	CHECK_TAG(volume.ptr, "exact");
	CHECK_TAG((void *)linear, "exact");
	CHECK_TAG((void *)rows, "exact");
}

static void the_current_device_chooses(void)
{
	CUdeviceptr ptr;

	setenv("FAKECUDA_DEVICES", "2", 1);
	setenv("STAYPUT_RULES", "second:device=1", 1);
	CUDA(cudaSetDevice(1));
	CHECK_TAG(allocate(4096), "second");
	CHECK_EQ(cuMemAlloc(&ptr, 4096), CUDA_SUCCESS);
	CHECK_TAG((void *)ptr, "second");
	CUDA(cudaSetDevice(0));
	CHECK_TAG(allocate(4096), "");
	CHECK_EQ(cuMemAlloc(&ptr, 4096), CUDA_SUCCESS);
	CHECK_TAG((void *)ptr, "");
}

/* A request that fails in the end must not have made one either. */
static void asking_for_the_device_makes_no_context(void)
{
	CUcontext ctx = NULL;
	CUdeviceptr ptr;

	setenv("STAYPUT_RULES", "second:device=1", 1);
	CUDA(cudaGetDeviceCount(&(int){0}));
	CHECK(cuMemAlloc(&ptr, 4096) != CUDA_SUCCESS);
	CHECK_EQ(cuCtxGetCurrent(&ctx), CUDA_SUCCESS);
	CHECK(!ctx);
}

static void the_callers_file_chooses(void)
{
	struct library a = open_library("libplaced_a.so");
	struct library b = open_library("libplaced_b.so");

	setenv("STAYPUT_RULES",
		"a:module=placed_a;folder:module=loading/libplaced;me:module=test_rules",
		1);
	CHECK_TAG(allocate_in(&a, 4096), "a");
	CHECK_TAG(allocate_in(&b, 4096), "folder");
	CHECK_TAG(allocate(4096), "me");
}

static void all_conditions_have_to_hold_and_the_first_rule_wins(void)
{
	struct library a = open_library("libplaced_a.so");

	setenv("STAYPUT_RULES",
		"a:1:size>=1MiB,device=0,module=placed_a;no:size>=1MiB,module=placed_b;"
		"no:size>=1MiB,device=1;big:size>=1MiB;late:size>=2MiB",
		1);
	CHECK_TAG(allocate_in(&a, 2 * MIB), "a:1");
	CHECK_TAG(allocate_in(&a, 4096), "");
	CHECK_TAG(allocate(2 * MIB), "big");
}

static void a_push_wins_over_rules_and_rules_over_the_default(void)
{
	void *pushed, *native;

	setenv("STAYPUT_DEFAULT", "rest", 1);
	setenv("STAYPUT_RULES", "big:size>=1MiB", 1);
	CHECK_TAG(allocate(1 * MIB), "big");
	CHECK_TAG(allocate(4096), "rest");
	OK(stayput_region_push("pushed", STAYPUT_HOST));
	pushed = allocate(1 * MIB);
	OK(stayput_native_push());
	native = allocate(1 * MIB);
	OK(stayput_region_pop());
	OK(stayput_region_pop());
	CHECK_TAG(pushed, "pushed");
	CHECK_TAG(native, "");
	CHECK_TAG(allocate(1 * MIB), "big");
}

static void *allocate_in_thread(void *unused)
{
	(void)unused;
	return allocate(1 * MIB);
}

static void rules_hold_for_every_thread_and_pushes_for_their_own(void)
{
	pthread_t thread;
	void *ptr;

	setenv("STAYPUT_RULES", "big:size>=1MiB", 1);
	OK(stayput_region_push("pushed", STAYPUT_HOST));
	CHECK_EQ(pthread_create(&thread, NULL, allocate_in_thread, NULL), 0);
	CHECK_EQ(pthread_join(thread, &ptr), 0);
	CHECK_TAG(ptr, "big");
	CHECK_TAG(allocate(1 * MIB), "pushed");
}

enum { THREADS = 8, TIMES = 200 };

static void *allocate_often(void *library)
{
	for (int i = 0; i < TIMES; i++) {
		void *ptr = allocate_in(library, 4096);
		struct stayput_info info = query(ptr);

		CHECK_EQ(strcmp(info.tag, "a"), 0);
		CUDA(((struct library *)library)->free(ptr));
	}
	return NULL;
}

static void threads_may_ask_for_a_file_at_once(void)
{
	struct library a = open_library("libplaced_a.so");
	pthread_t threads[THREADS];

	setenv("STAYPUT_RULES", "a:module=placed_a", 1);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, allocate_often, &a), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

static void the_tag_of_a_rule_has_the_policy_of_the_environment(void)
{
	setenv("STAYPUT_REGIONS", "big=discard", 1);
	setenv("STAYPUT_RULES", "big:size>=1MiB;small:size<1MiB", 1);
	CHECK_EQ(query(allocate(1 * MIB)).policy, STAYPUT_DISCARD);
	CHECK_EQ(query(allocate(4096)).policy, STAYPUT_KEEP);
}

static void memory_by_a_rule_is_paused_as_any_other(void)
{
	void *ptr;

	setenv("STAYPUT_RULES", "big:size>=1MiB", 1);
	ptr = allocate(4 * MIB);
	write_pattern(ptr, 4 * MIB, 1);
	OK(stayput_pause("big"));
	CHECK_EQ(device_used(0), 0);
	OK(stayput_resume("big"));
	CHECK_EQ(wrong_bytes(ptr, 4 * MIB, 1), 0);
	CUDA(cudaFree(ptr));
	CHECK_EQ(device_used(0), 0);
}

static void excluded_callers_are_native_in_a_region_too(void)
{
	struct library nccl = open_library("libnccl.so");
	struct library other = open_library("libplaced_a.so");
	void *ptr;

	setenv("STAYPUT_DEFAULT", "rest", 1);
	setenv("STAYPUT_RULES", "all:size>=1MiB", 1);
	ptr = allocate_in(&nccl, 4 * MIB);
	CHECK_TAG(ptr, "");
	CUDA(nccl.free(ptr));
	CHECK_TAG(allocate_in(&nccl, 4096), "");
	CHECK_TAG(allocate_in(&other, 4096), "rest");
	OK(stayput_region_push("pushed", STAYPUT_KEEP));
	CHECK_TAG(allocate_in(&nccl, 4096), "");
	CHECK_TAG(allocate_in(&other, 4096), "pushed");
	OK(stayput_region_pop());
	CHECK_EQ(region_info("pushed").count_kept, 1);
}

static void a_region_that_exclusions_keep_empty_is_told_of_them(void)
{
	struct library nccl = open_library("libnccl.so");

	setenv("STAYPUT_DEFAULT", "rest", 1);
	catch_stderr();
	allocate_in(&nccl, 4 * MIB);
	OK(stayput_pause(NULL));
	CHECK_HAS(stderr_text(), "region rest is empty");
	CHECK_HAS(stderr_text(), "STAYPUT_EXCLUDE");
}

static void a_value_replaces_the_exclusions(void)
{
	struct library nccl = open_library("libnccl.so");
	struct library other = open_library("libplaced_a.so");

	setenv("STAYPUT_DEFAULT", "rest", 1);
	setenv("STAYPUT_EXCLUDE", "nothing,placed_a", 1);
	CHECK_TAG(allocate_in(&nccl, 4096), "rest");
	CHECK_TAG(allocate_in(&other, 4096), "");
}

static void a_value_after_a_plus_adds_to_the_exclusions(void)
{
	struct library nccl = open_library("libnccl.so");
	struct library other = open_library("libplaced_a.so");

	setenv("STAYPUT_DEFAULT", "rest", 1);
	setenv("STAYPUT_EXCLUDE", "+nothing,placed_a", 1);
	CHECK_TAG(allocate_in(&nccl, 4096), "");
	CHECK_TAG(allocate_in(&other, 4096), "");
	CHECK_TAG(allocate(4096), "rest");
}

/* What was found out about the first one must not be believed of the second. */
static void a_library_in_the_place_of_another_is_known_by_its_own_name(void)
{
	struct library library = open_library("libplaced_a.so");
	uintptr_t place = (uintptr_t)library.malloc;

	setenv("STAYPUT_RULES", "a:module=placed_a;b:module=placed_b", 1);
	for (int i = 0; i < 3; i++) {
		CHECK_TAG(allocate_in(&library, 4096), "a");
		CHECK_EQ(dlclose(library.handle), 0);
		library = open_library("libplaced_b.so");
		if ((uintptr_t)library.malloc != place)
			SKIP("the loader puts the second library elsewhere");
		CHECK_TAG(allocate_in(&library, 4096), "b");
		CHECK_EQ(dlclose(library.handle), 0);
		library = open_library("libplaced_a.so");
		CHECK_EQ((uintptr_t)library.malloc, place);
	}
}

static void malformed_rules_are_told_once_and_count_as_unset(void)
{
	setenv("STAYPUT_RULES", "a:size>=1;b:size>2", 1);
	setenv("STAYPUT_EXCLUDE", "libnccl,,x", 1);
	catch_stderr();
	CHECK_TAG(allocate(4096), "");
	CHECK_TAG(allocate(4096), "");
	CHECK_HAS(stderr_text(), "STAYPUT_RULES: \"b:size>2\" cannot be read; allowed");
	CHECK_HAS(stderr_text(), "STAYPUT_EXCLUDE: \"\" cannot be read; allowed");
	CHECK(!strstr(strstr(stderr_text(), "STAYPUT_RULES") + 1, "STAYPUT_RULES"));
}

static void the_folder_of_the_program_excludes_nothing(void)
{
	char path[PATH_MAX], *end;
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

	CHECK(n > 0);
	path[n] = '\0';
	*strrchr(path, '/') = '\0';
	end = strrchr(path, '/');
	strcat(end, "/");
	setenv("STAYPUT_EXCLUDE", end + 1, 1);
	setenv("STAYPUT_DEFAULT", "all", 1);
	CHECK_TAG(allocate(MIB), "all");
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(the_folder_of_the_program_excludes_nothing),
		TEST(sizes_choose),
		TEST(every_way_to_allocate_is_sorted_by_what_was_asked_for),
		TEST(the_current_device_chooses),
		TEST(asking_for_the_device_makes_no_context),
		TEST(the_callers_file_chooses),
		TEST(all_conditions_have_to_hold_and_the_first_rule_wins),
		TEST(a_push_wins_over_rules_and_rules_over_the_default),
		TEST(rules_hold_for_every_thread_and_pushes_for_their_own),
		TEST(threads_may_ask_for_a_file_at_once),
		TEST(the_tag_of_a_rule_has_the_policy_of_the_environment),
		TEST(memory_by_a_rule_is_paused_as_any_other),
		TEST(excluded_callers_are_native_in_a_region_too),
		TEST(a_region_that_exclusions_keep_empty_is_told_of_them),
		TEST(a_value_replaces_the_exclusions),
		TEST(a_value_after_a_plus_adds_to_the_exclusions),
		TEST(a_library_in_the_place_of_another_is_known_by_its_own_name),
		TEST(malformed_rules_are_told_once_and_count_as_unset),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
