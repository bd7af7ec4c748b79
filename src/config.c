/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A value that cannot be read is reported once, with the variable, the bad part and what
 * is allowed; the whole variable then counts as unset. Nothing here can end the process.
 * The C library's number readers are not used: their decimal point depends on the locale.
 */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_rules.h"
#include "log.h"

enum {
	WAIT_MAX_SECONDS = 86400,
	LIMIT_PERCENT = 80,   /* of available host memory, by default */
	THREADS_DEFAULT = 16, /* at most, by default */
	THREADS_MAX = 256,
};

/* Where complaints go. */
struct complaints {
	char *buf;
	size_t size, len;
};

static const char *const policy_names[] = {
	[STAYPUT_HOST] = "host",
	[STAYPUT_DISCARD] = "discard",
	[STAYPUT_ZERO] = "zero",
	[STAYPUT_KEEP] = "keep",
};

static const char *const log_names[] = {
	[LOG_ERROR] = "error",
	[LOG_WARN] = "warn",
	[LOG_INFO] = "info",
	[LOG_DEBUG] = "debug",
};

__attribute__((format(printf, 2, 3))) static void complain(
	struct complaints *c, const char *format, ...)
{
	va_list args;
	int n;

	if (c->len >= c->size)
		return;
	va_start(args, format);
	n = vsnprintf(c->buf + c->len, c->size - c->len, format, args);
	va_end(args);
	if (n > 0)
		c->len += n;
}

/* Index of the `len` bytes at `word` in `names`, or -1. */
static int find_name(const char *const *names, size_t count, const char *word, size_t len)
{
	for (size_t i = 0; i < count; i++)
		if (names[i] && strlen(names[i]) == len &&
			memcmp(names[i], word, len) == 0)
			return (int)i;
	return -1;
}

static bool valid_tag(const char *tag, size_t len)
{
	static const char allowed[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
		"0123456789_.:-";

	if (len < 1 || len >= STAYPUT_TAG_SIZE)
		return false;
	for (size_t i = 0; i < len; i++)
		if (!memchr(allowed, tag[i], sizeof allowed - 1))
			return false;
	return true;
}

bool config_valid_tag(const char *tag)
{
	return tag && valid_tag(tag, strnlen(tag, STAYPUT_TAG_SIZE));
}

/* Reads one "tag", "tag=policy" or "*=policy". */
static bool read_rule(struct config_rule *rule, const char *text, size_t len)
{
	const char *equals = memchr(text, '=', len);
	size_t tag_len = equals ? (size_t)(equals - text) : len;
	int policy = STAYPUT_POLICY_DEFAULT;

	if (equals) {
		policy = find_name(policy_names,
			sizeof policy_names / sizeof *policy_names, equals + 1,
			len - tag_len - 1);
		if (policy < 0)
			return false;
	}
	if (!(tag_len == 1 && *text == '*') && !valid_tag(text, tag_len))
		return false;
	memcpy(rule->tag, text, tag_len);
	rule->tag[tag_len] = '\0';
	rule->policy = policy;
	return true;
}

static void read_regions(struct config *c, const char *text, struct complaints *out)
{
	size_t count = 1, n = 0;
	struct config_rule *rules;

	for (const char *p = text; *p; p++)
		count += *p == ',';
	rules = calloc(count, sizeof *rules);
	if (!rules)
		return;
	for (const char *p = text; n < count; n++) {
		size_t len = strcspn(p, ",");

		if (!read_rule(&rules[n], p, len)) {
			complain(out,
				"STAYPUT_REGIONS: \"%.*s\" cannot be read; allowed are "
				"TAG, TAG=POLICY and *=POLICY, separated by commas, with "
				"host, discard, zero or keep; using what the program "
				"asks for\n",
				(int)(len > 100 ? 100 : len), p);
			free(rules);
			return;
		}
		p += len + 1;
	}
	c->rules = rules;
	c->rule_count = count;
}

static void read_default(struct config *c, const char *text, struct complaints *out)
{
	if (config_valid_tag(text))
		strcpy(c->default_tag, text);
	else
		complain(out,
			"STAYPUT_DEFAULT: \"%.100s\" is not a tag (1 to 63 bytes of "
			"[A-Za-z0-9_.:-]); using none\n",
			text);
}

static void read_rules(struct config *c, const char *text, struct complaints *out)
{
	struct config_part bad;

	if (!config_rules_read(c, text, &bad))
		complain(out,
			"STAYPUT_RULES: \"%.*s\" cannot be read; allowed are up to %d of "
			"TAG:CONDITION,... separated by semicolons, with size>=N and "
			"size<N (1000000, 2MiB), device=N and module=PART of a file "
			"name; using none\n",
			(int)(bad.len > 100 ? 100 : bad.len), bad.text, CONFIG_MATCHES);
}

static void read_exclude(struct config *c, const char *text, struct complaints *out)
{
	struct config_part bad;

	if (!config_exclude_read(c, text, &bad))
		complain(out,
			"STAYPUT_EXCLUDE: \"%.*s\" cannot be read; allowed are none, or "
			"parts of file names of 1 to %d bytes, separated by commas, "
			"after "
			"a + in addition to the default; using %s\n",
			(int)(bad.len > 100 ? 100 : bad.len), bad.text,
			CONFIG_PART_SIZE - 1, CONFIG_EXCLUDE_DEFAULT);
}

static void read_wait(struct config *c, const char *text, struct complaints *out)
{
	const char *p = text;
	int64_t ms = 0;
	int64_t scale = 1000;

	for (; *p >= '0' && *p <= '9' && ms <= WAIT_MAX_SECONDS * INT64_C(1000); p++)
		ms = ms * 10 + (*p - '0') * INT64_C(1000);
	if (*p == '.' && p != text)
		for (p++; *p >= '0' && *p <= '9'; p++)
			ms += (*p - '0') * (scale /= 10);
	if (p != text && *p == '\0' && ms <= WAIT_MAX_SECONDS * INT64_C(1000))
		c->resume_wait_ms = ms;
	else
		complain(out,
			"STAYPUT_RESUME_WAIT: \"%.100s\" is not a number of seconds from "
			"0 to %d; using 0\n",
			text, WAIT_MAX_SECONDS);
}

static void read_log(struct config *c, const char *text, struct complaints *out)
{
	int level = find_name(
		log_names, sizeof log_names / sizeof *log_names, text, strlen(text));

	if (level >= 0)
		c->log_level = level;
	else
		complain(out,
			"STAYPUT_LOG: \"%.100s\" is not error, warn, info or debug; "
			"using "
			"warn\n",
			text);
}

bool config_read_size(const char *text, size_t *size)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	const char *p = text;
	size_t n = 0;

	for (; *p >= '0' && *p <= '9'; p++)
		if (__builtin_mul_overflow(n, 10, &n) ||
			__builtin_add_overflow(n, (size_t)(*p - '0'), &n))
			return false;
	for (size_t i = 0; p != text && i < sizeof units / sizeof *units; i++) {
		if (strcmp(p, units[i]) != 0)
			continue;
		if (__builtin_mul_overflow(n, (size_t)1 << (10 * i), &n))
			return false;
		*size = n;
		return true;
	}
	return false;
}

/* Reads a number from `min` to `max` that ends in `end`. */
static bool read_number(
	const char *text, const char *end, unsigned min, unsigned max, unsigned *value)
{
	const char *p = text;
	unsigned n = 0;

	for (; *p >= '0' && *p <= '9' && n <= max; p++)
		n = n * 10 + (unsigned)(*p - '0');
	if (p == text || strcmp(p, end) != 0 || n < min || n > max)
		return false;
	*value = n;
	return true;
}

static void read_host_limit(struct config *c, const char *text, struct complaints *out)
{
	if (read_number(text, "%", 1, 100, &c->host_limit_percent))
		return;
	if (config_read_size(text, &c->host_limit_bytes)) {
		c->host_limit_percent = 0;
		return;
	}
	complain(out,
		"STAYPUT_HOST_LIMIT: \"%.100s\" is not a size (1000000, 64GiB) or 1%% to "
		"100%%; using %d%%\n",
		text, LIMIT_PERCENT);
}

static void read_host_keep(struct config *c, const char *text, struct complaints *out)
{
	if (strcmp(text, "all") != 0 && !config_read_size(text, &c->host_keep))
		complain(out,
			"STAYPUT_HOST_KEEP: \"%.100s\" is not a size (0, 64GiB) or all; "
			"using all\n",
			text);
}

static void read_threads(struct config *c, const char *text, struct complaints *out)
{
	if (!read_number(text, "", 1, THREADS_MAX, &c->threads))
		complain(out,
			"STAYPUT_THREADS: \"%.100s\" is not a number from 1 to %d; using "
			"%u\n",
			text, THREADS_MAX, c->threads);
}

static void read_verify(struct config *c, const char *text, struct complaints *out)
{
	if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
		complain(
			out, "STAYPUT_VERIFY: \"%.100s\" is not 0 or 1; using 0\n", text);
	c->verify = strcmp(text, "1") == 0;
}

static void read_control(struct config *c, const char *text, struct complaints *out)
{
	c->control = strcmp(text, "1") == 0 || text[0] == '/';
	if (text[0] == '/')
		c->control_path = text;
	else if (!c->control && strcmp(text, "0") != 0)
		complain(out,
			"STAYPUT_CONTROL: \"%.100s\" is not 0, 1 or the absolute path "
			"of a socket; using 0\n",
			text);
}

/* The cores that this process may run on, within reason. */
static unsigned default_threads(void)
{
	cpu_set_t cores;
	int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;

	return n < THREADS_DEFAULT ? n : THREADS_DEFAULT;
}

void config_read(struct config *c, const char *(*get)(const char *name), char *complaints,
	size_t size)
{
	static const struct {
		const char *name;
		void (*read)(struct config *c, const char *text, struct complaints *out);
	} variables[] = {
		{"STAYPUT_REGIONS", read_regions},
		{"STAYPUT_DEFAULT", read_default},
		{"STAYPUT_RULES", read_rules},
		{"STAYPUT_EXCLUDE", read_exclude},
		{"STAYPUT_RESUME_WAIT", read_wait},
		{"STAYPUT_HOST_LIMIT", read_host_limit},
		{"STAYPUT_HOST_KEEP", read_host_keep},
		{"STAYPUT_THREADS", read_threads},
		{"STAYPUT_VERIFY", read_verify},
		{"STAYPUT_CONTROL", read_control},
		{"STAYPUT_LOG", read_log},
	};
	struct complaints out = {.buf = complaints, .size = size};
	const char *text;

	*c = (struct config){
		.log_level = LOG_WARN,
		.host_limit_bytes = SIZE_MAX,
		.host_limit_percent = LIMIT_PERCENT,
		.host_keep = SIZE_MAX,
		.threads = default_threads(),
	};
	complaints[0] = '\0';
	read_exclude(c, CONFIG_EXCLUDE_DEFAULT, &out);
	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
		text = get(variables[i].name);
		if (text && *text)
			variables[i].read(c, text, &out);
	}
	text = get("STAYPUT_LOG_FILE");
	if (text && *text)
		c->log_file = text;
}

void config_free(struct config *c)
{
	free(c->rules);
	free(c->matches);
	free(c->exclude);
}

static const char *get_environment(const char *name)
{
	return secure_getenv(name);
}

/* The lines of `complaints`, one log line each. */
static void report(char *complaints)
{
	for (char *line = complaints, *end; (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		log_line(LOG_WARN, "%s", line);
	}
}

const struct config *config(void)
{
	static const struct config fallback = {.log_level = LOG_WARN,
		.host_limit_percent = LIMIT_PERCENT,
		.host_keep = SIZE_MAX,
		.threads = 1};
	static _Atomic(const struct config *) current;
	const struct config *seen = atomic_load_explicit(&current, memory_order_acquire);
	char complaints[2048];
	struct config *fresh;
	int saved = errno;

	if (seen)
		return seen;
	fresh = malloc(sizeof *fresh);
	if (!fresh)
		return &fallback;
	config_read(fresh, get_environment, complaints, sizeof complaints);
	if (atomic_compare_exchange_strong(&current, &seen, fresh)) {
		/* Complaints come before the level is lowered: they are always told. */
		report(complaints);
		log_setup(fresh->log_level, fresh->log_file);
		seen = fresh;
	} else {
		config_free(fresh);
		free(fresh);
	}
	errno = saved;
	return seen;
}
