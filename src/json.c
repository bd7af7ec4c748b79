/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <stdarg.h>
#include <stdio.h>

void json_add(struct json *j, const char *format, ...)
{
	size_t left = j->len < j->size ? j->size - j->len : 0;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(left ? j->buf + j->len : NULL, left, format, args);
	va_end(args);
	j->len += n > 0 ? n : 0;
}

/* Bytes of the UTF-8 character at `s`, or 0. */
static int utf8_length(const unsigned char *s)
{
	static const struct {
		unsigned char first, last; /* that the first byte may be */
		unsigned char low, high;   /* and the second */
		int len;
	} rows[] = {
		{0xc2, 0xdf, 0x80, 0xbf, 2},
		{0xe0, 0xe0, 0xa0, 0xbf, 3},
		{0xe1, 0xec, 0x80, 0xbf, 3},
		{0xed, 0xed, 0x80, 0x9f, 3},
		{0xee, 0xef, 0x80, 0xbf, 3},
		{0xf0, 0xf0, 0x90, 0xbf, 4},
		{0xf1, 0xf3, 0x80, 0xbf, 4},
		{0xf4, 0xf4, 0x80, 0x8f, 4},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		if (s[0] < rows[i].first || s[0] > rows[i].last)
			continue;
		if (s[1] < rows[i].low || s[1] > rows[i].high)
			return 0;
		for (int at = 2; at < rows[i].len; at++)
			if ((s[at] & 0xc0) != 0x80)
				return 0;
		return rows[i].len;
	}
	return 0;
}

void json_string(struct json *j, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	int n;

	json_add(j, "\"");
	for (; *s; s += n ? n : 1) {
		n = utf8_length(s);
		if (*s == '"' || *s == '\\')
			json_add(j, "\\%c", *s);
		else if (*s < 0x20 || *s == 0x7f)
			json_add(j, "\\u%04x", *s);
		else if (*s < 0x80)
			json_add(j, "%c", *s);
		else if (n > 0)
			json_add(j, "%.*s", n, (const char *)s);
		else
			json_add(j, "\\ufffd");
	}
	json_add(j, "\"");
}

void json_decimal(struct json *j, double value)
{
	/* printf's point is the locale's. */
	long long micro = (long long)(value * 1e6 + (value < 0 ? -0.5 : 0.5));
	long long size = micro < 0 ? -micro : micro;

	json_add(
		j, "%s%lld.%06lld", micro < 0 ? "-" : "", size / 1000000, size % 1000000);
}
