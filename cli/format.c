/* SPDX-License-Identifier: Apache-2.0 */
#include "format.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

const char *bytes_text(double bytes, char *buf, size_t size)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	size_t unit = 0;

	while (bytes >= 1023.5 && unit + 1 < sizeof units / sizeof *units) {
		bytes /= 1024;
		unit++;
	}
	snprintf(buf, size, "%.*f %s",
		unit == 0 || bytes >= 99.95 ? 0
		: bytes >= 9.995            ? 1
					    : 2,
		bytes, units[unit]);
	return buf;
}

const char *seconds_text(double seconds, char *buf, size_t size)
{
	long whole = seconds < 1e15 ? (long)(seconds + 0.5) : 0;

	if (whole >= 100 * 60)
		snprintf(buf, size, "%ld h %ld min", whole / 3600, whole / 60 % 60);
	else if (seconds >= 99.5)
		snprintf(buf, size, "%ld min %ld s", whole / 60, whole % 60);
	else if (seconds < 0.0995)
		snprintf(
			buf, size, "%.*f ms", seconds >= 0.00995 ? 0 : 1, seconds * 1000);
	else
		snprintf(buf, size, "%.*f s",
			seconds >= 9.95    ? 0
			: seconds >= 0.995 ? 1
					   : 2,
			seconds);
	return buf;
}

const char *user_name(uid_t uid, char *buf, size_t size)
{
	const struct passwd *user = getpwuid(uid);

	if (user)
		snprintf(buf, size, "%s", user->pw_name);
	else
		snprintf(buf, size, "%u", (unsigned)uid);
	return buf;
}

void clean(char *text)
{
	for (unsigned char *p = (unsigned char *)text; *p; p++)
		if (*p < ' ' || *p == 127)
			*p = '?';
		else if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) /* U+0080 to 9F */
			p[0] = p[1] = '?';
}

const char *clean_text(const char *text, char *buf, size_t size)
{
	snprintf(buf, size, "%s", text);
	clean(buf);
	return buf;
}

void *need(void *allocated)
{
	if (!allocated)
		exit(say(FAILED, "there is no memory left for what is to be printed"));
	return allocated;
}

void table_row(struct table *table, const char *const *cells, size_t count)
{
	size_t at = table->rows * TABLE_COLUMNS;

	table->cells =
		need(realloc(table->cells, (at + TABLE_COLUMNS) * sizeof *table->cells));
	for (size_t i = 0; i < TABLE_COLUMNS; i++)
		table->cells[at + i] = i < count ? need(strdup(cells[i])) : NULL;
	table->rows++;
}

static size_t columns_of(char *const *row)
{
	size_t n = TABLE_COLUMNS;

	while (n && !row[n - 1])
		n--;
	return n;
}

static size_t cell_width(const char *cell)
{
	return strlen(cell) - (*cell == '>');
}

void table_print(
	struct table *table, FILE *out, const char *indent, size_t width, const char *end)
{
	size_t widest[TABLE_COLUMNS] = {0};

	for (size_t i = 0; i < table->rows * TABLE_COLUMNS; i++) {
		const char *cell = table->cells[i];

		if (cell && cell_width(cell) > widest[i % TABLE_COLUMNS])
			widest[i % TABLE_COLUMNS] = cell_width(cell);
	}
	for (size_t r = 0; r < table->rows; r++) {
		char *const *row = &table->cells[r * TABLE_COLUMNS];
		size_t columns = columns_of(row), len;
		char line[4096];

		len = snprintf(line, sizeof line, "%s", indent);
		for (size_t c = 0; c < columns && len < sizeof line; c++) {
			bool right = *row[c] == '>';
			int fill = c + 1 == columns && !right ? 0 : (int)widest[c];

			len += snprintf(line + len, sizeof line - len, "%s%*s",
				c ? "  " : "", right ? fill : -fill, row[c] + right);
		}
		if (len >= sizeof line)
			len = sizeof line - 1;
		fprintf(out, "%.*s%s\n", (int)(width && len > width ? width : len), line,
			end);
	}
	for (size_t i = 0; i < table->rows * TABLE_COLUMNS; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct table){0};
}

void print_json(cJSON *value)
{
	char *text = need(cJSON_PrintUnformatted(value));

	puts(text);
	cJSON_free(text);
	cJSON_Delete(value);
}
