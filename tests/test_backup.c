/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory of backups, what is copied and what is not, and what happens when some of
 * it cannot be had. The fake driver runs the digest kernel's reference. */
#include <signal.h>
#include <sys/stat.h>

#include "digest_constants.h"
#include "digest_reference.h"
#include "hostmem.h"
#include "support.h"

static struct stayput_report pause_report(void)
{
	struct stayput_report report = {.struct_size = sizeof report};

	OK(stayput_pause_ex(NULL, 0, NULL, &report));
	return report;
}

static struct stayput_report resume_report(void)
{
	struct stayput_report report = {.struct_size = sizeof report};

	OK(stayput_resume_ex(NULL, 0, NULL, &report));
	return report;
}

/* Memory of the pools, and of that what nothing lies in. */
static size_t host_bytes(const char *name)
{
	char json[8192], key[64], *at;

	snprintf(key, sizeof key, "\"%s\":", name);
	CHECK(stayput_snapshot_json(json, sizeof json) < sizeof json);
	at = strstr(json, key);
	CHECK(at);
	return strtoull(at + strlen(key), NULL, 10);
}

static size_t registrations(void)
{
	struct fakecuda_report report;

	fakecuda_report(&report);
	return report.host_registrations;
}

static void the_digest_depends_on_every_bit_and_its_place(void)
{
	static unsigned char piece[DIGEST_PIECE];
	struct digest zero = digest_reference(piece), one, other;

	for (size_t i = 0; i < DIGEST_PIECE; i += 104729) {
		piece[i] = 1;
		one = digest_reference(piece);
		CHECK(one.a != zero.a);
		CHECK(one.b != zero.b);
		piece[i] = 0;
		piece[(i + 16) % DIGEST_PIECE] = 1;
		other = digest_reference(piece);
		CHECK(one.a != other.a && one.b != other.b);
		piece[(i + 16) % DIGEST_PIECE] = 0;
	}
	CHECK_EQ(digest_reference(piece).a, zero.a);
}

static void flip(unsigned char *piece, size_t at, int count, const size_t *offsets)
{
	for (int i = 0; i < count; i++)
		piece[at + offsets[i]] ^= 0x80;
}

/* Changes of topmost bits in neighbouring words, as sign flips of floats are. */
static void the_digest_sees_several_signs_change(void)
{
	static const size_t patterns[][3] = {{7, 11, 4096 + 7}, {15, 4096 + 3, 4096 + 15},
		{7, 4096 + 7, 8192 + 7}, {7, 15, 4096 + 7}, {3, 7, 11}};
	static unsigned char piece[DIGEST_PIECE];
	struct digest before, after;

	for (size_t i = 0; i < DIGEST_PIECE; i++)
		piece[i] = pattern_at(i, 77);
	before = digest_reference(piece);
	for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
		for (size_t at = 0; at < DIGEST_PIECE - 16384; at += 16 * 9973) {
			flip(piece, at, 3, patterns[p]);
			after = digest_reference(piece);
			CHECK(after.a != before.a);
			CHECK(after.b != before.b);
			flip(piece, at, 3, patterns[p]);
		}
}

static void unchanged_memory_is_not_copied_again(void)
{
	char *p = region_malloc("w", STAYPUT_HOST, 20 * MIB);
	struct stayput_report report;

	write_pattern(p, 20 * MIB, 1);
	report = pause_report();
	CHECK_EQ(report.total.bytes_copied, 20 * MIB);
	CHECK_EQ(report.total.bytes_unchanged, 0);
	resume_report();
	report = pause_report();
	CHECK_EQ(report.total.bytes_copied, 0);
	CHECK_EQ(report.total.bytes_unchanged, 20 * MIB);
	CHECK_EQ(report.total.bytes_released, 20 * MIB);
	CHECK(report.total.copied_per_second == 0);
	report = resume_report();
	CHECK_EQ(report.total.bytes_copied, 20 * MIB);
	CHECK(report.total.copied_per_second > 0);
	/* Over all the time that copies had, not only that in which nothing else was done. */
	CHECK(report.total.copied_per_second *
			(report.total.seconds_copy + report.total.seconds_map) <=
		report.total.bytes_copied);
	CHECK(report.total.seconds_copy <= report.seconds);
	CHECK_EQ(wrong_bytes(p, 20 * MIB, 1), 0);
}

static void one_changed_byte_copies_its_piece(void)
{
	char *p = region_malloc("w", STAYPUT_HOST, 20 * MIB);
	struct stayput_report report;

	write_pattern(p, 20 * MIB, 1);
	pause_report();
	resume_report();
	CUDA(cudaMemset(p + 7 * MIB, 0, 1));
	CUDA(cudaMemset(p + 20 * MIB - 1, 0, 1));
	report = pause_report();
	CHECK_EQ(report.total.bytes_copied, 4 * MIB);
	CHECK_EQ(report.total.bytes_unchanged, 16 * MIB);
	resume_report();
	CHECK_EQ(wrong_bytes(p, 7 * MIB, 1), 0);
	CHECK_EQ(bytes_other_than(p + 7 * MIB, 1, 0), 0);
	CHECK_EQ(bytes_other_than(p + 20 * MIB - 1, 1, 0), 0);
}

static void memory_allocated_anew_starts_without_a_backup(void)
{
	char *p = region_malloc("w", STAYPUT_HOST, 4 * MIB), *again;
	struct stayput_report report;

	write_pattern(p, 4 * MIB, 1);
	pause_report();
	resume_report();
	CUDA(cudaFree(p));
	again = region_malloc("w", STAYPUT_HOST, 4 * MIB);
	CHECK(again == p);
	write_pattern(again, 4 * MIB, 1);
	report = pause_report();
	CHECK_EQ(report.total.bytes_copied, 4 * MIB);
	CHECK_EQ(host_bytes("host_bytes"), 4 * MIB);
}

static void without_the_kernel_everything_is_copied(void)
{
	char *p;
	struct stayput_report report;

	setenv("FAKECUDA_JIT", "0", 1);
	p = region_malloc("w", STAYPUT_HOST, 20 * MIB);
	write_pattern(p, 20 * MIB, 1);
	for (int i = 0; i < 3; i++) {
		report = pause_report();
		CHECK_EQ(report.total.bytes_copied, 20 * MIB);
		resume_report();
	}
	CHECK_EQ(wrong_bytes(p, 20 * MIB, 1), 0);
}

static void a_discarding_pause_leaves_the_backup_usable(void)
{
	char *p = region_malloc("w", STAYPUT_HOST, 4 * MIB);
	struct stayput_options options = {
		.struct_size = sizeof options, .policy = STAYPUT_DISCARD};

	write_pattern(p, 4 * MIB, 1);
	pause_report();
	resume_report();
	OK(stayput_pause_ex(NULL, 0, &options, NULL));
	CHECK(!stayput_host_copy(p, 1));
	resume_report();
	CHECK(wrong_bytes(p, 4 * MIB, 1) > 0);
	write_pattern(p, 4 * MIB, 2);
	pause_report();
	resume_report();
	CHECK_EQ(wrong_bytes(p, 4 * MIB, 2), 0);
}

static void verification_finds_what_differs(void)
{
	char *p;
	unsigned char *copy;

	setenv("STAYPUT_VERIFY", "1", 1);
	p = region_malloc("w", STAYPUT_HOST, 20 * MIB);
	write_pattern(p, 20 * MIB, 1);
	pause_report();
	/* What no program may do: the contents are damaged where they are kept. */
	copy = (unsigned char *)(uintptr_t)stayput_host_copy(p + 9 * MIB, 1);
	*copy ^= 1;
	CHECK_EQ(stayput_resume("w"), STAYPUT_ERR_CORRUPT);
	CHECK_HAS(stayput_last_error(), "region w, device 0");
	CHECK_EQ(query(p).state, STAYPUT_PAUSED);
	CHECK_EQ(device_used(0), 0);
	*copy ^= 1;
	OK(stayput_resume("w"));
	CHECK_EQ(wrong_bytes(p, 20 * MIB, 1), 0);
}

static void host_memory_is_exact_and_kept_between_cycles(void)
{
	char *p[30];

	for (int i = 0; i < 30; i++) {
		p[i] = region_malloc("w", STAYPUT_HOST, 6 * MIB);
		write_pattern(p[i], 6 * MIB, i);
	}
	for (int cycle = 0; cycle < 3; cycle++) {
		pause_report();
		CHECK_EQ(host_bytes("host_bytes"), 180 * MIB);
		CHECK_EQ(host_bytes("host_bytes_idle"), 0);
		CHECK_EQ(registrations(), 3);
		resume_report();
	}
	for (int i = 0; i < 30; i++) {
		CHECK_EQ(wrong_bytes(p[i], 6 * MIB, i), 0);
		CUDA(cudaFree(p[i]));
	}
	CHECK_EQ(host_bytes("host_bytes"), 180 * MIB);
	CHECK_EQ(host_bytes("host_bytes_idle"), 180 * MIB);
	region_malloc("w", STAYPUT_HOST, 100 * MIB);
	pause_report();
	CHECK_EQ(host_bytes("host_bytes"), 180 * MIB);
}

static void trim_gives_back_all_but_paused_contents(void)
{
	char *stays = region_malloc("paused", STAYPUT_HOST, 70 * MIB);
	char *p = region_malloc("active", STAYPUT_HOST, 100 * MIB);

	write_pattern(stays, 70 * MIB, 1);
	write_pattern(p, 100 * MIB, 2);
	OK(stayput_pause("paused"));
	OK(stayput_pause("active"));
	OK(stayput_resume("active"));
	OK(stayput_host_trim(150 * MIB));
	CHECK(host_bytes("host_bytes") >= 70 * MIB);
	CHECK(host_bytes("host_bytes") <= 150 * MIB);
	OK(stayput_host_trim(0));
	CHECK_EQ(host_bytes("host_bytes"), 70 * MIB);
	OK(stayput_pause("active"));
	OK(stayput_resume(NULL));
	CHECK_EQ(wrong_bytes(stays, 70 * MIB, 1), 0);
	CHECK_EQ(wrong_bytes(p, 100 * MIB, 2), 0);
	OK(stayput_host_trim(0));
	CHECK_EQ(host_bytes("host_bytes"), 0);
	CHECK_EQ(registrations(), 0);
}

static void nothing_is_kept_when_the_environment_says_so(void)
{
	char *p;

	setenv("STAYPUT_HOST_KEEP", "0", 1);
	p = region_malloc("w", STAYPUT_HOST, 100 * MIB);
	write_pattern(p, 100 * MIB, 1);
	for (int i = 0; i < 3; i++) {
		pause_report();
		CHECK_EQ(host_bytes("host_bytes"), 100 * MIB);
		resume_report();
		CHECK_EQ(host_bytes("host_bytes"), 0);
	}
	CHECK_EQ(wrong_bytes(p, 100 * MIB, 1), 0);
	pause_report();
	CUDA(cudaFree(p));
	CHECK_EQ(host_bytes("host_bytes"), 0);
}

static void reserved_memory_is_what_the_pause_uses(void)
{
	char *p = region_malloc("w", STAYPUT_HOST, 100 * MIB);

	write_pattern(p, 100 * MIB, 1);
	CHECK_EQ(stayput_host_reserve("unknown"), STAYPUT_ERR_NOT_FOUND);
	CHECK_EQ(stayput_host_reserve("un/known"), STAYPUT_ERR_INVALID);
	OK(stayput_host_reserve("w"));
	while (host_bytes("host_bytes_idle") < 100 * MIB)
		sched_yield();
	OK(stayput_host_reserve("w"));
	CHECK_EQ(host_bytes("host_bytes"), 100 * MIB);
	pause_report();
	CHECK_EQ(host_bytes("host_bytes"), 100 * MIB);
	CHECK_EQ(host_bytes("host_bytes_idle"), 0);
	resume_report();
	CHECK_EQ(wrong_bytes(p, 100 * MIB, 1), 0);
}

static void a_pause_right_after_reserving_waits_for_the_memory(void)
{
	char *p = region_malloc("w", STAYPUT_HOST, 200 * MIB);

	write_pattern(p, 200 * MIB, 1);
	OK(stayput_host_reserve(NULL));
	pause_report();
	CHECK_EQ(host_bytes("host_bytes"), 200 * MIB);
	resume_report();
	CHECK_EQ(wrong_bytes(p, 200 * MIB, 1), 0);
}

static void reserving_again_pins_nothing_more(void)
{
	region_malloc("a", STAYPUT_HOST, 100 * MIB);
	region_malloc("b", STAYPUT_HOST, 50 * MIB);
	for (int i = 0; i < 3; i++)
		OK(stayput_host_reserve("a"));
	while (host_bytes("host_bytes_idle") < 100 * MIB)
		sched_yield();
	CHECK_EQ(host_bytes("host_bytes"), 100 * MIB);
	OK(stayput_host_reserve("b"));
	while (host_bytes("host_bytes_idle") < 150 * MIB)
		sched_yield();
	CHECK_EQ(host_bytes("host_bytes"), 150 * MIB);
}

static void the_limit_counts_what_is_on_its_way(void)
{
	setenv("STAYPUT_HOST_LIMIT", "120MiB", 1);
	region_malloc("a", STAYPUT_HOST, 100 * MIB);
	region_malloc("b", STAYPUT_HOST, 100 * MIB);
	OK(stayput_host_reserve("a"));
	CHECK_EQ(stayput_host_reserve("b"), STAYPUT_ERR_HOST_MEMORY);
	CHECK(host_bytes("host_bytes") <= 120 * MIB);
}

static void discarded_contents_have_no_claim_to_host_memory(void)
{
	struct stayput_options options = {
		.struct_size = sizeof options, .policy = STAYPUT_DISCARD};

	region_malloc("w", STAYPUT_HOST, 100 * MIB);
	pause_report();
	resume_report();
	OK(stayput_pause_ex(NULL, 0, &options, NULL));
	OK(stayput_host_trim(0));
	CHECK_EQ(host_bytes("host_bytes"), 0);
	resume_report();
}

static void trim_goes_below_the_pieces_that_backups_share(void)
{
	region_malloc("w", STAYPUT_HOST, 30 * MIB);
	region_malloc("w", STAYPUT_HOST, 30 * MIB);
	pause_report();
	resume_report();
	OK(stayput_host_trim(40 * MIB));
	CHECK(host_bytes("host_bytes") <= 40 * MIB);
}

static void a_refused_pause_costs_others_nothing(void)
{
	setenv("STAYPUT_HOST_LIMIT", "120MiB", 1);
	region_malloc("small", STAYPUT_HOST, 20 * MIB);
	region_malloc("huge", STAYPUT_HOST, 200 * MIB);
	OK(stayput_pause("small"));
	OK(stayput_resume("small"));
	CHECK_EQ(stayput_pause("huge"), STAYPUT_ERR_HOST_MEMORY);
	CHECK_EQ(region_info("small").bytes_backup, 20 * MIB);
	CHECK_EQ(host_bytes("host_bytes"), 20 * MIB);
}

/* Places of later blocks lie below those of earlier ones, in holes that a trim has left. */
static void places_in_holes_are_waited_for(void)
{
	static const size_t sizes[] = {44 * MIB, 40 * MIB, 40 * MIB};
	char *h[2], *c[3];

	setenv("STAYPUT_THREADS", "1", 1);
	setenv("FAKECUDA_JIT", "0", 1);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2; i++) {
			h[i] = region_malloc("hole", STAYPUT_HOST, 40 * MIB);
			OK(stayput_pause("hole"));
			write_pattern(region_malloc("wall", STAYPUT_HOST, 4 * MIB), 4, 1);
			OK(stayput_pause("wall"));
		}
		OK(stayput_resume("hole"));
		OK(stayput_host_trim(0));
		CUDA(cudaFree(h[0]));
		CUDA(cudaFree(h[1]));
		for (int i = 0; i < 3; i++) {
			c[i] = region_malloc("c", STAYPUT_HOST, sizes[i]);
			write_pattern(c[i], sizes[i], i);
		}
		OK(stayput_pause("c"));
		OK(stayput_resume("c"));
		for (int i = 0; i < 3; i++) {
			CHECK_EQ(wrong_bytes(c[i], sizes[i], i), 0);
			CUDA(cudaFree(c[i]));
		}
	}
}

static void backups_of_active_memory_make_room_for_others(void)
{
	char *a, *b;

	setenv("STAYPUT_HOST_LIMIT", "120MiB", 1);
	a = region_malloc("a", STAYPUT_HOST, 100 * MIB);
	b = region_malloc("b", STAYPUT_HOST, 64 * MIB);
	write_pattern(a, 100 * MIB, 1);
	write_pattern(b, 64 * MIB, 2);
	for (int i = 0; i < 3; i++) {
		OK(stayput_pause("a"));
		CHECK_EQ(stayput_pause("b"), STAYPUT_ERR_HOST_MEMORY);
		OK(stayput_resume("a"));
		OK(stayput_pause("b"));
		CHECK(host_bytes("host_bytes") <= 120 * MIB);
		OK(stayput_resume("b"));
	}
	CHECK_EQ(wrong_bytes(a, 100 * MIB, 1), 0);
	CHECK_EQ(wrong_bytes(b, 64 * MIB, 2), 0);
	CHECK_EQ(stayput_host_reserve("a"), STAYPUT_OK);
	region_malloc("a", STAYPUT_HOST, 100 * MIB);
	CHECK_EQ(stayput_host_reserve("a"), STAYPUT_ERR_HOST_MEMORY);
}

static void memory_that_cannot_be_pinned_is_used_all_the_same(void)
{
	char *p = region_malloc("w", STAYPUT_HOST, 200 * MIB);

	catch_stderr();
	write_pattern(p, 200 * MIB, 1);
	fakecuda_fail("cuMemHostRegister:2:OPERATING_SYSTEM;cuMemHostRegister:3:"
		      "OPERATING_SYSTEM");
	pause_report();
	CHECK_EQ(registrations(), 2);
	CHECK_HAS(stderr_text(), "cannot be pinned");
	CHECK(!strstr(strstr(stderr_text(), "cannot be pinned") + 1, "cannot be pinned"));
	resume_report();
	CHECK_EQ(wrong_bytes(p, 200 * MIB, 1), 0);
	write_pattern(p, 200 * MIB, 2);
	fakecuda_fail("cuMemHostAlloc:*:OUT_OF_MEMORY");
	pause_report();
	resume_report();
	fakecuda_fail(NULL);
	CHECK_EQ(wrong_bytes(p, 200 * MIB, 2), 0);
	CHECK_EQ(faults(), 0);
}

static void put_file(const char *root, const char *path, const char *text)
{
	char full[512];
	FILE *file;

	snprintf(full, sizeof full, "%s%s", root, path);
	for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/'));
		slash++) {
		*slash = '\0';
		mkdir(full, 0700);
		*slash = '/';
	}
	file = fopen(full, "w");
	CHECK(file);
	CHECK(fputs(text, file) >= 0);
	CHECK_EQ(fclose(file), 0);
}

static void the_tightest_limit_counts(void)
{
	char root[] = "/tmp/stayput-XXXXXX", command[64];

	CHECK(mkdtemp(root));
	CHECK_EQ(hostmem_available(root), SIZE_MAX);
	put_file(root, "/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
	CHECK_EQ(hostmem_available(root), 8000 * KIB);
	put_file(root, "/proc/self/cgroup", "5:cpu,memory:/job/one\n0::/user/task\n");
	CHECK_EQ(hostmem_available(root), 8000 * KIB);
	put_file(root, "/sys/fs/cgroup/user/task/memory.max", "max\n");
	put_file(root, "/sys/fs/cgroup/user/task/memory.current", "100\n");
	CHECK_EQ(hostmem_available(root), 8000 * KIB);
	put_file(root, "/sys/fs/cgroup/user/memory.max", "4096000\n");
	put_file(root, "/sys/fs/cgroup/user/memory.current", "3000000\n");
	CHECK_EQ(hostmem_available(root), 1096000);
	put_file(root, "/sys/fs/cgroup/user/memory.stat",
		"anon 5\ninactive_file 500000\nactive_file 7\n");
	CHECK_EQ(hostmem_available(root), 1596000);
	put_file(
		root, "/sys/fs/cgroup/memory/job/one/memory.limit_in_bytes", "1000000\n");
	put_file(root, "/sys/fs/cgroup/memory/job/one/memory.usage_in_bytes", "999000\n");
	CHECK_EQ(hostmem_available(root), 1000);
	put_file(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n");
	put_file(root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "600\n");
	CHECK_EQ(hostmem_available(root), 0);
	snprintf(command, sizeof command, "rm -rf %s", root);
	CHECK_EQ(system(command), 0);
}

enum { BLOCKS = 12 };

/* 12 x 20 MiB: several batches and several pieces. */
static void make_blocks(char *p[BLOCKS])
{
	for (int i = 0; i < BLOCKS; i++) {
		p[i] = region_malloc("w", STAYPUT_HOST, 20 * MIB);
		write_pattern(p[i], 20 * MIB, i);
	}
}

static void check_blocks(char *p[BLOCKS])
{
	for (int i = 0; i < BLOCKS; i++)
		CHECK_EQ(wrong_bytes(p[i], 20 * MIB, i), 0);
}

static void a_copy_that_fails_loses_nothing(void)
{
	char *p[BLOCKS], spec[64];
	bool failed = true;

	make_blocks(p);
	for (int n = 1; failed; n += 2) {
		struct stayput_report report = {.struct_size = sizeof report};
		int paused = 0, err;

		snprintf(spec, sizeof spec, "cuMemcpyDtoHAsync:%d:UNKNOWN", n);
		fakecuda_fail(spec);
		err = stayput_pause_ex(NULL, 0, NULL, &report);
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		CHECK_EQ(err, failed ? STAYPUT_ERR_DRIVER : STAYPUT_OK);
		if (failed)
			CHECK_HAS(stayput_last_error(), "copying to the host");
		for (int i = 0; i < BLOCKS; i++)
			paused += query(p[i]).state == STAYPUT_PAUSED;
		CHECK_EQ(paused, report.allocations);
		CHECK_EQ(BLOCKS - paused, report.failed);
		CHECK_EQ(device_used(0), (BLOCKS - paused) * 20 * MIB);
		resume_report();
		check_blocks(p);
		OK(stayput_host_trim(0));
		CHECK_EQ(host_bytes("host_bytes"), 0);
	}
}

static void a_create_that_fails_leaves_all_paused(void)
{
	char *p[BLOCKS], spec[64];

	make_blocks(p);
	pause_report();
	for (int n = 1; n <= BLOCKS; n++) {
		snprintf(spec, sizeof spec, "cuMemCreate:%d:OUT_OF_MEMORY", n);
		fakecuda_fail(spec);
		CHECK_EQ(stayput_resume(NULL), STAYPUT_ERR_DEVICE_MEMORY);
		fakecuda_fail(NULL);
		CHECK_EQ(device_used(0), 0);
		CHECK_EQ(region_info("w").count_paused, BLOCKS);
	}
	resume_report();
	check_blocks(p);
	CHECK_EQ(faults(), 0);
}

static void a_resume_that_cannot_be_taken_back_leaves_all_paused(void)
{
	char *p[BLOCKS];

	make_blocks(p);
	pause_report();
	fakecuda_fail("cuMemCreate:6:OUT_OF_MEMORY;cuMemUnmap:*:UNKNOWN");
	CHECK_EQ(stayput_resume(NULL), STAYPUT_ERR_DEVICE_MEMORY);
	CHECK_EQ(region_info("w").count_paused, BLOCKS);
	CHECK_EQ(stayput_resume(NULL), STAYPUT_ERR_DRIVER);
	CHECK_EQ(region_info("w").count_paused, BLOCKS);
	fakecuda_fail(NULL);
	resume_report();
	check_blocks(p);
	CHECK_EQ(device_used(0), BLOCKS * 20 * MIB);
}

enum { SLOTS = 40 };

struct slot {
	char *ptr;
	size_t size;
	unsigned seed;
};

static unsigned next_random(unsigned *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

static void free_slot(struct slot *slot)
{
	if (slot->ptr)
		CUDA(cudaFree(slot->ptr));
	slot->ptr = NULL;
}

/* New contents, often in new memory: always when the old is paused. */
static void change_slot(struct slot *slot, unsigned *random)
{
	if (slot->ptr && (query(slot->ptr).state == STAYPUT_PAUSED ||
				 next_random(random) % 3 == 0))
		free_slot(slot);
	if (!slot->ptr) {
		slot->size = 1 + next_random(random) %
					 (next_random(random) % 4 ? 50000 : 5 * MIB);
		slot->ptr = region_malloc("soak", STAYPUT_HOST, slot->size);
	}
	slot->seed = next_random(random);
	write_pattern(slot->ptr, slot->size, slot->seed);
}

static void random_use_between_pauses_keeps_every_byte(void)
{
	struct slot slots[SLOTS] = {{.ptr = NULL}};
	unsigned random = 1;
	size_t most = 0;

	for (int cycle = 0; cycle < 24; cycle++) {
		for (int i = 0; i < 8; i++)
			change_slot(&slots[next_random(&random) % SLOTS], &random);
		pause_report();
		CHECK_EQ(device_used(0), 0);
		free_slot(&slots[next_random(&random) % SLOTS]);
		change_slot(&slots[cycle % SLOTS], &random);
		resume_report();
		for (int i = 0; i < SLOTS; i++)
			if (slots[i].ptr)
				CHECK_EQ(wrong_bytes(slots[i].ptr, slots[i].size,
						 slots[i].seed),
					0);
		if (host_bytes("host_bytes") > most)
			most = host_bytes("host_bytes");
	}
	CHECK(most <= 2 * region_info("soak").bytes_device + 64 * MIB);
	for (int i = 0; i < SLOTS; i++)
		free_slot(&slots[i]);
	CHECK_EQ(device_used(0), 0);
	CHECK_EQ(faults(), 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(the_digest_depends_on_every_bit_and_its_place),
		TEST(the_digest_sees_several_signs_change),
		TEST(unchanged_memory_is_not_copied_again),
		TEST(one_changed_byte_copies_its_piece),
		TEST(memory_allocated_anew_starts_without_a_backup),
		TEST(without_the_kernel_everything_is_copied),
		TEST(a_discarding_pause_leaves_the_backup_usable),
		TEST(verification_finds_what_differs),
		TEST(host_memory_is_exact_and_kept_between_cycles),
		TEST(trim_gives_back_all_but_paused_contents),
		TEST(nothing_is_kept_when_the_environment_says_so),
		TEST(reserved_memory_is_what_the_pause_uses),
		TEST(a_pause_right_after_reserving_waits_for_the_memory),
		TEST(reserving_again_pins_nothing_more),
		TEST(the_limit_counts_what_is_on_its_way),
		TEST(discarded_contents_have_no_claim_to_host_memory),
		TEST(trim_goes_below_the_pieces_that_backups_share),
		TEST(a_refused_pause_costs_others_nothing),
		TEST(places_in_holes_are_waited_for),
		TEST(backups_of_active_memory_make_room_for_others),
		TEST(memory_that_cannot_be_pinned_is_used_all_the_same),
		TEST(the_tightest_limit_counts),
		TEST(a_copy_that_fails_loses_nothing),
		TEST(a_create_that_fails_leaves_all_paused),
		TEST(a_resume_that_cannot_be_taken_back_leaves_all_paused),
		TEST(random_use_between_pauses_keeps_every_byte),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
