/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads one line of the control protocol: a JSON object whose members are those below,
 * and any others, which are skipped. No allocation, no recursion, no lock; bytes from
 * anybody do no harm.
 */
#ifndef CONTROL_REQUEST_H
#define CONTROL_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stayput.h"

enum { REQUEST_TAGS = 64, REQUEST_VERSION = 1, REQUEST_WAIT_MAX = 86400000 };

enum request_do { REQUEST_SHOW = 1, REQUEST_PAUSE, REQUEST_RESUME };

struct request {
	enum request_do what;
	char tags[REQUEST_TAGS][STAYPUT_TAG_SIZE];
	size_t tag_count; /* 0: every region */
	int policy;
	bool no_block, check, fail_if_held;
	int64_t wait_ms; /* -1: as the environment says */
	char why[200];   /* what is wrong with it: plain ASCII */
};

enum request_result {
	REQUEST_GOOD,
	REQUEST_BAD,     /* JSON, but not a request */
	REQUEST_GARBAGE, /* not a JSON object */
};

enum request_result request_read(struct request *r, const char *line, size_t len);

#endif
