/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "format.h"

enum { BAR_MAX = 40, TEXT = 40 };

bool progress_on_terminal(void)
{
	return isatty(STDERR_FILENO);
}

static size_t terminal_columns(void)
{
	struct winsize size;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col
									   : 80;
}

/* ", 38.2 GB/s, 1.2 s left", as far as it is known. */
static void rate_text(const struct progress *p, char *buf, size_t size)
{
	double rate = p->seconds > 0 ? p->bytes / p->seconds : 0;
	char left[TEXT];

	if (rate > 0)
		snprintf(buf, size, ", %.1f GB/s, %s left", rate / 1e9,
			seconds_text((p->total - p->bytes) / rate, left, sizeof left));
	else
		buf[0] = '\0';
}

/* An operation without regions of its own yet waits for another one. */
static void size_text(const struct progress *p, char *buf, size_t size)
{
	char done[TEXT], total[TEXT];

	if (p->total == 0)
		snprintf(buf, size, "waiting for another operation");
	else
		snprintf(buf, size, "%s of %s", bytes_text(p->bytes, done, sizeof done),
			bytes_text(p->total, total, sizeof total));
}

void progress_draw(const char *verb, const struct progress *list, size_t count)
{
	char bar[BAR_MAX + 1] = "", sizes[2 * TEXT + 8], rate[2 * TEXT], line[512];
	struct progress all = {0};
	size_t columns = terminal_columns(), room, filled;

	for (size_t i = 0; i < count; i++) {
		all.bytes += list[i].bytes;
		all.total += list[i].total;
		if (list[i].seconds > all.seconds)
			all.seconds = list[i].seconds;
	}
	size_text(&all, sizes, sizeof sizes);
	rate_text(&all, rate, sizeof rate);
	room = strlen(verb) + strlen(sizes) + strlen(rate) + 6;
	room = columns > room ? columns - room : 0;
	room = room > BAR_MAX ? BAR_MAX : room;
	filled = all.total > 0 ? (size_t)(room * (all.bytes / all.total)) : 0;
	filled = filled > room ? room : filled;
	memset(bar, '#', filled);
	memset(bar + filled, '.', room - filled);
	bar[room] = '\0';
	snprintf(line, sizeof line, "%s [%s] %s%s", verb, bar, sizes, rate);
	fprintf(stderr, "\r%.*s\033[K", (int)columns - 1, line);
	fflush(stderr);
}

void progress_clear(void)
{
	fputs("\r\033[K", stderr);
	fflush(stderr);
}

void progress_tell(const char *verb, int pid, struct progress *p)
{
	char sizes[2 * TEXT + 8], rate[2 * TEXT];

	if (p->begun && p->seconds < p->told + 1)
		return;
	p->begun = true;
	p->told = p->seconds;
	size_text(p, sizes, sizeof sizes);
	rate_text(p, rate, sizeof rate);
	fprintf(stderr, "%d %s: %s%s\n", pid, verb, sizes, rate);
}
