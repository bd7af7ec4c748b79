/* SPDX-License-Identifier: Apache-2.0 */
/* torch_memory_saver's functions, in libstayput-tms.so: what each means, and that nothing
 * ends the process. */
#include <stdint.h>

#include "compat_tms.h"
#include "support.h"

/* As the package begins a region. */
static void begin(const char *tag, bool cpu_backup)
{
	tms_set_current_tag(tag);
	tms_set_interesting_region(true);
	tms_set_enable_cpu_backup(cpu_backup);
}

static void end(void)
{
	tms_set_current_tag("default");
	tms_set_interesting_region(false);
	tms_set_enable_cpu_backup(false);
}

static void *allocate(size_t size)
{
	void *ptr = NULL;

	CUDA(cudaMalloc(&ptr, size));
	return ptr;
}

static void *allocate_in(const char *tag, bool cpu_backup, size_t size)
{
	void *ptr;

	begin(tag, cpu_backup);
	ptr = allocate(size);
	end();
	return ptr;
}

static bool is_native(const void *ptr)
{
	struct stayput_info info = {.struct_size = sizeof info};

	return stayput_query(ptr, &info) == STAYPUT_ERR_NOT_FOUND;
}

static void a_thread_begins_with_nothing_set(void)
{
	CHECK(!tms_get_interesting_region());
	CHECK(!tms_get_enable_cpu_backup());
	CHECK(!tms_get_enable_disk_backup());
	CHECK(!tms_get_retain_cpu_backup());
	CHECK_EQ(strcmp(tms_get_current_tag(), "default"), 0);
	CHECK_EQ(strcmp(tms_get_cpu_backup_backend(), "pinned"), 0);
	CHECK(is_native(allocate(4 * MIB)));
}

static void what_is_set_is_what_is_got(void)
{
	begin("weights", true);
	tms_set_enable_disk_backup(true);
	tms_set_cpu_backup_backend("mmap");
	tms_set_retain_cpu_backup(true);
	CHECK(tms_get_interesting_region());
	CHECK(tms_get_enable_cpu_backup());
	CHECK(tms_get_enable_disk_backup());
	CHECK(tms_get_retain_cpu_backup());
	CHECK_EQ(strcmp(tms_get_current_tag(), "weights"), 0);
	CHECK_EQ(strcmp(tms_get_cpu_backup_backend(), "mmap"), 0);
	tms_set_cpu_backup_backend("");
	CHECK_EQ(strcmp(tms_get_cpu_backup_backend(), "pinned"), 0);
	tms_set_retain_cpu_backup(false);
	CHECK(!tms_get_retain_cpu_backup());
}

static void memory_gets_tag_and_policy(void)
{
	void *kept = allocate_in("weights", true, 4 * MIB);
	void *lost = allocate_in("kv_cache", false, 4 * MIB);

	CHECK_EQ(strcmp(query(kept).tag, "weights"), 0);
	CHECK_EQ(query(kept).policy, STAYPUT_HOST);
	CHECK_EQ(strcmp(query(lost).tag, "kv_cache"), 0);
	CHECK_EQ(query(lost).policy, STAYPUT_DISCARD);
	CHECK(is_native(allocate(4 * MIB)));
	/* One tag may hold both. */
	CHECK_EQ(query(allocate_in("weights", false, 4 * MIB)).policy, STAYPUT_DISCARD);
	tms_set_interesting_region(true);
	CHECK_EQ(strcmp(query(allocate(4 * MIB)).tag, "default"), 0);
	tms_set_enable_cpu_backup(true);
	CHECK_EQ(query(allocate(4 * MIB)).policy, STAYPUT_HOST);
	tms_set_enable_cpu_backup(false);
	CHECK_EQ(query(allocate(4 * MIB)).policy, STAYPUT_DISCARD);
	tms_set_enable_disk_backup(true);
	CHECK_EQ(query(allocate(4 * MIB)).policy, STAYPUT_HOST);
}

static void the_environments_policies_win(void)
{
	setenv("STAYPUT_REGIONS", "weights=zero,*", 1);
	CHECK_EQ(query(allocate_in("weights", true, 4 * MIB)).policy, STAYPUT_ZERO);
	CHECK_EQ(query(allocate_in("kv", false, 4 * MIB)).policy, STAYPUT_DISCARD);
}

static void pause_gives_memory_back_and_contents_come_again(void)
{
	void *kept = allocate_in("weights", true, 8 * MIB);
	void *lost = allocate_in("kv_cache", false, 8 * MIB);
	size_t used = device_used(0);

	write_pattern(kept, 8 * MIB, 1);
	CUDA(cudaMemset(lost, 7, 8 * MIB));
	CHECK_EQ(tms_pause("kv_cache"), 0);
	CHECK_EQ(device_used(0), used - 8 * MIB);
	CHECK_EQ(tms_pause("weights"), 0);
	CHECK_EQ(device_used(0), used - 16 * MIB);
	CHECK_EQ(tms_resume("weights"), 0);
	CHECK_EQ(wrong_bytes(kept, 8 * MIB, 1), 0);
	CHECK_EQ(query(lost).state, STAYPUT_PAUSED);
	CHECK_EQ(tms_resume("kv_cache"), 0);
	CHECK_EQ(device_used(0), used);
	/* Fresh memory of the fake. */
	CHECK_EQ(bytes_other_than(lost, 8 * MIB, 0xa5), 0);
}

static void no_tag_and_an_empty_one_mean_all(void)
{
	static const char *const all[] = {NULL, ""};
	void *a = allocate_in("a", true, 4 * MIB), *b = allocate_in("b", false, 4 * MIB);

	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		CHECK_EQ(tms_pause(all[i]), 0);
		CHECK_EQ(query(a).state, STAYPUT_PAUSED);
		CHECK_EQ(query(b).state, STAYPUT_PAUSED);
		CHECK_EQ(tms_resume(all[i]), 0);
		CHECK_EQ(query(a).state, STAYPUT_ACTIVE);
		CHECK_EQ(query(b).state, STAYPUT_ACTIVE);
	}
}

static void what_is_in_the_state_already_is_skipped(void)
{
	void *a = allocate_in("a", true, 4 * MIB), *b = allocate_in("b", true, 4 * MIB);
	void *more;

	write_pattern(a, 4 * MIB, 3);
	catch_stderr();
	CHECK_EQ(tms_resume(NULL), 0);
	CHECK_EQ(tms_pause("a"), 0);
	CHECK_EQ(tms_pause("a"), 0);
	more = allocate_in("a", true, 4 * MIB);
	write_pattern(more, 4 * MIB, 4);
	CHECK_EQ(tms_pause(NULL), 0);
	CHECK_EQ(query(b).state, STAYPUT_PAUSED);
	CHECK_EQ(tms_resume("b"), 0);
	CHECK_EQ(tms_resume(NULL), 0);
	CHECK_EQ(tms_resume(NULL), 0);
	CHECK_EQ(wrong_bytes(a, 4 * MIB, 3), 0);
	CHECK_EQ(wrong_bytes(more, 4 * MIB, 4), 0);
	CHECK_EQ(tms_pause("nobody used this"), 0);
	CHECK_EQ(tms_resume("nobody used this"), 0);
	CHECK_EQ(strcmp(stderr_text(), ""), 0);
}

static void any_string_is_a_tag(void)
{
	static const char *const texts[] = {"kv cache", "weights/layer=0", "", "ünïcode",
		"kv_cache", "kv.cache", "kv;cache",
		"a tag that is longer than the sixty-three bytes that are allowed here, "
		"a",
		"a tag that is longer than the sixty-three bytes that are allowed here, "
		"b"};
	enum { TEXTS = sizeof texts / sizeof *texts };
	void *ptrs[TEXTS];

	for (int i = 0; i < TEXTS; i++) {
		begin(texts[i], true);
		CHECK_EQ(strcmp(tms_get_current_tag(), texts[i]), 0);
		ptrs[i] = allocate(4 * MIB);
		end();
		for (int j = 0; j < i; j++)
			CHECK(strcmp(query(ptrs[i]).tag, query(ptrs[j]).tag) != 0);
	}
	for (int i = 0; i < TEXTS; i++) {
		CHECK_EQ(tms_pause(texts[i]), 0);
		CHECK_EQ(query(ptrs[i]).state, STAYPUT_PAUSED);
		/* "" pauses all. */
		if (*texts[i])
			CHECK_EQ(region_info(query(ptrs[i]).tag).count_paused, 1);
		CHECK_EQ(tms_resume(texts[i]), 0);
	}
	CHECK_HAS(query(ptrs[0]).tag, "kv_cache:");
	catch_stderr();
	tms_set_current_tag("kv_cache");
	tms_set_current_tag(NULL);
	CHECK_HAS(stderr_text(), "the tag is still \"kv_cache\"");
}

static void strings_that_were_got_stay_valid(void)
{
	const char *tag, *backend;

	tms_set_current_tag("first");
	tag = tms_get_current_tag();
	backend = tms_get_cpu_backup_backend();
	for (int i = 0; i < 100; i++) {
		char other[16];

		snprintf(other, sizeof other, "other%d", i);
		tms_set_current_tag(other);
	}
	tms_set_cpu_backup_backend("mmap");
	CHECK_EQ(strcmp(tag, "first"), 0);
	CHECK_EQ(strcmp(backend, "pinned"), 0);
}

static void *look_at_own_state(void *unused)
{
	(void)unused;
	CHECK(!tms_get_interesting_region());
	CHECK(!tms_get_enable_cpu_backup());
	CHECK(!tms_get_enable_disk_backup());
	CHECK_EQ(strcmp(tms_get_current_tag(), "default"), 0);
	CHECK(is_native(allocate(4 * MIB)));
	begin("theirs", false);
	CHECK_EQ(strcmp(query(allocate(4 * MIB)).tag, "theirs"), 0);
	return NULL;
}

static void each_thread_has_its_own(void)
{
	pthread_t thread;

	begin("mine", true);
	tms_set_enable_disk_backup(true);
	CHECK_EQ(pthread_create(&thread, NULL, look_at_own_state, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(strcmp(tms_get_current_tag(), "mine"), 0);
	CHECK_EQ(strcmp(query(allocate(4 * MIB)).tag, "mine"), 0);
}

static void *storm(void *arg)
{
	for (int i = 0; i < 200; i++) {
		char tag[32];
		void *ptr;

		snprintf(tag, sizeof tag, "storm %d", (int)(i + (intptr_t)arg) % 20);
		begin(tag, false);
		ptr = allocate(64 * KIB);
		CHECK_EQ(strcmp(tms_get_current_tag(), tag), 0);
		end();
		tms_affected_devices(tag, NULL, 0);
		CUDA(cudaFree(ptr));
	}
	return NULL;
}

static void threads_use_the_same_tags_at_once(void)
{
	pthread_t threads[4];

	for (intptr_t i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, storm, (void *)i), 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < 20; i++) {
		char tag[32];

		snprintf(tag, sizeof tag, "storm %d", i);
		CHECK_EQ(tms_affected_devices(tag, NULL, 0), 0);
	}
}

static void an_open_push_wins(void)
{
	begin("tms", true);
	CHECK_EQ(strcmp(query(region_malloc("pushed", STAYPUT_ZERO, 4 * MIB)).tag,
			 "pushed"),
		0);
	OK(stayput_native_push());
	CHECK(is_native(allocate(4 * MIB)));
	OK(stayput_region_pop());
	CHECK_EQ(strcmp(query(allocate(4 * MIB)).tag, "tms"), 0);
}

static void outside_a_region_the_default_region_counts(void)
{
	setenv("STAYPUT_DEFAULT", "everything", 1);
	CHECK_EQ(strcmp(query(allocate(4 * MIB)).tag, "everything"), 0);
	CHECK_EQ(strcmp(query(allocate_in("tms", false, 4 * MIB)).tag, "tms"), 0);
}

static void the_environment_turns_it_on_and_disable_turns_it_off(void)
{
	void *on;

	setenv("TMS_INIT_ENABLE", "1", 1);
	setenv("TMS_INIT_ENABLE_CPU_BACKUP", "1", 1);
	setenv("STAYPUT_DEFAULT", "everything", 1);
	on = allocate(4 * MIB);
	CHECK_EQ(strcmp(query(on).tag, "default"), 0);
	CHECK_EQ(query(on).policy, STAYPUT_HOST);
	CHECK(tms_get_interesting_region());
	CHECK(tms_get_enable_cpu_backup());
	tms_set_interesting_region(false);
	CHECK(is_native(allocate(4 * MIB)));
	tms_set_interesting_region(true);
	CHECK(!is_native(allocate(4 * MIB)));
}

static void expect_enabled(const char *value, bool enabled, const char *complaint)
{
	pid_t child;
	int status;

	setenv("TMS_INIT_ENABLE", value, 1);
	child = fork();
	if (child == 0) {
		alarm(TEST_SECONDS);
		catch_stderr();
		CHECK_EQ(tms_get_interesting_region(), enabled);
		CHECK_EQ(is_native(allocate(4 * MIB)), !enabled);
		CHECK_HAS(stderr_text(), complaint);
		if (!*complaint)
			CHECK_EQ(strcmp(stderr_text(), ""), 0);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	if (status)
		dprintf(test_log, "with TMS_INIT_ENABLE=%s\n", value);
	CHECK_EQ(status, 0);
}

static void every_value_of_a_variable_is_answered(void)
{
	static const char *const on[] = {"1", "true", "True", "TRUE", "yes", "YES", "on"};
	static const char *const off[] = {"", "0", "false", "False", "no", "NO", "off"};
	static const char *const neither[] = {"2", "ture", "-1", " 1", "enabled"};

	for (size_t i = 0; i < sizeof on / sizeof *on; i++)
		expect_enabled(on[i], true, "");
	for (size_t i = 0; i < sizeof off / sizeof *off; i++)
		expect_enabled(off[i], false, "");
	for (size_t i = 0; i < sizeof neither / sizeof *neither; i++)
		expect_enabled(neither[i], false, "TMS_INIT_ENABLE: \"");
}

static void the_other_variables_are_answered_too(void)
{
	setenv("TMS_INIT_ENABLE_CPU_BACKUP", "maybe", 1);
	setenv("TMS_INIT_CPU_BACKUP_BACKEND", "tape", 1);
	setenv("TMS_RETAIN_CPU_BACKUP", "yes", 1);
	setenv("TMS_DISK_BACKUP_CHUNK_MB", "a few", 1);
	setenv("TMS_DISK_BACKUP_DIR", "/no/such/folder", 1);
	catch_stderr();
	CHECK(!tms_get_enable_cpu_backup());
	CHECK_EQ(strcmp(tms_get_cpu_backup_backend(), "pinned"), 0);
	CHECK(tms_get_retain_cpu_backup());
	CHECK_HAS(stderr_text(), "TMS_INIT_ENABLE_CPU_BACKUP: \"maybe\"");
	CHECK_HAS(stderr_text(), "TMS_INIT_CPU_BACKUP_BACKEND: \"tape\"");
	CHECK_HAS(stderr_text(), "TMS_DISK_BACKUP_CHUNK_MB: \"a few\"");
}

static void the_backend_comes_from_the_environment(void)
{
	setenv("TMS_INIT_CPU_BACKUP_BACKEND", "mmap", 1);
	CHECK_EQ(strcmp(tms_get_cpu_backup_backend(), "mmap"), 0);
	catch_stderr();
	tms_set_cpu_backup_backend("tape");
	CHECK_EQ(strcmp(tms_get_cpu_backup_backend(), "mmap"), 0);
	CHECK_HAS(stderr_text(), "\"tape\" is neither pinned nor mmap");
}

static void disk_backup_is_host_backup_and_one_warning(void)
{
	void *ptr;

	catch_stderr();
	tms_set_disk_backup_dir("/no/such/folder");
	tms_set_disk_backup_dir(NULL);
	tms_set_enable_disk_backup(true);
	tms_set_enable_disk_backup(false);
	allocate_in("weights", false, 4 * MIB);
	CHECK_EQ(strcmp(stderr_text(), ""), 0);
	tms_set_enable_disk_backup(true);
	ptr = allocate_in("weights", false, 4 * MIB);
	CHECK_HAS(stderr_text(), "disk backup was asked for");
	CHECK_EQ(ftruncate(STDERR_FILENO, 0), 0);
	CHECK_EQ(lseek(STDERR_FILENO, 0, SEEK_SET), 0);
	write_pattern(ptr, 4 * MIB, 5);
	allocate_in("more", false, 4 * MIB);
	CHECK_EQ(tms_pause(NULL), 0);
	CHECK_EQ(tms_resume(NULL), 0);
	CHECK_EQ(wrong_bytes(ptr, 4 * MIB, 5), 0);
	CHECK_EQ(query(ptr).policy, STAYPUT_HOST);
	CHECK_EQ(strcmp(stderr_text(), ""), 0);
}

static size_t wrong_in_host(const unsigned char *host, size_t size, unsigned seed)
{
	size_t wrong = 0;

	for (size_t i = 0; i < size; i++)
		wrong += host[i] != pattern_at(i, seed);
	return wrong;
}

static void the_backup_pointer_leads_to_the_paused_contents(void)
{
	uint8_t *kept = allocate_in("weights", true, 4 * MIB);
	uint8_t *lost = allocate_in("weights", false, 4 * MIB);
	uint8_t *small = allocate_in("weights", true, 5000);
	uint8_t *native = allocate(4096);

	write_pattern(kept, 4 * MIB, 6);
	write_pattern(small, 5000, 7);
	CHECK(!tms_get_cpu_backup_pointer(kept, 1));
	CHECK_EQ(tms_pause("weights"), 0);
	CHECK_EQ(wrong_in_host(tms_get_cpu_backup_pointer(kept, 4 * MIB), 4 * MIB, 6), 0);
	CHECK_EQ(wrong_in_host(tms_get_cpu_backup_pointer(small, 5000), 5000, 7), 0);
	CHECK(tms_get_cpu_backup_pointer(kept + MIB, 3 * MIB) ==
		tms_get_cpu_backup_pointer(kept, 1) + MIB);
	CHECK(!tms_get_cpu_backup_pointer(kept + MIB, 3 * MIB + 1));
	CHECK(!tms_get_cpu_backup_pointer(kept, UINT64_MAX));
	CHECK(!tms_get_cpu_backup_pointer(lost, 1));
	CHECK(!tms_get_cpu_backup_pointer(native, 1));
	CHECK(!tms_get_cpu_backup_pointer((uint8_t *)&kept, 1));
	CHECK(!tms_get_cpu_backup_pointer(NULL, 0));
	CHECK_EQ(tms_resume("weights"), 0);
	CHECK(!tms_get_cpu_backup_pointer(kept, 1));
}

static size_t host_bytes(void)
{
	return region_info("weights").bytes_backup;
}

static void without_retention_a_resume_gives_host_memory_back(void)
{
	struct fakecuda_report report;
	void *kept = allocate_in("weights", true, 8 * MIB);

	write_pattern(kept, 8 * MIB, 8);
	for (int cycle = 0; cycle < 3; cycle++) {
		CHECK_EQ(tms_pause(NULL), 0);
		CHECK(host_bytes() >= 8 * MIB);
		CHECK_EQ(tms_resume(NULL), 0);
		CHECK_EQ(host_bytes(), 0);
		fakecuda_report(&report);
		CHECK_EQ(report.host_registrations, 0);
		CHECK_EQ(wrong_bytes(kept, 8 * MIB, 8), 0);
	}
}

/* What is still paused is not touched. */
static void giving_back_spares_what_is_paused(void)
{
	void *a = allocate_in("a", true, 8 * MIB), *b = allocate_in("b", true, 8 * MIB);

	write_pattern(a, 8 * MIB, 9);
	write_pattern(b, 8 * MIB, 10);
	CHECK_EQ(tms_pause(NULL), 0);
	CHECK_EQ(tms_resume("a"), 0);
	CHECK_EQ(wrong_bytes(a, 8 * MIB, 9), 0);
	CHECK_EQ(wrong_in_host(tms_get_cpu_backup_pointer(b, 8 * MIB), 8 * MIB, 10), 0);
	CHECK_EQ(tms_resume("b"), 0);
	CHECK_EQ(wrong_bytes(b, 8 * MIB, 10), 0);
}

static void a_retained_backup_can_be_read_after_the_resume(void)
{
	uint8_t *kept, *later, *small, *neighbour;

	setenv("TMS_RETAIN_CPU_BACKUP", "1", 1);
	kept = allocate_in("weights", true, 8 * MIB);
	small = allocate_in("weights", true, 4096);
	write_pattern(kept, 8 * MIB, 11);
	CHECK_EQ(tms_pause(NULL), 0);
	CHECK_EQ(tms_resume(NULL), 0);
	CHECK_EQ(
		wrong_in_host(tms_get_cpu_backup_pointer(kept, 8 * MIB), 8 * MIB, 11), 0);
	CHECK(tms_get_cpu_backup_pointer(small, 4096));
	CHECK(!tms_get_cpu_backup_pointer(kept, 8 * MIB + 1));
	/* What came after the pause has none, in a block that has one too. */
	later = allocate_in("weights", true, 8 * MIB);
	neighbour = allocate_in("weights", true, 4096);
	CHECK(!tms_get_cpu_backup_pointer(later, 1));
	CHECK(!tms_get_cpu_backup_pointer(neighbour, 1));
	/* The wish counts at the next resume. */
	tms_set_retain_cpu_backup(false);
	CHECK(host_bytes() > 0);
	CHECK_EQ(tms_resume(NULL), 0);
	CHECK_EQ(host_bytes(), 0);
	tms_set_retain_cpu_backup(true);
	CHECK(!tms_get_cpu_backup_pointer(kept, 1));
}

static void the_margin_stays_free(void)
{
	void *ptr = NULL;

	CUDA(cudaFree(0));
	fakecuda_budget(0, 256 * MIB);
	begin("kv", false);
	CHECK_EQ(query(allocate(4 * MIB)).size, 4 * MIB);
	set_memory_margin_bytes(200 * MIB);
	catch_stderr();
	CHECK_EQ(cudaMalloc(&ptr, 60 * MIB), cudaErrorMemoryAllocation);
	CHECK_EQ(cudaGetLastError(), cudaSuccess);
	CHECK(!ptr);
	CHECK_EQ(strcmp(stderr_text(), ""), 0);
	CUDA(cudaMalloc(&ptr, 52 * MIB));
	CHECK_EQ(cudaMalloc(&ptr, 2 * MIB + 1), cudaErrorMemoryAllocation);
	set_memory_margin_bytes(UINT64_MAX);
	CHECK_EQ(cudaMalloc(&ptr, 4 * MIB), cudaErrorMemoryAllocation);
	set_memory_margin_bytes(0);
	CUDA(cudaMalloc(&ptr, 100 * MIB));
	set_memory_margin_bytes(200 * MIB);
	/* Not a matter of native memory, nor of coming back. */
	tms_set_interesting_region(false);
	CUDA(cudaMalloc(&ptr, 4 * MIB));
	CHECK_EQ(tms_pause("kv"), 0);
	CHECK_EQ(tms_resume("kv"), 0);
}

static void the_margin_is_on_the_allocations_device(void)
{
	void *ptr;

	setenv("FAKECUDA_DEVICES", "2", 1);
	CUDA(cudaFree(0));
	fakecuda_budget(0, 256 * MIB);
	set_memory_margin_bytes(200 * MIB);
	CUDA(cudaSetDevice(1));
	begin("kv", false);
	CUDA(cudaMalloc(&ptr, 100 * MIB));
	CUDA(cudaSetDevice(0));
	CHECK_EQ(cudaMalloc(&ptr, 100 * MIB), cudaErrorMemoryAllocation);
	CHECK(!tms_torch_malloc(100 * MIB, 0, NULL));
	ptr = tms_torch_malloc(100 * MIB, 1, NULL);
	CHECK_EQ(query(ptr).device, 1);
}

static void affected_devices_are_those_with_memory(void)
{
	int found[2] = {-1, -1};
	void *ptr;

	setenv("FAKECUDA_DEVICES", "2", 1);
	CHECK_EQ(tms_affected_devices(NULL, NULL, 0), 0);
	begin("both tags", true);
	CUDA(cudaSetDevice(1));
	ptr = allocate(4 * MIB);
	CHECK_EQ(tms_affected_devices("both tags", found, 2), 1);
	CHECK_EQ(found[0], 1);
	CHECK_EQ(found[1], -1);
	CUDA(cudaSetDevice(0));
	allocate(4096);
	CHECK_EQ(tms_affected_devices("both tags", NULL, 0), 2);
	CHECK_EQ(tms_affected_devices("", found, 2), 2);
	CHECK_EQ(found[0], 0);
	CHECK_EQ(found[1], 1);
	CHECK_EQ(tms_pause(NULL), 0);
	found[0] = found[1] = -1;
	CHECK_EQ(tms_affected_devices(NULL, found, 1), 2);
	CHECK_EQ(found[0], 0);
	CHECK_EQ(found[1], -1);
	CUDA(cudaFree(ptr));
	CHECK_EQ(tms_affected_devices("both tags", NULL, 0), 1);
	CHECK_EQ(tms_affected_devices("others", NULL, 0), 0);
}

static void the_names_of_old_versions_work(void)
{
	void *ptr;

	tms_set_current_tag("old");
	tms_region_enter();
	ptr = allocate(4 * MIB);
	tms_set_current_tag("default");
	tms_region_leave();
	CHECK_EQ(strcmp(query(ptr).tag, "old"), 0);
	CHECK(is_native(allocate(4 * MIB)));
}

static void pytorch_allocates_in_the_threads_region_or_native(void)
{
	void *region, *native;

	CUDA(cudaFree(0));
	begin("kv", true);
	region = tms_torch_malloc(4 * MIB, 0, NULL);
	end();
	native = tms_torch_malloc(4 * MIB, 0, NULL);
	CHECK_EQ(strcmp(query(region).tag, "kv"), 0);
	CHECK(native && is_native(native));
	CHECK(!tms_torch_malloc(64 * GIB, 0, NULL));
	CHECK(!tms_torch_malloc(0, 0, NULL));
	CHECK(!tms_torch_malloc(4 * MIB, 7, NULL));
	CHECK_EQ(tms_pause(NULL), 0);
	tms_torch_free(region, 4 * MIB, 0, NULL);
	tms_torch_free(native, 4 * MIB, 0, NULL);
	tms_torch_free(NULL, 0, 0, NULL);
	CHECK_EQ(device_used(0), 0);
	catch_stderr();
	tms_torch_free(native, 4 * MIB, 0, NULL);
	CHECK_HAS(stderr_text(), "was not freed");
}

static void a_resume_without_memory_says_so_and_can_be_repeated(void)
{
	void *ptr = allocate_in("weights", true, 64 * MIB), *other;

	write_pattern(ptr, 64 * MIB, 12);
	CHECK_EQ(tms_pause(NULL), 0);
	fakecuda_budget(0, 32 * MIB);
	catch_stderr();
	CHECK_EQ(tms_resume(NULL), STAYPUT_ERR_DEVICE_MEMORY);
	CHECK_HAS(stderr_text(), "tms_resume(NULL) failed: ");
	CHECK_HAS(stderr_text(), "weights");
	CHECK(tms_get_cpu_backup_pointer(ptr, 1));
	fakecuda_budget(0, 1 * GIB);
	CHECK_EQ(tms_resume(NULL), 0);
	CHECK_EQ(wrong_bytes(ptr, 64 * MIB, 12), 0);
	other = allocate(4 * MIB);
	CUDA(cudaFree(other));
}

static void a_pause_during_a_capture_says_so(void)
{
	cudaStream_t stream;
	cudaGraph_t graph;

	allocate_in("kv", false, 4 * MIB);
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	catch_stderr();
	CHECK_EQ(tms_pause("kv"), STAYPUT_ERR_BUSY);
	CHECK_HAS(stderr_text(), "tms_pause(kv) failed: a stream capture is in progress");
	CUDA(cudaStreamEndCapture(stream, &graph));
	CHECK_EQ(tms_pause("kv"), 0);
}

/* One cycle of everything, in which any call may fail. */
static void live_through_failures(void *ptrs[3])
{
	begin("weights", true);
	cudaMalloc(&ptrs[0], 4 * MIB);
	begin("kv", false);
	cudaMalloc(&ptrs[1], 4096);
	ptrs[2] = tms_torch_malloc(4 * MIB, 0, NULL);
	end();
	tms_pause("kv");
	tms_pause(NULL);
	if (ptrs[0])
		tms_get_cpu_backup_pointer(ptrs[0], 4096);
	tms_resume("weights");
	tms_resume(NULL);
}

static void no_failure_of_the_driver_ends_the_process(void)
{
	unsigned long failed;
	char order[64];
	void *ptrs[3];
	int n = 0;

	catch_stderr();
	CUDA(cudaFree(0));
	set_memory_margin_bytes(1);
	do {
		snprintf(order, sizeof order, "*:%d:OUT_OF_MEMORY", ++n);
		fakecuda_fail(order);
		memset(ptrs, 0, sizeof ptrs);
		live_through_failures(ptrs);
		failed = fakecuda_failed();
		fakecuda_fail(NULL);
		CHECK_EQ(tms_resume(NULL), 0);
		for (int i = 0; i < 3; i++)
			tms_torch_free(ptrs[i], 4 * MIB, 0, NULL);
	} while (failed > 0 && n < 2000);
	CHECK(n > 20 && n < 2000);
	CHECK_EQ(tms_affected_devices(NULL, NULL, 0), 0);
	CHECK_EQ(device_used(0), 0);
	CHECK_EQ(faults(), 0);
}

static void a_forked_child_is_answered(void)
{
	void *ptr = allocate_in("kv", true, 4 * MIB);
	pid_t child;
	int status;

	CHECK_EQ(tms_pause(NULL), 0);
	child = fork();
	if (child == 0) {
		alarm(TEST_SECONDS);
		catch_stderr();
		CHECK_EQ(tms_pause(NULL), STAYPUT_ERR_UNSUPPORTED);
		CHECK_EQ(tms_resume("kv"), STAYPUT_ERR_UNSUPPORTED);
		CHECK(!tms_get_cpu_backup_pointer(ptr, 1));
		begin("new tag", true);
		CHECK(!tms_torch_malloc(4 * MIB, 0, NULL));
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(tms_resume(NULL), 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_thread_begins_with_nothing_set),
		TEST(what_is_set_is_what_is_got),
		TEST(memory_gets_tag_and_policy),
		TEST(the_environments_policies_win),
		TEST(pause_gives_memory_back_and_contents_come_again),
		TEST(no_tag_and_an_empty_one_mean_all),
		TEST(what_is_in_the_state_already_is_skipped),
		TEST(any_string_is_a_tag),
		TEST(strings_that_were_got_stay_valid),
		TEST(each_thread_has_its_own),
		TEST(threads_use_the_same_tags_at_once),
		TEST(an_open_push_wins),
		TEST(outside_a_region_the_default_region_counts),
		TEST(the_environment_turns_it_on_and_disable_turns_it_off),
		TEST(every_value_of_a_variable_is_answered),
		TEST(the_other_variables_are_answered_too),
		TEST(the_backend_comes_from_the_environment),
		TEST(disk_backup_is_host_backup_and_one_warning),
		TEST(the_backup_pointer_leads_to_the_paused_contents),
		TEST(without_retention_a_resume_gives_host_memory_back),
		TEST(giving_back_spares_what_is_paused),
		TEST(a_retained_backup_can_be_read_after_the_resume),
		TEST(the_margin_stays_free),
		TEST(the_margin_is_on_the_allocations_device),
		TEST(affected_devices_are_those_with_memory),
		TEST(the_names_of_old_versions_work),
		TEST(pytorch_allocates_in_the_threads_region_or_native),
		TEST(a_resume_without_memory_says_so_and_can_be_repeated),
		TEST(a_pause_during_a_capture_says_so),
		TEST(no_failure_of_the_driver_ends_the_process),
		TEST(a_forked_child_is_answered),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
