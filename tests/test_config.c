/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of the environment, without a process around it. */
#include "config.h"
#include "log.h"
#include "test.h"

static const char *wanted_name, *wanted_value;

static const char *only_one(const char *name)
{
	return strcmp(name, wanted_name) == 0 ? wanted_value : NULL;
}

static struct config read_one(const char *name, const char *value, char complaints[1024])
{
	static struct config last; /* freed by the next call */

	wanted_name = name;
	wanted_value = value;
	config_free(&last);
	config_read(&last, only_one, complaints, 1024);
	return last;
}

static void nothing_set_is_the_documented_default(void)
{
	char complaints[1024];
	struct config c = read_one("NOTHING", "", complaints);

	CHECK(!c.rules);
	CHECK_EQ(strlen(c.default_tag), 0);
	CHECK_EQ(c.resume_wait_ms, 0);
	CHECK_EQ(c.log_level, LOG_WARN);
	CHECK(!c.log_file);
	CHECK_EQ(strlen(complaints), 0);
}

static void regions_are_read_in_order(void)
{
	char complaints[1024];
	struct config c = read_one(
		"STAYPUT_REGIONS", "kv_cache=discard,w:1=host,plain,*=keep", complaints);

	CHECK_EQ(strlen(complaints), 0);
	CHECK_EQ(c.rule_count, 4);
	CHECK_EQ(strcmp(c.rules[0].tag, "kv_cache"), 0);
	CHECK_EQ(c.rules[0].policy, STAYPUT_DISCARD);
	CHECK_EQ(strcmp(c.rules[1].tag, "w:1"), 0);
	CHECK_EQ(c.rules[1].policy, STAYPUT_HOST);
	CHECK_EQ(c.rules[2].policy, STAYPUT_POLICY_DEFAULT);
	CHECK_EQ(strcmp(c.rules[3].tag, "*"), 0);
	CHECK_EQ(c.rules[3].policy, STAYPUT_KEEP);
}

static void malformed_regions_are_told_and_count_as_unset(void)
{
	static const char *const bad[] = {"=host", ",", "a=host,", "a=", "a=Host",
		"a==host", "a b=host", "a/b", "**=host", "kv*=host", "a=host;b=host",
		" a=host",
		"0123456789012345678901234567890123456789012345678901234567890123=host"};
	char complaints[1024];

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct config c = read_one("STAYPUT_REGIONS", bad[i], complaints);

		CHECK(!c.rules);
		CHECK_HAS(complaints, "STAYPUT_REGIONS: ");
		CHECK_HAS(complaints, "allowed are");
	}
}

static void rules_have_a_tag_and_conditions(void)
{
	char complaints[1024];
	struct config c = read_one("STAYPUT_RULES",
		"kv_cache:size>=1GiB;a:1:module=lib:x,size<4096,size>=2MiB,device=12",
		complaints);

	CHECK_EQ(strlen(complaints), 0);
	CHECK_EQ(c.match_count, 2);
	CHECK_EQ(strcmp(c.matches[0].tag, "kv_cache"), 0);
	CHECK_EQ(c.matches[0].size_least, 1 << 30);
	CHECK_EQ(c.matches[0].size_below, SIZE_MAX);
	CHECK_EQ(c.matches[0].device, -1);
	CHECK_EQ(strlen(c.matches[0].module), 0);
	CHECK_EQ(strcmp(c.matches[1].tag, "a:1"), 0);
	CHECK_EQ(strcmp(c.matches[1].module, "lib:x"), 0);
	CHECK_EQ(c.matches[1].size_below, 4096);
	CHECK_EQ(c.matches[1].size_least, 2 << 20);
	CHECK_EQ(c.matches[1].device, 12);
}

static void malformed_rules_are_told_and_count_as_unset(void)
{
	static const char *const bad[] = {"a", "a:", "a:size=1", "a:size>1",
		"a:size>=", "a:size>=1GB", "a:size>=-1", "a:size<x",
		"a:device=", "a:device=-1", "a:device=x", "a:device=1000",
		"a:module=", ":size>=1", "a/b:size>=1", "a b:size>=1", " a:size>=1",
		"a:size>=1,", "a:,size>=1", "a:size>=1;", ";a:size>=1",
		"a:size>=1 ,device=0", "a:device=1,device=1", "a:size<5,size<6",
		"a:module=x,module=y", "*:size>=1",
		"a:module="
		"0123456789012345678901234567890123456789012345678901234567890123",
		"0123456789012345678901234567890123456789012345678901234567890123:"
		"size>=1"};
	char complaints[1024], many[2000] = "a:size<1";

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct config c = read_one("STAYPUT_RULES", bad[i], complaints);

		CHECK_EQ(c.match_count, 0);
		CHECK_HAS(complaints, "STAYPUT_RULES: ");
		CHECK_HAS(complaints, "using none");
	}
	for (int i = 1; i < CONFIG_MATCHES; i++)
		strcat(many, ";a:size<1");
	CHECK_EQ(read_one("STAYPUT_RULES", many, complaints).match_count, CONFIG_MATCHES);
	strcat(many, ";a:size<1");
	CHECK_EQ(read_one("STAYPUT_RULES", many, complaints).match_count, 0);
	CHECK_HAS(complaints, "up to 64");
}

static void check_excluded(const char *value, size_t count, const char *last)
{
	char complaints[1024];
	struct config c = read_one("STAYPUT_EXCLUDE", value, complaints);

	CHECK_EQ(strlen(complaints), 0);
	CHECK_EQ(c.exclude_count, count);
	CHECK_EQ(count > 0 ? strcmp(c.exclude[count - 1], last) : 0, 0);
}

static void exclusions_are_replaced_or_added_to(void)
{
	check_excluded("", 6, "mooncake");
	check_excluded("x", 1, "x");
	check_excluded("x,libnccl", 2, "libnccl");
	check_excluded("+x", 7, "x");
	check_excluded("+x,y", 8, "y");
	check_excluded("+x,+y", 8, "y");
	check_excluded("none", 0, NULL);
}

static void malformed_exclusions_are_told_and_the_default_holds(void)
{
	static const char *const bad[] = {"+", ",", "x,", "x,+y", "+x,,y",
		"0123456789012345678901234567890123456789012345678901234567890123"};
	char complaints[1024];

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct config c = read_one("STAYPUT_EXCLUDE", bad[i], complaints);

		CHECK_EQ(c.exclude_count, 6);
		CHECK_HAS(complaints, "STAYPUT_EXCLUDE: ");
		CHECK_HAS(complaints, "using libnccl,nvshmem");
	}
}

static void waits_are_seconds_with_a_point(void)
{
	char complaints[1024];

	CHECK_EQ(read_one("STAYPUT_RESUME_WAIT", "30", complaints).resume_wait_ms, 30000);
	CHECK_EQ(read_one("STAYPUT_RESUME_WAIT", "0.25", complaints).resume_wait_ms, 250);
	CHECK_EQ(read_one("STAYPUT_RESUME_WAIT", "1.2345", complaints).resume_wait_ms,
		1234);
	CHECK_EQ(read_one("STAYPUT_RESUME_WAIT", "86400", complaints).resume_wait_ms,
		86400000);
	CHECK_EQ(strlen(complaints), 0);
}

static void control_is_a_switch_or_a_path(void)
{
	char complaints[1024];

	CHECK(!read_one("NOTHING", "", complaints).control);
	CHECK(!read_one("STAYPUT_CONTROL", "0", complaints).control);
	CHECK(read_one("STAYPUT_CONTROL", "1", complaints).control);
	CHECK(!read_one("STAYPUT_CONTROL", "1", complaints).control_path);
	CHECK(read_one("STAYPUT_CONTROL", "/run/a", complaints).control);
	CHECK_EQ(strcmp(read_one("STAYPUT_CONTROL", "/run/a", complaints).control_path,
			 "/run/a"),
		0);
	CHECK_EQ(strlen(complaints), 0);
}

static void host_memory_limits_take_sizes_and_percent(void)
{
	char complaints[1024];

	CHECK_EQ(read_one("NOTHING", "", complaints).host_limit_percent, 80);
	CHECK_EQ(
		read_one("STAYPUT_HOST_LIMIT", "50%", complaints).host_limit_percent, 50);
	CHECK_EQ(read_one("STAYPUT_HOST_LIMIT", "64GiB", complaints).host_limit_bytes,
		(size_t)64 << 30);
	CHECK_EQ(read_one("STAYPUT_HOST_LIMIT", "64GiB", complaints).host_limit_percent,
		0);
	CHECK_EQ(read_one("STAYPUT_HOST_LIMIT", "12345", complaints).host_limit_bytes,
		12345);
	CHECK_EQ(read_one("NOTHING", "", complaints).host_keep, SIZE_MAX);
	CHECK_EQ(read_one("STAYPUT_HOST_KEEP", "all", complaints).host_keep, SIZE_MAX);
	CHECK_EQ(read_one("STAYPUT_HOST_KEEP", "0", complaints).host_keep, 0);
	CHECK_EQ(read_one("STAYPUT_HOST_KEEP", "1MiB", complaints).host_keep, 1 << 20);
	CHECK_EQ(read_one("STAYPUT_THREADS", "4", complaints).threads, 4);
	CHECK(read_one("STAYPUT_VERIFY", "1", complaints).verify);
	CHECK_EQ(strlen(complaints), 0);
}

static void malformed_values_are_told_and_the_default_holds(void)
{
	static const struct {
		const char *name, *value;
	} bad[] = {
		{"STAYPUT_RESUME_WAIT", "-1"},
		{"STAYPUT_RESUME_WAIT", "soon"},
		{"STAYPUT_RESUME_WAIT", "1,5"},
		{"STAYPUT_RESUME_WAIT", ".5"},
		{"STAYPUT_RESUME_WAIT", "1s"},
		{"STAYPUT_RESUME_WAIT", "86400.001"},
		{"STAYPUT_RESUME_WAIT", "99999999999999999999999999"},
		{"STAYPUT_HOST_LIMIT", "0%"},
		{"STAYPUT_HOST_LIMIT", "101%"},
		{"STAYPUT_HOST_LIMIT", "64GB"},
		{"STAYPUT_HOST_LIMIT", "99999999999999999999"},
		{"STAYPUT_HOST_LIMIT", "99999999999TiB"},
		{"STAYPUT_HOST_KEEP", "16777216TiB"},
		{"STAYPUT_HOST_KEEP", "-1"},
		{"STAYPUT_HOST_KEEP", "half"},
		{"STAYPUT_THREADS", "0"},
		{"STAYPUT_THREADS", "257"},
		{"STAYPUT_VERIFY", "on"},
		{"STAYPUT_CONTROL", "yes"},
		{"STAYPUT_CONTROL", "a.sock"},
		{"STAYPUT_LOG", "2"},
		{"STAYPUT_LOG", "WARN"},
		{"STAYPUT_LOG", "warning"},
		{"STAYPUT_DEFAULT", "*"},
		{"STAYPUT_DEFAULT", "a,b"},
	};
	char complaints[1024];

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct config c = read_one(bad[i].name, bad[i].value, complaints);

		CHECK_EQ(c.resume_wait_ms, 0);
		CHECK_EQ(c.log_level, LOG_WARN);
		CHECK_EQ(c.host_limit_percent, 80);
		CHECK_EQ(c.host_keep, SIZE_MAX);
		CHECK(!c.verify);
		CHECK(!c.control && !c.control_path);
		CHECK_EQ(strlen(c.default_tag), 0);
		CHECK_HAS(complaints, bad[i].name);
		CHECK_HAS(complaints, bad[i].value);
		CHECK_HAS(complaints, "using");
	}
}

static void a_complaint_too_long_for_its_buffer_is_cut(void)
{
	char complaints[1024], huge[3000];

	memset(huge, '=', sizeof huge - 1);
	huge[sizeof huge - 1] = '\0';
	CHECK(!read_one("STAYPUT_REGIONS", huge, complaints).rules);
	CHECK(strlen(complaints) < 500);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(nothing_set_is_the_documented_default),
		TEST(regions_are_read_in_order),
		TEST(malformed_regions_are_told_and_count_as_unset),
		TEST(rules_have_a_tag_and_conditions),
		TEST(malformed_rules_are_told_and_count_as_unset),
		TEST(exclusions_are_replaced_or_added_to),
		TEST(malformed_exclusions_are_told_and_the_default_holds),
		TEST(waits_are_seconds_with_a_point),
		TEST(control_is_a_switch_or_a_path),
		TEST(host_memory_limits_take_sizes_and_percent),
		TEST(malformed_values_are_told_and_the_default_holds),
		TEST(a_complaint_too_long_for_its_buffer_is_cut),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
