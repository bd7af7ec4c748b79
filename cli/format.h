/* SPDX-License-Identifier: Apache-2.0 */
/* How numbers, names and tables are put into words. Buffers end in NUL. */
#ifndef FORMAT_H
#define FORMAT_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include <cjson/cJSON.h>

/* What was allocated for something to be printed; ends the program when that is NULL. */
void *need(void *allocated);

/* "512 B", "1.5 MiB", "141 GiB": three digits at least, from the unit that suits. All of
 * these return their buffer. */
const char *bytes_text(double bytes, char *buf, size_t size);

/* "27 ms", "0.31 s", "12 s", "3 min 20 s", "51 h 7 min". */
const char *seconds_text(double seconds, char *buf, size_t size);

/* The login name, or the number of a user without one. */
const char *user_name(uid_t uid, char *buf, size_t size);

/* Other people's text without what would steer a terminal, in place or in `buf`. */
void clean(char *text);
const char *clean_text(const char *text, char *buf, size_t size);

/*
 * Rows of cells, as wide as the widest of their column. A cell that begins with '>' is set
 * to the right, without that sign. Not more than TABLE_COLUMNS columns; the last one is not
 * filled up. Running out of memory ends the program: nothing could be printed.
 */
enum { TABLE_COLUMNS = 12 };

struct table {
	char **cells; /* row by row, TABLE_COLUMNS each */
	size_t rows;
};

void table_row(struct table *table, const char *const *cells, size_t count);
/* Prints each line with `indent` before it, cut to `width` bytes where that is not 0, and
 * `end` after it; empties the table. */
void table_print(struct table *table, FILE *out, const char *indent, size_t width,
	const char *end);

#define ROW(table, ...)                                      \
	table_row(table, (const char *const[]){__VA_ARGS__}, \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* `value` on one line, and deletes it. */
void print_json(cJSON *value);

#endif
