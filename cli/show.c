/* SPDX-License-Identifier: Apache-2.0 */
/* stayput show - all that processes say of themselves. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "client.h"
#include "format.h"
#include "view.h"

static const char help[] =
	"usage: stayput show PID... [--json]\n"
	"\n"
	"Shows regions, devices, host memory, what is being done and how the last "
	"operation\n"
	"went.\n"
	"\n"
	"  --json       an array of the processes' own snapshots, sizes in bytes\n"
	"  -h, --help\n"
	"\n"
	"  stayput show 4711\n"
	"  stayput show --json 4711 | jq '.[0].regions[] | {tag, bytes_device}'\n";

static const char *cell(const cJSON *object, const char *name, char buf[CELL])
{
	return size_cell(number_of(object, name), buf);
}

static void print_regions(const cJSON *regions)
{
	struct table table = {0};
	const cJSON *r;

	ROW(&table, "REGION", "STATE", ">ACTIVE", ">PAUSED", ">KEPT", ">DEVICE",
		">BACKUP", ">ALLOCATIONS");
	cJSON_ArrayForEach(r, regions)
	{
		char text[6][CELL];

		snprintf(text[5], CELL, ">%.0f",
			number_of(r, "count_active") + number_of(r, "count_paused") +
				number_of(r, "count_kept"));
		ROW(&table, word_of(r, "tag"), word_of(r, "state"),
			cell(r, "bytes_active", text[0]),
			cell(r, "bytes_paused", text[1]), cell(r, "bytes_kept", text[2]),
			cell(r, "bytes_device", text[3]),
			cell(r, "bytes_backup", text[4]), text[5]);
	}
	table_print(&table, stdout, "  ", 0, "");
}

/* What the regions would have, but cannot pause. */
static void print_out_of_reach(const cJSON *regions)
{
	static const char *const kinds[][2] = {
		{"bytes_stream_ordered", "stream-ordered memory"},
		{"bytes_foreign_vmm", "by cuMemCreate() of its own"}};
	const cJSON *r;

	cJSON_ArrayForEach(r, regions)
	{
		for (int i = 0; i < 2; i++) {
			char text[CELL];

			if (number_of(r, kinds[i][0]) > 0)
				printf("  %s: %s stay on the device: %s\n",
					word_of(r, "tag"),
					bytes_text(number_of(r, kinds[i][0]), text, CELL),
					kinds[i][1]);
		}
	}
}

/* "released 1.5 GiB" for each member with a size that is not 0. */
static void print_sizes(const cJSON *object)
{
	const char *comma = "";
	const cJSON *item;

	cJSON_ArrayForEach(item, object)
	{
		char text[CELL];

		if (strncmp(item->string, "bytes_", 6) != 0 || item->valuedouble == 0)
			continue;
		printf("%s %s %s", comma, item->string + 6,
			bytes_text(item->valuedouble, text, sizeof text));
		comma = ",";
	}
	if (!*comma)
		printf(" nothing");
}

static void print_tags(const cJSON *operation)
{
	const cJSON *tag;

	cJSON_ArrayForEach(tag, cJSON_GetObjectItemCaseSensitive(
					operation, "tags")) if (cJSON_IsString(tag))
		printf(" %s", tag->valuestring);
}

static void print_phases(const cJSON *report)
{
	const cJSON *item;

	cJSON_ArrayForEach(item, report)
	{
		char text[CELL];

		if (strncmp(item->string, "seconds_", 8) == 0 && item->valuedouble > 0)
			printf(", %s %s", item->string + 8,
				seconds_text(item->valuedouble, text, sizeof text));
	}
}

static void print_last(const cJSON *last)
{
	const cJSON *report = cJSON_GetObjectItemCaseSensitive(last, "report");
	const cJSON *devices = cJSON_GetObjectItemCaseSensitive(report, "devices");
	const cJSON *total = cJSON_GetObjectItemCaseSensitive(report, "total"), *device;
	char text[CELL], when[CELL] = "";
	time_t at = (time_t)number_of(last, "at");
	struct tm tm;

	if (at && localtime_r(&at, &tm))
		strftime(when, sizeof when, " at %F %T", &tm);
	printf("  last: %s", word_of(last, "do"));
	print_tags(last);
	printf("%s, %s", when,
		seconds_text(number_of(report, "seconds"), text, sizeof text));
	if (number_of(last, "code") != 0)
		printf(", failed (%s): %s", word_of(last, "name"),
			word_of(last, "message"));
	printf("\n   ");
	print_sizes(total);
	print_phases(total);
	printf("\n");
	if (cJSON_GetArraySize(devices) < 2)
		return;
	cJSON_ArrayForEach(device, devices)
	{
		printf("    device %.0f:", number_of(device, "device"));
		print_sizes(device);
		print_phases(device);
		printf("\n");
	}
}

static void print_running(const cJSON *operation)
{
	char done[CELL], total[CELL], seconds[CELL];

	printf("  running: %s", word_of(operation, "do"));
	print_tags(operation);
	printf(", %s of %s, for %s\n",
		bytes_text(number_of(operation, "bytes"), done, sizeof done),
		bytes_text(number_of(operation, "total"), total, sizeof total),
		seconds_text(number_of(operation, "seconds"), seconds, sizeof seconds));
}

static void print_process(const struct process *process, const cJSON *snapshot)
{
	const struct totals t = totals_of(process, snapshot);
	const cJSON *item, *last = cJSON_GetObjectItemCaseSensitive(snapshot, "last");
	char user[64], command[1024], host[CELL], idle[CELL], native[CELL], up[CELL];

	printf("%d %s, %s, up %s, library %s: %s\n", (int)process->pid,
		user_name(process->uid, user, sizeof user), t.state,
		seconds_text(number_of(snapshot, "uptime_seconds"), up, sizeof up),
		word_of(snapshot, "version"),
		command_of(process, snapshot, command, sizeof command));
	print_regions(cJSON_GetObjectItemCaseSensitive(snapshot, "regions"));
	print_out_of_reach(cJSON_GetObjectItemCaseSensitive(snapshot, "regions"));
	cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(snapshot, "devices"))
	{
		printf("  device %.0f:", number_of(item, "device"));
		print_sizes(item);
		printf("\n");
	}
	if (t.native >= 0)
		printf("  native, contexts included: %s\n",
			bytes_text(t.native, native, sizeof native));
	printf("  host memory: %s, of it %s idle\n",
		bytes_text(number_of(snapshot, "host_bytes"), host, sizeof host),
		bytes_text(number_of(snapshot, "host_bytes_idle"), idle, sizeof idle));
	cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(snapshot, "running"))
		print_running(item);
	if (cJSON_IsObject(last))
		print_last(last);
}

static int show(int argc, char **argv)
{
	struct processes found = {0};
	size_t missing, silent = 0;
	cJSON *all, **snapshots;
	bool json;
	int code;

	if (!plain_options(&show_command, argc, argv, &json, &code))
		return code;
	if (!client_pids("show", argv + optind, argc - optind))
		return USAGE;
	client_choose(&found, argv + optind, argc - optind, false, &missing);
	all = cJSON_CreateArray();
	snapshots = need(calloc(found.count + 1, sizeof *snapshots));
	client_show(found.list, found.count, snapshots);
	for (size_t i = 0; i < found.count; i++) {
		if (!snapshots[i]) {
			say(FAILED, "process %d does not answer", (int)found.list[i].pid);
			silent++;
			continue;
		}
		if (!json)
			print_process(&found.list[i], snapshots[i]);
		cJSON_AddItemToArray(all, snapshots[i]);
	}
	free(snapshots);
	code = missing + silent == 0                        ? DONE
	       : missing + silent < (size_t)(argc - optind) ? PARTLY
	       : silent                                     ? FAILED
							    : NO_PROCESS;
	client_free(&found);
	if (json)
		print_json(all);
	else
		cJSON_Delete(all);
	return code;
}

const struct command show_command = {
	"show", show, "regions, devices and the last operation of processes", help};
