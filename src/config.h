/* SPDX-License-Identifier: Apache-2.0 */
/* The environment, read once at the first use and never changed afterwards. No lock. */
#ifndef CONFIG_H
#define CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stayput.h"

/* One entry of STAYPUT_REGIONS. */
struct config_rule {
	char tag[STAYPUT_TAG_SIZE]; /* "*" matches every tag */
	int policy;                 /* STAYPUT_POLICY_DEFAULT: as the code asked */
};

/* At most so many entries of STAYPUT_RULES; a part of a file name, its NUL included. */
enum { CONFIG_MATCHES = 64, CONFIG_PART_SIZE = 64 };

/* One entry of STAYPUT_RULES: an allocation to which all of it applies gets the tag. */
struct config_match {
	char tag[STAYPUT_TAG_SIZE];
	size_t size_least, size_below; /* 0 and SIZE_MAX: no limit */
	int device;                    /* -1: any */
	char module[CONFIG_PART_SIZE]; /* part of the caller's file name; "": any */
};

struct config {
	struct config_rule *rules; /* NULL: STAYPUT_REGIONS is not set */
	size_t rule_count;
	struct config_match *matches; /* STAYPUT_RULES */
	size_t match_count;
	char (*exclude)[CONFIG_PART_SIZE]; /* parts of file names */
	size_t exclude_count;
	char default_tag[STAYPUT_TAG_SIZE]; /* "": none */
	int64_t resume_wait_ms;
	size_t host_limit_bytes;     /* SIZE_MAX: none */
	unsigned host_limit_percent; /* 0: host_limit_bytes counts */
	size_t host_keep;            /* SIZE_MAX: all */
	unsigned threads;
	bool verify;
	bool control;             /* a server for the `stayput` program is wanted */
	const char *control_path; /* of its socket; NULL: the usual one */
	int log_level;
	const char *log_file;
};

/* Never NULL. */
const struct config *config(void);

bool config_valid_tag(const char *tag);

/* Reads a number with a unit: bytes, KiB, MiB, GiB, TiB. */
bool config_read_size(const char *text, size_t *size);

/* Reads `env` through `get`; what cannot be read keeps its default and is told in
 * `complaints`, one line each. Apart for the tests. */
void config_read(struct config *c, const char *(*get)(const char *name), char *complaints,
	size_t size);

/* Frees what *c holds. */
void config_free(struct config *c);

#endif
