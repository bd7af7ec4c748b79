/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of requests on any bytes: for libFuzzer (make fuzz), and for test_request.c,
 * which replays tests/fuzz/corpus. What it takes for a request has to be one that pause and
 * resume can be called with; what it says goes into an answer.
 */
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "control_request.h"
#include "json.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void insist(bool holds)
{
	if (!holds)
		abort();
}

static void insist_on_plain(const char *text, size_t size)
{
	size_t len = strnlen(text, size);

	insist(len < size);
	for (size_t i = 0; i < len; i++)
		insist(text[i] >= 0x20 && text[i] <= 0x7e);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct request r, again;
	struct json j = {.size = 0};
	enum request_result result = request_read(&r, (const char *)data, size);

	insist_on_plain(r.why, sizeof r.why);
	insist((r.why[0] == '\0') == (result == REQUEST_GOOD));
	insist(r.tag_count <= REQUEST_TAGS);
	for (size_t i = 0; i < r.tag_count; i++)
		insist(config_valid_tag(r.tags[i]));
	insist(r.policy == 0 || (r.policy >= STAYPUT_HOST && r.policy <= STAYPUT_ZERO));
	if (result == REQUEST_GOOD) {
		insist(r.what >= REQUEST_SHOW && r.what <= REQUEST_RESUME);
		insist(r.wait_ms >= -1 && r.wait_ms <= REQUEST_WAIT_MAX);
	}
	json_string(&j, r.why);
	insist(request_read(&again, (const char *)data, size) == result);
	insist(memcmp(&again, &r, sizeof r) == 0);
	return 0;
}
