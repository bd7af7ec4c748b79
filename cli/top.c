/* SPDX-License-Identifier: Apache-2.0 */
/* stayput top - ps and the regions of each process, over and over. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "client.h"
#include "format.h"
#include "gpu.h"
#include "terminal.h"
#include "view.h"

static const char help[] =
	"usage: stayput top [--interval-ms N] [--count N]\n"
	"\n"
	"Shows GPUs, processes under stayput and their regions until q or ^C. Where "
	"standard\n"
	"output is no terminal, frames follow each other.\n"
	"\n"
	"  --interval-ms N    between frames, 100 to 60000 (default 1000)\n"
	"  --count N          end after N frames\n"
	"  -h, --help\n"
	"\n"
	"  stayput top\n"
	"  stayput top --count 1 >now.txt\n";

enum {
	BAR = 24,
	TEXT = CELL,
	TAG = 24, /* of a tag's 63 bytes; the sizes matter more */
};

/* "#####...": how much of `total` there is. */
static const char *bar_text(double part, double total, char buf[BAR + 3])
{
	size_t filled = total > 0 ? (size_t)(BAR * (part / total) + 0.5) : 0;

	filled = filled > BAR ? BAR : filled;
	buf[0] = '[';
	memset(buf + 1, '#', filled);
	memset(buf + 1 + filled, '.', BAR - filled);
	strcpy(buf + 1 + BAR, "]");
	return buf;
}

static void add_gpus(FILE *out, size_t columns)
{
	for (unsigned g = 0; g < gpu_count(); g++) {
		char bar[BAR + 3], text[2][TEXT], line[256];
		double used, total;
		int n;

		if (!gpu_memory(g, &used, &total))
			continue;
		n = snprintf(line, sizeof line, "GPU %-2u %s %s of %s", g,
			bar_text(used, total, bar), bytes_text(used, text[0], TEXT),
			bytes_text(total, text[1], TEXT));
		fprintf(out, "%.*s\033[K\n",
			columns && (size_t)n > columns ? (int)columns : n, line);
	}
}

/* One operation under way, as part of its process's state: "pausing 43%". */
static const char *state_text(
	const cJSON *snapshot, const struct totals *t, char *buf, size_t size)
{
	const cJSON *running = cJSON_GetArrayItem(
		cJSON_GetObjectItemCaseSensitive(snapshot, "running"), 0);
	double total = number_of(running, "total");

	if (total > 0)
		snprintf(buf, size, "%s %.0f%%", t->state,
			100 * number_of(running, "bytes") / total);
	else
		snprintf(buf, size, "%s", t->state);
	return buf;
}

static void add_sizes(struct table *table, const char *pid, const char *who,
	const char *state, const double sizes[5], const char *command)
{
	char text[5][CELL];

	for (int i = 0; i < 5; i++)
		size_cell(sizes[i], text[i]);
	ROW(table, pid, who, state, text[0], text[1], text[2], text[3], text[4], command);
}

static void add_process(
	struct table *table, const struct process *process, const cJSON *snapshot)
{
	const struct totals t = totals_of(process, snapshot);
	const double sizes[] = {t.active, t.paused, t.native, t.device, t.backup};
	char pid[16], user[64], state[TEXT], command[1024];
	const cJSON *r;

	snprintf(pid, sizeof pid, ">%d", (int)process->pid);
	add_sizes(table, pid, user_name(process->uid, user, sizeof user),
		snapshot ? state_text(snapshot, &t, state, sizeof state) : "no answer",
		sizes, command_of(process, snapshot, command, sizeof command));
	cJSON_ArrayForEach(r, cJSON_GetObjectItemCaseSensitive(snapshot, "regions"))
	{
		const double parts[] = {number_of(r, "bytes_active"),
			number_of(r, "bytes_paused"), number_of(r, "bytes_kept"),
			number_of(r, "bytes_device"), number_of(r, "bytes_backup")};
		char tag[TAG + 3];

		snprintf(tag, sizeof tag, "  %s", word_of(r, "tag"));
		add_sizes(table, "", tag, word_of(r, "state"), parts, "");
	}
}

/* A whole frame as text; lines are cut at the window's edge. */
static char *compose(size_t columns)
{
	struct processes found = {0};
	struct table table = {0};
	char *text = NULL, clock[TEXT];
	cJSON **snapshots;
	time_t now = time(NULL);
	struct tm tm;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	client_find(&found);
	strftime(clock, sizeof clock, "%T", localtime_r(&now, &tm));
	fprintf(out, "stayput top  %s  processes: %zu\033[K\n", clock, found.count);
	add_gpus(out, columns);
	fprintf(out, "\033[K\n");
	ROW(&table, ">PID", "USER, REGION", "STATE", ">ACTIVE", ">PAUSED", ">NATIVE",
		">DEVICE", ">BACKUP", "COMMAND");
	snapshots = need(calloc(found.count + 1, sizeof *snapshots));
	client_show(found.list, found.count, snapshots);
	for (size_t i = 0; i < found.count; i++) {
		add_process(&table, &found.list[i], snapshots[i]);
		cJSON_Delete(snapshots[i]);
	}
	free(snapshots);
	client_free(&found);
	table_print(&table, out, "", columns, "\033[K");
	fclose(out);
	return text;
}

/* The first `rows` lines, from the top of the screen; nothing of the frame before stays. */
static void draw(const char *frame, size_t rows)
{
	fputs("\033[H", stdout);
	for (size_t row = 0; *frame && row < rows; row++) {
		size_t len = strcspn(frame, "\n");

		printf("%s%.*s", row ? "\r\n" : "", (int)len, frame);
		frame += len + (frame[len] == '\n');
	}
	fputs("\033[J", stdout);
	fflush(stdout);
}

/* Without what steers a terminal. */
static void print(const char *frame)
{
	for (const char *end; (end = strstr(frame, "\033[K")); frame = end + 3)
		fwrite(frame, 1, end - frame, stdout);
	puts(frame);
	fflush(stdout);
}

/* -1 when all is well. */
static int read_options(int argc, char **argv, long *interval_ms, long *count)
{
	static const struct option options[] = {
		{"interval-ms", required_argument, NULL, 'i'},
		{"count", required_argument, NULL, 'n'}, {"help", no_argument, NULL, 'h'},
		{0}};
	int option;

	while ((option = getopt_long(argc, argv, "hn:", options, NULL)) != -1) {
		if (option == 'h')
			return print_help(&top_command);
		if (option == 'i' && !read_whole(optarg, 100, 60000, interval_ms))
			return say(USAGE,
				"--interval-ms: \"%s\" is not a number from 100 to 60000",
				optarg);
		if (option == 'n' && !read_whole(optarg, 1, 1000000000, count))
			return say(USAGE, "--count: \"%s\" is not a number of frames",
				optarg);
		if (option == '?')
			return USAGE;
	}
	if (optind < argc)
		return say(USAGE, "top takes no arguments");
	return -1;
}

static int top(int argc, char **argv)
{
	long interval_ms = 1000, count = 0;
	int code = read_options(argc, argv, &interval_ms, &count), key = 0;
	bool on_terminal;

	if (code >= 0)
		return code;
	on_terminal = terminal_take();
	for (long n = 1; !terminal_stopped() && key != 'q' && key != 'Q'; n++) {
		size_t columns, rows;
		char *frame;

		terminal_size(&columns, &rows);
		frame = compose(on_terminal ? columns : 0);
		if (frame && on_terminal)
			draw(frame, rows);
		else if (frame)
			print(frame);
		free(frame);
		if (n == count)
			break;
		key = terminal_wait(interval_ms / 1000.0);
	}
	terminal_give_back();
	return DONE;
}

const struct command top_command = {"top", top, "processes and regions, live", help};
