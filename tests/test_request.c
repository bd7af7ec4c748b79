/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of requests, without a server around it; and the writer of JSON. */
#include <dirent.h>
#include <fcntl.h>

#include "control_request.h"
#include "json.h"
#include "test.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static struct request last;

static int read_text(const char *text)
{
	return request_read(&last, text, strlen(text));
}

static void a_request_is_read_whole(void)
{
	CHECK_EQ(
		read_text(
			"{\"stayput\": 1, \"do\": \"pause\", \"tags\": [\"kv\", \"w:1\"],"
			"\"policy\": \"zero\", \"block\": false, \"check\": true,"
			"\"fail_if_held\": true} \r"),
		REQUEST_GOOD);
	CHECK_EQ(last.what, REQUEST_PAUSE);
	CHECK_EQ(last.tag_count, 2);
	CHECK_EQ(strcmp(last.tags[0], "kv"), 0);
	CHECK_EQ(strcmp(last.tags[1], "w:1"), 0);
	CHECK_EQ(last.policy, STAYPUT_ZERO);
	CHECK(last.no_block && last.check && last.fail_if_held);
	CHECK_EQ(last.wait_ms, -1);
	CHECK_EQ(read_text("{\"do\":\"resume\",\"wait_ms\":5000,\"stayput\":1}"),
		REQUEST_GOOD);
	CHECK_EQ(last.what, REQUEST_RESUME);
	CHECK_EQ(last.wait_ms, 5000);
	CHECK_EQ(last.tag_count, 0);
	CHECK(!last.no_block && !last.check && !last.fail_if_held);
}

static void what_is_unknown_is_skipped(void)
{
	CHECK_EQ(read_text("{\"a\":{\"do\":\"pause\",\"b\":[[],{}]},\"stayput\":1,"
			   "\"n\":-1.5e-3,\"do\":\"show\",\"\\u0000\":null,\"\":true}"),
		REQUEST_GOOD);
	CHECK_EQ(last.what, REQUEST_SHOW);
}

static void escapes_are_letters(void)
{
	CHECK_EQ(read_text("{\"st\\u0061yput\":1,\"d\\u006F\":\"\\u0073how\"}"),
		REQUEST_GOOD);
	CHECK_EQ(last.what, REQUEST_SHOW);
}

static void what_is_no_object_is_garbage(void)
{
	static const char *const texts[] = {"", " ", "{", "[]", "1", "\"do\"", "null",
		"{\"stayput\":1,\"do\":\"sh", "{\"stayput\":1,\"do\":\"show\"",
		"{\"stayput\":1,\"do\":\"show\"}}", "{\"stayput\":1,}", "{,}", "{1:2}",
		"{\"a\":01}", "{\"a\":1.}", "{\"a\":.5}", "{\"a\":1e}", "{\"a\":+1}",
		"{\"a\":-}", "{\"a\":tru}", "{\"a\":True}", "{\"a\":[1 2]}",
		"{\"a\":[1,]}", "{\"a\":[}", "{\"a\":{]}", "{\"a\" 1}", "{'a':1}",
		"{\"a\":\"\\x\"}", "{\"a\":\"\\u12g4\"}", "{\"a\":\"\t\"}",
		"{\"a\":\"\\\"}", "{\"a\":\"", "{\"a\":\"\\u00"};

	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		size_t len = strlen(texts[i]);
		char *exact = malloc(len + 1);

		/* At the end of its memory, where a sanitizer sees what reads on. */
		CHECK(exact);
		memcpy(exact + 1, texts[i], len);
		CHECK_EQ(request_read(&last, exact + 1, len), REQUEST_GARBAGE);
		CHECK_HAS(last.why, "is not one JSON object");
		free(exact);
	}
}

static void nesting_has_an_end(void)
{
	char text[200];

	snprintf(text, sizeof text, "{\"stayput\":1,\"do\":\"show\",\"a\":%.31s%.31s}",
		"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
		"]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]");
	CHECK_EQ(read_text(text), REQUEST_GOOD);
	snprintf(text, sizeof text, "{\"stayput\":1,\"do\":\"show\",\"a\":%.32s%.32s}",
		"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
		"]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]");
	CHECK_EQ(read_text(text), REQUEST_GARBAGE);
}

static void what_is_no_request_says_why(void)
{
	static const char *const bad[][2] = {
		{"{}", "has no member stayput"},
		{"{\"stayput\":1}", "has no member do"},
		{"{\"stayput\":0,\"do\":\"show\"}", "version 1"},
		{"{\"stayput\":1.0,\"do\":\"show\"}", "version 1"},
		{"{\"stayput\":\"1\",\"do\":\"show\"}", "version 1"},
		{"{\"stayput\":1,\"do\":\"exit\"}", "do is exit, and can be"},
		{"{\"stayput\":1,\"do\":\"\xc3\xa9\"}", "do is not a word"},
		{"{\"stayput\":1,\"do\":null}", "do is not a word"},
		{"{\"stayput\":1,\"do\":\"show\",\"do\":\"show\"}", "do is there twice"},
		{"{\"stayput\":1,\"do\":\"pause\",\"tags\":\"kv\"}", "not an array"},
		{"{\"stayput\":1,\"do\":\"pause\",\"tags\":[[\"kv\"]]}", "1 to 63 bytes"},
		{"{\"stayput\":1,\"do\":\"pause\",\"tags\":[\"\"]}", "1 to 63 bytes"},
		{"{\"stayput\":1,\"do\":\"pause\",\"policy\":\"keep\"}",
			"policy is keep"},
		{"{\"stayput\":1,\"do\":\"pause\",\"check\":\"true\"}", "check is not"},
		{"{\"stayput\":1,\"do\":\"resume\",\"wait_ms\":-1}", "wait_ms is not"},
		{"{\"stayput\":1,\"do\":\"resume\",\"wait_ms\":86400001}", "86400000"},
		{"{\"stayput\":1,\"do\":\"resume\",\"wait_ms\":99999999999999999999}",
			"86400000"},
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		CHECK_EQ(read_text(bad[i][0]), REQUEST_BAD);
		CHECK_HAS(last.why, bad[i][1]);
	}
}

static void tags_have_a_limit(void)
{
	char text[2000];
	int len = sprintf(text, "{\"stayput\":1,\"do\":\"pause\",\"tags\":[\"t\"");

	for (int i = 1; i < REQUEST_TAGS; i++)
		len += sprintf(text + len, ",\"t\"");
	strcpy(text + len, "]}");
	CHECK_EQ(read_text(text), REQUEST_GOOD);
	CHECK_EQ(last.tag_count, REQUEST_TAGS);
	strcpy(text + len, ",\"t\"]}");
	CHECK_EQ(read_text(text), REQUEST_BAD);
	CHECK_HAS(last.why, "more than 64");
}

/* What the fuzzer insists on, of bytes that it once found worth keeping. */
static void the_corpus_does_no_harm(void)
{
	DIR *folder = opendir(CORPUS);
	struct dirent *entry;
	int count = 0;

	CHECK(folder);
	while ((entry = readdir(folder))) {
		int fd = openat(dirfd(folder), entry->d_name, O_RDONLY);
		size_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
		unsigned char *data;

		if (entry->d_name[0] == '.')
			continue;
		data = malloc(size + 1);
		CHECK(data && pread(fd, data + 1, size, 0) == (ssize_t)size);
		CHECK_EQ(LLVMFuzzerTestOneInput(data + 1, size), 0);
		free(data);
		close(fd);
		count++;
	}
	closedir(folder);
	CHECK(count > 20);
}

static void strings_are_written_as_json_wants_them(void)
{
	char buf[200], cut[4];
	struct json j = {.buf = buf, .size = sizeof buf};

	json_string(&j, "a\"\\\n\x01\x7f \xc3\xa9 \xf0\x9f\x98\x80 \xc0\xaf \xed\xa0\x80 "
			"\xe2\x82");
	CHECK_EQ(strcmp(buf, "\"a\\\"\\\\\\u000a\\u0001\\u007f \xc3\xa9 \xf0\x9f\x98\x80 "
			     "\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\""),
		0);
	CHECK_EQ(j.len, strlen(buf));
	j = (struct json){.buf = cut, .size = sizeof cut};
	json_string(&j, "abcdef");
	CHECK_EQ(j.len, 8);
	CHECK_EQ(strcmp(cut, "\"ab"), 0);
}

static void decimals_have_six_digits_and_a_point(void)
{
	char buf[200];
	struct json j = {.buf = buf, .size = sizeof buf};

	json_decimal(&j, 1.5);
	json_add(&j, " ");
	json_decimal(&j, 0.0000014);
	json_add(&j, " ");
	json_decimal(&j, -0.25);
	json_add(&j, " ");
	json_decimal(&j, 1764441234.9999999);
	CHECK_EQ(strcmp(buf, "1.500000 0.000001 -0.250000 1764441235.000000"), 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(a_request_is_read_whole),
		TEST(what_is_unknown_is_skipped),
		TEST(escapes_are_letters),
		TEST(what_is_no_object_is_garbage),
		TEST(nesting_has_an_end),
		TEST(what_is_no_request_says_why),
		TEST(tags_have_a_limit),
		TEST(the_corpus_does_no_harm),
		TEST(strings_are_written_as_json_wants_them),
		TEST(decimals_have_six_digits_and_a_point),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
