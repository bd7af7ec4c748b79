/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a preload must be: harmless where it is not wanted, right about which runtime a
 * caller means, and quiet at fork and exit. Nothing of CUDA is linked here: each test
 * runs programs with the library preloaded. What they do and CHECK is in tests/loading/:
 * host.c opens libraries that use CUDA, program.c is linked to a runtime.
 */
#include "loading/libraries.h"
#include "loading/spawn.h"

/* It ended with `status` and printed `text`. */
static void expect(struct outcome outcome, int status, const char *text)
{
	if (outcome.status != status || strcmp(outcome.text, text) != 0)
		fprintf(stderr, "status %d, want %d; printed \"%s\", want \"%s\"\n",
			outcome.status, status, outcome.text, text);
	CHECK_EQ(outcome.status, status);
	CHECK(strcmp(outcome.text, text) == 0);
}

static void expect_success(struct outcome outcome)
{
	expect(outcome, 0, "");
}

#define COMMAND(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Where a leak is not ours to report: shells and interpreters leave memory behind, and a
 * forked child has none of the threads that hold some. */
static void allow_leaks(void)
{
	setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
}

/* Not every machine has every program, and not every one bears a sanitizer's runtime. */
static void need(const char *const *command)
{
	int status = run_system("", command).status;

	if (status == NOT_FOUND || status > 128)
		SKIP("the program does not run here without the library either");
}

/* With no CUDA library to be had: a preload that needs one keeps programs from starting.
 */
static void expect_undisturbed(const char *const *command, int status, const char *text)
{
	set_library_path("loading/nodriver");
	allow_leaks();
	need(command);
	expect(run_system("stayput", command), status, text);
}

static void true_and_false_are_undisturbed(void)
{
	expect_undisturbed(COMMAND("/bin/true"), 0, "");
	expect_undisturbed(COMMAND("/bin/false"), 1, "");
}

static void a_shell_and_its_children_are_undisturbed(void)
{
	expect_undisturbed(COMMAND("sh", "-c", "true"), 0, "");
	expect_undisturbed(COMMAND("sh", "-c", "(exit 3) & wait $!; exit $?"), 3, "");
	expect_undisturbed(COMMAND("sh", "-c", "/bin/echo one | cat"), 0, "one\n");
}

static void an_empty_environment_is_undisturbed(void)
{
	char preload[4 * PATH_MAX] = "";

	expect_undisturbed(COMMAND("env", "-i", "/bin/true"), 0, "");
	set_preload("stayput");
	append(preload, sizeof preload, "LD_PRELOAD=%s", getenv("LD_PRELOAD"));
	expect_success(run_system("", COMMAND("env", "-i", preload, "/bin/true")));
}

static void python_is_undisturbed(void)
{
	expect_undisturbed(COMMAND("python3", "-c", "pass"), 0, "");
}

static void expect_nothing_opened(const char *const *command)
{
	struct outcome outcome;

	allow_leaks();
	need(command);
	setenv("LD_DEBUG", "files", 1);
	outcome = run_system("stayput", command);
	unsetenv("LD_DEBUG");
	CHECK_EQ(outcome.status, 0);
	CHECK_HAS(outcome.text, "lib" UNDER_TEST ".so");
	CHECK(!strstr(outcome.text, "file=libcuda"));
	CHECK(!strstr(outcome.text, "/libcuda"));
	CHECK(!strstr(outcome.text, "libnvidia"));
}

static void nothing_is_opened_in_programs_without_cuda(void)
{
	expect_success(run("stayput", "host", "use_nothing"));
	expect_nothing_opened(COMMAND("/bin/true"));
	expect_nothing_opened(COMMAND("sh", "-c", "true"));
}

static void no_driver_is_opened_before_cuda_is_used(void)
{
	expect_success(run("stayput", "program13", "use_nothing"));
}

static void no_thread_is_started_where_cuda_is_not_used(void)
{
	const char *const *command =
		COMMAND("sh", "-c", "ls /proc/$$/task | wc -l; exit 0");
	char without[64] = "";

	allow_leaks();
	need(command);
	append(without, sizeof without, "%s", run_system("", command).text);
	expect(run_system("stayput", command), 0, without);
}

/* A file that is no library hides the driver of a machine that has one. */
static void without_a_driver_a_region_answers_what_the_runtime_answers(void)
{
	set_library_path("loading/nodriver loading fake");
	expect_success(run("stayput", "program13", "answer_without_driver"));
	expect_success(run("stayput", "program12", "answer_without_driver"));
}

static void contents_are_kept_under_runtime_11(void)
{
	expect(run("stayput", "program11.0", "keep_contents"), 0, "11\n");
}

static void contents_are_kept_under_runtime_12(void)
{
	expect(run("stayput", "program12", "keep_contents"), 0, "12\n");
}

static void contents_are_kept_under_runtime_13(void)
{
	expect(run("stayput", "program13", "keep_contents"), 0, "13\n");
}

static void a_runtime_opened_local_is_found(void)
{
	expect_success(run("stayput", "host", "open_local"));
}

static void a_runtime_behind_two_libraries_is_found(void)
{
	expect_success(run("stayput", "host", "open_as_dependency"));
}

static void a_runtime_under_a_hashed_name_is_found(void)
{
	expect_success(run("stayput", "host", "open_hashed"));
}

static void a_caller_without_a_runtime_gets_the_one_loaded(void)
{
	expect_success(run("stayput", "host", "call_without_dependency"));
}

static void each_library_gets_its_own_of_two_runtimes(void)
{
	expect_success(run("stayput", "host", "open_two_runtimes"));
}

static void a_local_runtime_is_not_mistaken_for_a_global_one(void)
{
	expect_success(run("stayput", "host", "open_global_and_local"));
}

static void a_library_at_the_place_of_another_gets_its_own_runtime(void)
{
	expect_success(run("stayput", "host", "replace_by_other_runtime"));
}

static void a_runtime_loaded_after_the_first_call_is_found(void)
{
	expect_success(run("stayput", "host", "call_before_runtime"));
}

static void the_first_cuda_call_may_be_a_region_allocation(void)
{
	expect_success(run("stayput", "program11.0", "allocate_first"));
	expect_success(run("stayput", "program13", "allocate_first"));
}

static void regions_are_on_the_current_device(void)
{
	setenv("FAKECUDA_DEVICES", "2", 1);
	expect_success(run("stayput", "program11.0", "allocate_on_second_device"));
	expect_success(run("stayput", "program13", "allocate_on_second_device"));
}

static void a_thread_without_a_context_allocates_and_frees(void)
{
	expect_success(run("stayput", "program11.0", "use_thread_without_context"));
	expect_success(run("stayput", "program13", "use_thread_without_context"));
}

static void a_constructor_before_main_allocates(void)
{
	setenv("STAYPUT_DEFAULT", "weights", 1);
	expect_success(run("stayput early", "program13", "use_early_memory"));
	expect_success(run("early stayput", "program13", "use_early_memory"));
}

static void a_constructor_beside_the_first_call_of_a_thread_does_not_deadlock(void)
{
	setenv("STAYPUT_DEFAULT", "weights", 1);
	expect_success(run("stayput", "host", "construct_beside_first_call"));
}

static void a_preload_before_ours_sees_the_calls(void)
{
	expect_success(run("shim stayput", "program13", "be_seen_by_shim"));
}

static void a_preload_after_ours_sees_the_calls(void)
{
	expect_success(run("stayput shim", "program13", "be_seen_by_shim"));
}

static void a_preload_before_ours_sees_the_calls_of_libraries(void)
{
	expect_success(
		run("shim stayput", "program13", "be_seen_by_shim_through_library"));
}

static void a_preload_after_ours_sees_the_calls_of_libraries(void)
{
	expect_success(
		run("stayput shim", "program13", "be_seen_by_shim_through_library"));
}

static void a_child_forked_beside_allocating_threads_does_not_hang(void)
{
	expect_success(run("stayput", "program13", "fork_beside_allocating_threads"));
}

static void a_child_forked_beside_pushing_threads_does_not_hang(void)
{
	expect_success(run("stayput", "program13", "fork_beside_pushing_threads"));
}

static void a_child_forked_during_a_pause_does_not_hang(void)
{
	expect_success(run("stayput", "program13", "fork_during_pause"));
}

static void a_free_in_a_child_is_refused_and_leaves_the_parent_alone(void)
{
	allow_leaks();
	expect_success(run("stayput", "program13", "free_inherited_in_child"));
}

static void a_child_of_a_parent_that_only_pushed_uses_cuda(void)
{
	expect_success(run("stayput", "program13", "use_cuda_in_child_of_pusher"));
}

static void children_that_never_use_cuda_are_undisturbed(void)
{
	allow_leaks();
	expect_success(run("stayput", "program13", "fork_workers"));
}

static void a_program_executed_in_a_child_uses_cuda(void)
{
	expect_success(run("stayput", "program13", "exec_in_child"));
}

static void a_hundred_programs_that_leak_end_quietly(void)
{
	/* A sanitizer makes each of them slow. */
	const int programs = *sanitizer_runtime() ? 10 : 100;

	for (int i = 0; i < programs; i++)
		expect_success(run("stayput", "program13", "leak"));
}

static void frees_at_exit_succeed_before_and_after_the_driver_ends(void)
{
	expect(run("stayput", "program13", "free_active_at_exit"), LATE_FREED, "");
	expect(run("stayput", "program13", "free_paused_at_exit"), LATE_FREED, "");
}

static void frees_in_a_destructor_succeed(void)
{
	expect(run("stayput", "host", "free_active_in_destructor"), LATE_FREED, "");
	expect(run("stayput", "host", "free_paused_in_destructor"), LATE_FREED, "");
}

static void a_free_at_exit_during_a_pause_does_not_hang(void)
{
	expect(run("stayput", "program13", "exit_during_pause"), LATE_FREED, "");
}

static void frees_at_exit_beside_a_pausing_thread_do_not_hang(void)
{
	for (int i = 0; i < 20; i++)
		expect(run("stayput", "program13", "exit_beside_pauses"), LATE_FREED, "");
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(true_and_false_are_undisturbed),
		TEST(a_shell_and_its_children_are_undisturbed),
		TEST(an_empty_environment_is_undisturbed),
		TEST(python_is_undisturbed),
		TEST(nothing_is_opened_in_programs_without_cuda),
		TEST(no_driver_is_opened_before_cuda_is_used),
		TEST(no_thread_is_started_where_cuda_is_not_used),
		TEST(without_a_driver_a_region_answers_what_the_runtime_answers),
		TEST(contents_are_kept_under_runtime_11),
		TEST(contents_are_kept_under_runtime_12),
		TEST(contents_are_kept_under_runtime_13),
		TEST(a_runtime_opened_local_is_found),
		TEST(a_runtime_behind_two_libraries_is_found),
		TEST(a_runtime_under_a_hashed_name_is_found),
		TEST(a_caller_without_a_runtime_gets_the_one_loaded),
		TEST(each_library_gets_its_own_of_two_runtimes),
		TEST(a_local_runtime_is_not_mistaken_for_a_global_one),
		TEST(a_library_at_the_place_of_another_gets_its_own_runtime),
		TEST(a_runtime_loaded_after_the_first_call_is_found),
		TEST(the_first_cuda_call_may_be_a_region_allocation),
		TEST(regions_are_on_the_current_device),
		TEST(a_thread_without_a_context_allocates_and_frees),
		TEST(a_constructor_before_main_allocates),
		TEST(a_constructor_beside_the_first_call_of_a_thread_does_not_deadlock),
		TEST(a_preload_before_ours_sees_the_calls),
		TEST(a_preload_after_ours_sees_the_calls),
		TEST(a_preload_before_ours_sees_the_calls_of_libraries),
		TEST(a_preload_after_ours_sees_the_calls_of_libraries),
		TEST(a_child_forked_beside_allocating_threads_does_not_hang),
		TEST(a_child_forked_beside_pushing_threads_does_not_hang),
		TEST(a_child_forked_during_a_pause_does_not_hang),
		TEST(a_free_in_a_child_is_refused_and_leaves_the_parent_alone),
		TEST(a_child_of_a_parent_that_only_pushed_uses_cuda),
		TEST(children_that_never_use_cuda_are_undisturbed),
		TEST(a_program_executed_in_a_child_uses_cuda),
		TEST(a_hundred_programs_that_leak_end_quietly),
		TEST(frees_at_exit_succeed_before_and_after_the_driver_ends),
		TEST(frees_in_a_destructor_succeed),
		TEST(a_free_at_exit_during_a_pause_does_not_hang),
		TEST(frees_at_exit_beside_a_pausing_thread_do_not_hang),
	};

	unsetenv("LD_PRELOAD");
	set_library_path("loading fake");
	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
