/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON, as snprintf() writes text: at most `size` bytes into `buf`, and `len` says
 * what the whole needs. Commas and brackets are the caller's. Numbers do not depend on the
 * locale. No lock, no allocation.
 */
#ifndef JSON_H
#define JSON_H

#include <stddef.h>

struct json {
	char *buf;
	size_t size, len;
};

void json_add(struct json *j, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* `text` in quotes. What is not UTF-8 becomes U+FFFD. */
void json_string(struct json *j, const char *text);

/* With six digits after a point. */
void json_decimal(struct json *j, double value);

#endif
