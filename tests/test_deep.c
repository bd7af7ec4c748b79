/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only libstayput-deep.so does: programs with a static runtime, and lookups by name.
 * Nothing of CUDA is linked here; the programs in tests/deep/ do and CHECK the work.
 * test_loading_deep and its like are the other library's tests with this one.
 */
#include "loading/libraries.h"
#include "loading/spawn.h"

static void expect(struct outcome outcome)
{
	if (outcome.status != 0 || *outcome.text)
		fprintf(stderr, "status %d; printed \"%s\"\n", outcome.status,
			outcome.text);
	CHECK_EQ(outcome.status, 0);
	CHECK(!*outcome.text);
}

static void by_default(const char *program, const char *job)
{
	setenv("STAYPUT_DEFAULT", "engine", 1);
	expect(run("stayput-deep", program, job));
}

static void look_up(const char *job)
{
	expect(run("stayput-deep", "deep_lookup", job));
}

static void a_program_with_a_static_runtime_keeps_its_contents(void)
{
	by_default("deep_static", "keep_contents");
}

static void a_program_with_a_shared_runtime_keeps_its_contents(void)
{
	by_default("deep_shared", "keep_contents");
}

static void a_static_runtime_stays_native_with_the_other_library(void)
{
	setenv("STAYPUT_DEFAULT", "engine", 1);
	expect(run("stayput", "deep_static", "stay_native"));
}

static void without_a_region_memory_stays_native(void)
{
	expect(run("stayput-deep", "deep_static", "stay_native"));
	expect(run("stayput-deep", "deep_shared", "stay_native"));
}

static void pushes_choose_what_belongs_to_a_region(void)
{
	expect(run("stayput-deep", "deep_static", "choose_by_push"));
	expect(run("stayput-deep", "deep_shared", "choose_by_push"));
}

static void kept_memory_is_counted_once(void)
{
	setenv("STAYPUT_REGIONS", "*=keep", 1);
	by_default("deep_static", "count_once");
	by_default("deep_shared", "count_once");
}

static void memory_without_vmm_is_counted_once(void)
{
	setenv("FAKECUDA_VMM", "0", 1);
	setenv("STAYPUT_LOG", "error", 1);
	by_default("deep_static", "count_once");
	by_default("deep_shared", "count_once");
}

static void memory_is_shared_between_processes(void)
{
	by_default("deep_static", "share_between_processes");
	by_default("deep_shared", "share_between_processes");
	expect(run("stayput-deep", "deep_static", "share_between_processes"));
}

static void captures_are_seen_once(void)
{
	by_default("deep_static", "see_captures_once");
	by_default("deep_shared", "see_captures_once");
}

static void a_reset_takes_region_memory_along(void)
{
	by_default("deep_static", "reset");
	by_default("deep_shared", "reset");
}

static void dlsym_finds_hooks_of_exactly_that_name(void)
{
	look_up("find_by_handle");
}

static void dlsym_leaves_other_libraries_alone(void)
{
	look_up("leave_other_libraries_alone");
}

/* It would be sent on from the hook to itself. */
static void dlsym_answers_the_driver_itself_with_its_own(void)
{
	look_up("answer_the_driver_itself");
}

static void answers_of_another_preload_stay(void)
{
	expect(run(
		"stayput-deep answer", "deep_lookup", "leave_answers_of_others_alone"));
}

static void dlsym_leaves_a_second_runtime_alone(void)
{
	look_up("leave_second_runtime_alone");
}

static void every_form_of_a_driver_function_is_found(void)
{
	look_up("find_by_version");
}

static void every_row_of_the_table_finds_its_hook(void)
{
	look_up("find_every_hook");
}

static void the_version_and_flavour_asked_for_are_found(void)
{
	look_up("find_the_version_asked_for");
}

static void entry_points_are_found_through_each_runtime(void)
{
	look_up("find_entry_points_11");
	look_up("find_entry_points_12");
	look_up("find_entry_points_13");
}

static void entry_points_are_found_through_a_runtime_that_is_past_us(void)
{
	if (*sanitizer_runtime())
		SKIP("a sanitizer refuses RTLD_DEEPBIND");
	look_up("find_entry_points_deep");
	look_up("find_entry_points_by_version");
}

static void memory_by_driver_functions_looked_up_is_in_the_region(void)
{
	by_default("deep_lookup", "allocate_by_driver");
}

static void memory_mapped_by_driver_functions_looked_up_is_in_the_region(void)
{
	by_default("deep_lookup", "map_by_driver");
}

static void memory_by_runtime_functions_looked_up_is_in_the_region(void)
{
	by_default("deep_lookup", "allocate_by_runtime");
}

static void excluded_libraries_with_a_static_runtime_stay_native(void)
{
	by_default("deep_lookup", "leave_excluded_libraries_alone");
}

static void other_answers_are_as_without_us(void)
{
	char without[64 << 10] = "";
	struct outcome outcome = run("", "deep_lookup", "tell_answers");

	CHECK_EQ(outcome.status, 0);
	append(without, sizeof without, "%s", outcome.text);
	outcome = run("stayput-deep", "deep_lookup", "tell_answers");
	CHECK_EQ(outcome.status, 0);
	CHECK(strlen(without) > 1000);
	CHECK(strcmp(outcome.text, without) == 0);
}

static void a_malloc_that_looks_up_does_not_recurse(void)
{
	if (*sanitizer_runtime())
		SKIP("a sanitizer has a malloc() of its own");
	expect(run("stayput-deep mallocs", "deep_lookup", "look_up_inside_malloc"));
	expect(run("mallocs stayput-deep", "deep_lookup", "look_up_inside_malloc"));
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_program_with_a_static_runtime_keeps_its_contents),
		TEST(a_program_with_a_shared_runtime_keeps_its_contents),
		TEST(a_static_runtime_stays_native_with_the_other_library),
		TEST(without_a_region_memory_stays_native),
		TEST(pushes_choose_what_belongs_to_a_region),
		TEST(kept_memory_is_counted_once),
		TEST(memory_without_vmm_is_counted_once),
		TEST(captures_are_seen_once),
		TEST(memory_is_shared_between_processes),
		TEST(a_reset_takes_region_memory_along),
		TEST(dlsym_finds_hooks_of_exactly_that_name),
		TEST(dlsym_leaves_other_libraries_alone),
		TEST(dlsym_answers_the_driver_itself_with_its_own),
		TEST(answers_of_another_preload_stay),
		TEST(dlsym_leaves_a_second_runtime_alone),
		TEST(every_form_of_a_driver_function_is_found),
		TEST(every_row_of_the_table_finds_its_hook),
		TEST(the_version_and_flavour_asked_for_are_found),
		TEST(entry_points_are_found_through_each_runtime),
		TEST(entry_points_are_found_through_a_runtime_that_is_past_us),
		TEST(memory_by_driver_functions_looked_up_is_in_the_region),
		TEST(memory_mapped_by_driver_functions_looked_up_is_in_the_region),
		TEST(memory_by_runtime_functions_looked_up_is_in_the_region),
		TEST(excluded_libraries_with_a_static_runtime_stay_native),
		TEST(other_answers_are_as_without_us),
		TEST(a_malloc_that_looks_up_does_not_recurse),
	};

	unsetenv("LD_PRELOAD");
	set_library_path("loading fake");
	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
