/* SPDX-License-Identifier: Apache-2.0 */
/* First the whole line is checked to be an object, then its members are looked at: what
 * looks at them need not care about broken JSON any more. */
#include "control_request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config.h"

enum { DEPTH_MAX = 32, WORD_SIZE = 64 };

/* Those that skip return where they have come to, or NULL where the JSON is broken. */

static const char *skip_blank(const char *p, const char *end)
{
	while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
		p++;
	return p;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* What follows a backslash. */
static const char *skip_escape(const char *p, const char *end)
{
	if (p == end || !memchr("\"\\/bfnrtu", *p, 9))
		return NULL;
	if (*p++ != 'u')
		return p;
	for (int i = 0; i < 4; i++, p++)
		if (p == end || hex_digit(*p) < 0)
			return NULL;
	return p;
}

static const char *skip_string(const char *p, const char *end)
{
	if (p == end || *p++ != '"')
		return NULL;
	while (p && p < end && *p != '"') {
		if ((unsigned char)*p < 0x20)
			return NULL;
		if (*p++ == '\\')
			p = skip_escape(p, end);
	}
	return p && p < end ? p + 1 : NULL;
}

static const char *skip_digits(const char *p, const char *end)
{
	const char *start = p;

	while (p < end && *p >= '0' && *p <= '9')
		p++;
	return p > start ? p : NULL;
}

static const char *skip_number(const char *p, const char *end)
{
	const char *start;

	if (p < end && *p == '-')
		p++;
	start = p;
	p = skip_digits(p, end);
	if (!p || (*start == '0' && p > start + 1))
		return NULL;
	if (p < end && *p == '.')
		p = skip_digits(p + 1, end);
	if (p && p < end && (*p == 'e' || *p == 'E')) {
		p++;
		if (p < end && (*p == '+' || *p == '-'))
			p++;
		p = skip_digits(p, end);
	}
	return p;
}

static const char *skip_scalar(const char *p, const char *end)
{
	static const char *const words[] = {"true", "false", "null"};

	if (p < end && *p == '"')
		return skip_string(p, end);
	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		size_t len = strlen(words[i]);

		if ((size_t)(end - p) >= len && memcmp(p, words[i], len) == 0)
			return p + len;
	}
	return skip_number(p, end);
}

/* A name and its colon. */
static const char *skip_name(const char *p, const char *end)
{
	p = skip_string(skip_blank(p, end), end);
	if (!p)
		return NULL;
	p = skip_blank(p, end);
	return p < end && *p == ':' ? p + 1 : NULL;
}

/* After a value: the ends of what it was the last of, or the comma before the next. */
static const char *skip_ends(
	const char *p, const char *end, const char *closers, int *depth)
{
	while (*depth > 0) {
		p = skip_blank(p, end);
		if (p == end)
			return NULL;
		if (*p == closers[*depth - 1]) {
			--*depth;
			p++;
			continue;
		}
		if (*p++ != ',')
			return NULL;
		return closers[*depth - 1] == '}' ? skip_name(p, end) : p;
	}
	return p;
}

static const char *skip_value(const char *p, const char *end)
{
	char closers[DEPTH_MAX];
	int depth = 0;

	do {
		p = skip_blank(p, end);
		if (p < end && (*p == '{' || *p == '[')) {
			if (depth == DEPTH_MAX)
				return NULL;
			closers[depth++] = *p == '{' ? '}' : ']';
			p = skip_blank(p + 1, end);
			if (p == end || *p != closers[depth - 1]) {
				if (closers[depth - 1] == '}')
					p = skip_name(p, end);
				continue;
			}
		} else {
			p = skip_scalar(p, end);
		}
		if (p)
			p = skip_ends(p, end, closers, &depth);
	} while (p && depth > 0);
	return p;
}

/* From here on everything is known to be well formed. */
struct value {
	const char *at, *end;
};

/* The first complaint stays. */
__attribute__((format(printf, 2, 3))) static bool bad(
	struct request *r, const char *format, ...)
{
	va_list args;

	if (r->why[0])
		return false;
	va_start(args, format);
	vsnprintf(r->why, sizeof r->why, format, args);
	va_end(args);
	return false;
}

/* The character after a backslash, or 0 when it is none that a word may have. */
static char unescape(const char **p)
{
	char c = *(*p)++;
	int code = 0;

	if (c != 'u')
		return c == '"' || c == '\\' || c == '/' ? c : 0;
	for (int i = 0; i < 4; i++)
		code = code * 16 + hex_digit(*(*p)++);
	return code >= 0x20 && code < 0x7f ? (char)code : 0;
}

/* A string of printable ASCII. False when it is another, or too long, or no string. */
static bool read_word(struct value v, char word[WORD_SIZE])
{
	size_t len = 0;

	if (*v.at != '"')
		return false;
	for (const char *p = v.at + 1; *p != '"';) {
		char c = *p++;

		if (c == '\\')
			c = unescape(&p);
		if (c < 0x20 || c > 0x7e || len == WORD_SIZE - 1)
			return false;
		word[len++] = c;
	}
	word[len] = '\0';
	return true;
}

static bool is_literal(struct value v, const char *text)
{
	size_t len = strlen(text);

	return (size_t)(v.end - v.at) == len && memcmp(v.at, text, len) == 0;
}

static bool read_bool(struct value v, bool *value)
{
	*value = is_literal(v, "true");
	return *value || is_literal(v, "false");
}

/* A whole number from 0 to `max`. */
static bool read_number(struct value v, int64_t max, int64_t *value)
{
	int64_t n = 0;

	for (const char *p = v.at; p < v.end; p++) {
		if (*p < '0' || *p > '9' || n > max)
			return false;
		n = n * 10 + (*p - '0');
	}
	*value = n;
	return n <= max;
}

/* Goes through an object or array: *at is after the bracket, or after a value. */
static bool next_value(const char **at, const char *end, struct value *v)
{
	*at = skip_blank(*at, end);
	if (**at == ',')
		*at = skip_blank(*at + 1, end);
	if (**at == '}' || **at == ']')
		return false;
	v->at = *at;
	*at = skip_value(*at, end);
	v->end = *at;
	return true;
}

static bool next_member(
	const char **at, const char *end, char name[WORD_SIZE], struct value *v)
{
	if (!next_value(at, end, v))
		return false;
	if (!read_word(*v, name))
		name[0] = '\0';
	*at = skip_blank(skip_blank(*at, end) + 1, end);
	v->at = *at;
	*at = skip_value(*at, end);
	v->end = *at;
	return true;
}

static void read_version(struct request *r, struct value v)
{
	int64_t version;

	if (!read_number(v, REQUEST_VERSION, &version) || version != REQUEST_VERSION)
		bad(r,
			"this library speaks version %d of the protocol, and the request "
			"another",
			REQUEST_VERSION);
}

static void read_do(struct request *r, struct value v)
{
	static const char *const names[] = {[REQUEST_SHOW] = "show",
		[REQUEST_PAUSE] = "pause",
		[REQUEST_RESUME] = "resume"};
	char word[WORD_SIZE];
	bool is_word = read_word(v, word);

	for (int i = REQUEST_SHOW; is_word && i <= REQUEST_RESUME; i++)
		if (strcmp(word, names[i]) == 0)
			r->what = i;
	if (!r->what)
		bad(r, "do is %s, and can be show, pause or resume",
			is_word ? word : "not a word");
}

static void read_tags(struct request *r, struct value v)
{
	const char *at = v.at + 1;
	char word[WORD_SIZE];
	struct value tag;

	if (*v.at != '[') {
		bad(r, "tags is not an array");
		return;
	}
	while (next_value(&at, v.end, &tag)) {
		if (!read_word(tag, word) || !config_valid_tag(word)) {
			bad(r, "tags has one that is none: 1 to 63 bytes of "
			       "[A-Za-z0-9_.:-] are allowed");
			return;
		}
		if (r->tag_count == REQUEST_TAGS) {
			bad(r, "tags has more than %d", REQUEST_TAGS);
			return;
		}
		strcpy(r->tags[r->tag_count++], word);
	}
}

static void read_policy(struct request *r, struct value v)
{
	static const char *const names[] = {[STAYPUT_HOST] = "host",
		[STAYPUT_DISCARD] = "discard",
		[STAYPUT_ZERO] = "zero"};
	char word[WORD_SIZE];
	bool is_word = read_word(v, word);

	for (int i = STAYPUT_HOST; is_word && i <= STAYPUT_ZERO; i++)
		if (strcmp(word, names[i]) == 0)
			r->policy = i;
	if (!r->policy)
		bad(r, "policy is %s, and can be host, discard or zero",
			is_word ? word : "not a word");
}

static void read_block(struct request *r, struct value v)
{
	bool block;

	if (!read_bool(v, &block))
		bad(r, "block is not true or false");
	r->no_block = !block;
}

static void read_check(struct request *r, struct value v)
{
	if (!read_bool(v, &r->check))
		bad(r, "check is not true or false");
}

static void read_fail_if_held(struct request *r, struct value v)
{
	if (!read_bool(v, &r->fail_if_held))
		bad(r, "fail_if_held is not true or false");
}

static void read_wait(struct request *r, struct value v)
{
	if (!read_number(v, REQUEST_WAIT_MAX, &r->wait_ms))
		bad(r, "wait_ms is not a whole number from 0 to %d", REQUEST_WAIT_MAX);
}

static const struct {
	const char *name;
	void (*read)(struct request *r, struct value v);
} members[] = {
	{"stayput", read_version},
	{"do", read_do},
	{"tags", read_tags},
	{"policy", read_policy},
	{"block", read_block},
	{"check", read_check},
	{"fail_if_held", read_fail_if_held},
	{"wait_ms", read_wait},
};

enum { MEMBERS = sizeof members / sizeof *members };

static void read_members(struct request *r, const char *at, const char *end)
{
	bool seen[MEMBERS] = {false};
	char name[WORD_SIZE];
	struct value v;

	while (next_member(&at, end, name, &v))
		for (int i = 0; i < MEMBERS; i++) {
			if (strcmp(name, members[i].name) != 0)
				continue;
			if (seen[i])
				bad(r, "%s is there twice", name);
			else
				members[i].read(r, v);
			seen[i] = true;
		}
	for (int i = 0; i < 2; i++)
		if (!seen[i])
			bad(r, "the request has no member %s", members[i].name);
}

enum request_result request_read(struct request *r, const char *line, size_t len)
{
	const char *end = line + len;
	const char *start = skip_blank(line, end), *after;

	memset(r, 0, sizeof *r);
	r->wait_ms = -1;
	after = start < end && *start == '{' ? skip_value(start, end) : NULL;
	if (!after || skip_blank(after, end) != end) {
		bad(r, "the request is not one JSON object on one line");
		return REQUEST_GARBAGE;
	}
	read_members(r, start + 1, end);
	return r->why[0] ? REQUEST_BAD : REQUEST_GOOD;
}
