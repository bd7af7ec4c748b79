/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks about memory that goes and comes, and the warning about NCCL. */
#include <dlfcn.h>
#include <signal.h>

#include "support.h"

enum { CALLS_MAX = 16 };

struct call {
	int change;
	char tag[STAYPUT_TAG_SIZE];
	uint64_t bytes;
	size_t count;
	struct stayput_range first;
	size_t used; /* by the device, at the time */
};

struct calls {
	size_t count;
	struct call list[CALLS_MAX];
};

static void note(int change, const char *tag, const struct stayput_range *ranges,
	size_t count, void *user)
{
	struct calls *calls = user;
	struct call *c = &calls->list[calls->count++];

	CHECK(calls->count <= CALLS_MAX && count > 0);
	*c = (struct call){.change = change,
		.count = count,
		.first = ranges[0],
		.used = device_used(0)};
	strcpy(c->tag, tag);
	for (size_t i = 0; i < count; i++)
		c->bytes += ranges[i].size;
}

static void each_pause_and_resume_is_told_while_the_memory_is_there(void)
{
	struct calls calls = {0};
	char *p = region_malloc("kv", STAYPUT_HOST, 8 * MIB);

	OK(stayput_on_change(note, &calls));
	OK(stayput_pause("kv"));
	CHECK_EQ(calls.count, 1);
	CHECK_EQ(calls.list[0].change, STAYPUT_RELEASING);
	CHECK_HAS(calls.list[0].tag, "kv");
	CHECK_EQ(calls.list[0].used, 8 * MIB);
	CHECK_EQ(calls.list[0].first.base, (uintptr_t)p);
	CHECK_EQ(calls.list[0].first.size, 8 * MIB);
	CHECK_EQ(calls.list[0].first.device, 0);
	OK(stayput_resume("kv"));
	CHECK_EQ(calls.count, 2);
	CHECK_EQ(calls.list[1].change, STAYPUT_RESTORED);
	CHECK_EQ(calls.list[1].used, 8 * MIB);
	CHECK_EQ(calls.list[1].first.base, (uintptr_t)p);
}

static void every_region_is_told_with_all_its_ranges(void)
{
	struct calls calls = {0};

	region_malloc("a", STAYPUT_DISCARD, 4 * MIB);
	region_malloc("a", STAYPUT_ZERO, 6 * MIB);
	region_malloc("b", STAYPUT_HOST, 1000);
	region_malloc("idle", STAYPUT_KEEP, 4 * MIB);
	OK(stayput_on_change(note, &calls));
	OK(stayput_pause(NULL));
	CHECK_EQ(calls.count, 2);
	CHECK_HAS(calls.list[0].tag, "a");
	CHECK_EQ(calls.list[0].count, 2);
	CHECK_EQ(calls.list[0].bytes, 10 * MIB);
	CHECK_HAS(calls.list[1].tag, "b");
	CHECK_EQ(calls.list[1].bytes, 2 * MIB);
}

static void what_changes_nothing_tells_nothing(void)
{
	struct calls calls = {0};

	region_malloc("kv", STAYPUT_DISCARD, 4 * MIB);
	OK(stayput_on_change(note, &calls));
	OK(stayput_resume("kv"));
	CHECK_EQ(calls.count, 0);
	OK(stayput_pause("kv"));
	OK(stayput_pause("kv"));
	CHECK_EQ(calls.count, 1);
}

static void memory_freed_while_paused_is_not_heard_of_again(void)
{
	struct calls calls = {0};
	char *kept = region_malloc("kv", STAYPUT_DISCARD, 4 * MIB);
	char *freed = region_malloc("kv", STAYPUT_DISCARD, 6 * MIB);

	OK(stayput_on_change(note, &calls));
	OK(stayput_pause("kv"));
	CHECK_EQ(calls.list[0].count, 2);
	CUDA(cudaFree(freed));
	OK(stayput_resume("kv"));
	CHECK_EQ(calls.list[1].count, 1);
	CHECK_EQ(calls.list[1].first.base, (uintptr_t)kept);
}

static void pause_that_fails_takes_its_word_back(void)
{
	struct calls calls = {0};

	setenv("STAYPUT_HOST_LIMIT", "1MiB", 1);
	region_malloc("w", STAYPUT_HOST, 8 * MIB);
	OK(stayput_on_change(note, &calls));
	CHECK_EQ(stayput_pause("w"), STAYPUT_ERR_HOST_MEMORY);
	CHECK_EQ(calls.count, 2);
	CHECK_EQ(calls.list[0].change, STAYPUT_RELEASING);
	CHECK_EQ(calls.list[1].change, STAYPUT_RESTORED);
	CHECK_EQ(calls.list[1].bytes, 8 * MIB);
}

static void resume_that_fails_tells_nothing(void)
{
	struct calls calls = {0};
	void *taken;
	size_t free_bytes, total;

	region_malloc("kv", STAYPUT_DISCARD, 64 * MIB);
	OK(stayput_on_change(note, &calls));
	OK(stayput_pause("kv"));
	CUDA(cudaMemGetInfo(&free_bytes, &total));
	CUDA(cudaMalloc(&taken, free_bytes - 8 * MIB));
	CHECK_EQ(stayput_resume("kv"), STAYPUT_ERR_DEVICE_MEMORY);
	CHECK_EQ(calls.count, 1);
	CUDA(cudaFree(taken));
	OK(stayput_resume("kv"));
	CHECK_EQ(calls.count, 2);
}

struct meddler {
	char *mine, *other;
	int calls;
};

static void meddle(int change, const char *tag, const struct stayput_range *ranges,
	size_t count, void *user)
{
	struct meddler *m = user;
	char *fresh;

	(void)ranges;
	(void)count;
	m->calls++;
	CHECK_EQ(stayput_pause(tag), STAYPUT_ERR_BUSY);
	CHECK_HAS(stayput_last_error(), "callback");
	CHECK_EQ(stayput_resume(NULL), STAYPUT_ERR_BUSY);
	CHECK_EQ(query(m->mine).base, (uintptr_t)m->mine);
	fresh = region_malloc(tag, STAYPUT_DISCARD, 1000);
	CUDA(cudaFree(fresh));
	if (change == STAYPUT_RELEASING) {
		CHECK_EQ(cudaFree(m->mine), cudaErrorNotPermitted);
		CHECK_EQ(wrong_bytes(m->mine, 4 * MIB, 3), 0);
		CUDA(cudaFree(m->other));
	} else {
		CHECK_EQ(wrong_bytes(m->mine, 4 * MIB, 3), 0);
		CUDA(cudaFree(m->mine));
	}
}

static void callbacks_may_do_all_but_wait_for_the_operation(void)
{
	struct meddler m = {.mine = region_malloc("kv", STAYPUT_HOST, 4 * MIB),
		.other = region_malloc("other", STAYPUT_HOST, 4 * MIB)};

	write_pattern(m.mine, 4 * MIB, 3);
	OK(stayput_on_change(meddle, &m));
	OK(stayput_pause("kv"));
	OK(stayput_resume("kv"));
	CHECK_EQ(m.calls, 2);
	CHECK_EQ(device_used(0), 0);
}

static void reset(int change, const char *tag, const struct stayput_range *ranges,
	size_t count, void *user)
{
	(void)tag;
	(void)ranges;
	(void)count;
	(void)user;
	if (change == STAYPUT_RELEASING)
		CUDA(cudaDeviceReset());
}

/* What the operation has is not freed under it. */
static void a_reset_in_a_callback_fails_the_pause(void)
{
	char *large = region_malloc("kv", STAYPUT_HOST, 4 * MIB);
	char *small = region_malloc("kv", STAYPUT_HOST, 1000);
	char *fresh;

	OK(stayput_on_change(reset, NULL));
	CHECK_EQ(stayput_pause("kv"), STAYPUT_ERR_DRIVER);
	CHECK_EQ(query(large).state, STAYPUT_ACTIVE);
	CHECK_EQ(query(small).state, STAYPUT_ACTIVE);
	OK(stayput_on_change_remove(reset, NULL));
	CUDA(cudaFree(large));
	CUDA(cudaFree(small));
	fresh = region_malloc("kv", STAYPUT_HOST, 4 * MIB);
	write_pattern(fresh, 4 * MIB, 1);
	OK(stayput_pause("kv"));
	OK(stayput_resume("kv"));
	CHECK_EQ(wrong_bytes(fresh, 4 * MIB, 1), 0);
}

static void callbacks_come_and_go(void)
{
	struct calls calls[17] = {0};

	region_malloc("kv", STAYPUT_DISCARD, 4 * MIB);
	CHECK_EQ(stayput_on_change(NULL, NULL), STAYPUT_ERR_INVALID);
	CHECK_EQ(stayput_on_change_remove(note, &calls[0]), STAYPUT_ERR_NOT_FOUND);
	for (int i = 0; i < 16; i++)
		OK(stayput_on_change(note, &calls[i]));
	OK(stayput_on_change(note, &calls[0]));
	CHECK_EQ(stayput_on_change(note, &calls[16]), STAYPUT_ERR_HOST_MEMORY);
	OK(stayput_on_change_remove(note, &calls[3]));
	OK(stayput_on_change(note, &calls[16]));
	OK(stayput_pause("kv"));
	for (int i = 0; i < 17; i++)
		CHECK_EQ(calls[i].count, i == 3 ? 0 : 1);
}

/* A library whose file is named as NCCL's. */
static void load_nccl(void)
{
	char dir[] = "/tmp/stayput-nccl-XXXXXX", path[64], command[512];

	CHECK(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/libnccl.so.2", dir);
	snprintf(command, sizeof command,
		"cp \"$(dirname \"$(readlink /proc/%d/exe)\")\"/fake/libnvidia-ml.so.1 "
		"%s",
		getpid(), path);
	CHECK_EQ(system(command), 0);
	CHECK(dlopen(path, RTLD_NOW));
	unlink(path);
	rmdir(dir);
}

static void pause_beside_nccl_warns_once_of_its_registrations(void)
{
	region_malloc("kv", STAYPUT_DISCARD, 4 * MIB);
	catch_stderr();
	OK(stayput_pause("kv"));
	CHECK_EQ(strlen(stderr_text()), 0);
	load_nccl();
	OK(stayput_resume("kv"));
	OK(stayput_pause("kv"));
	OK(stayput_resume("kv"));
	OK(stayput_pause("kv"));
	CHECK_HAS(stderr_text(), "kv is paused while NCCL is loaded");
	CHECK_HAS(stderr_text(), "set NCCL_GRAPH_REGISTER=0");
	CHECK(strchr(stderr_text(), '\n') == strrchr(stderr_text(), '\n'));
}

static void nccl_without_graph_registration_is_no_news(void)
{
	setenv("NCCL_GRAPH_REGISTER", "0", 1);
	region_malloc("kv", STAYPUT_DISCARD, 4 * MIB);
	load_nccl();
	catch_stderr();
	OK(stayput_pause("kv"));
	CHECK_EQ(strlen(stderr_text()), 0);
}

/* As when the reader of a pipe that a program logs to has ended. */
static void a_warning_that_nobody_reads_does_no_harm(void)
{
	sigset_t left;
	int ends[2];

	region_malloc("kv", STAYPUT_DISCARD, 4 * MIB);
	load_nccl();
	catch_stderr();
	CHECK_EQ(pipe(ends), 0);
	close(ends[0]);
	CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	OK(stayput_pause("kv"));
	CHECK_EQ(sigpending(&left), 0);
	CHECK(!sigismember(&left, SIGPIPE));
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(each_pause_and_resume_is_told_while_the_memory_is_there),
		TEST(every_region_is_told_with_all_its_ranges),
		TEST(what_changes_nothing_tells_nothing),
		TEST(memory_freed_while_paused_is_not_heard_of_again),
		TEST(pause_that_fails_takes_its_word_back),
		TEST(resume_that_fails_tells_nothing),
		TEST(callbacks_may_do_all_but_wait_for_the_operation),
		TEST(a_reset_in_a_callback_fails_the_pause),
		TEST(callbacks_come_and_go),
		TEST(pause_beside_nccl_warns_once_of_its_registrations),
		TEST(nccl_without_graph_registration_is_no_news),
		TEST(a_warning_that_nobody_reads_does_no_harm),
	};

	return test_main(tests, sizeof tests / sizeof tests[0], argc, argv);
}
