/* SPDX-License-Identifier: Apache-2.0 */
/* stayput ps - the processes that listen. */
#include <getopt.h>
#include <stdlib.h>

#include "cli.h"
#include "client.h"
#include "format.h"
#include "view.h"

static const char help[] =
	"usage: stayput ps [--json]\n"
	"\n"
	"Lists your processes under stayput; for root, everybody's. ACTIVE is memory in "
	"regions\n"
	"that is usable, PAUSED what a resume brings back, DEVICE what the regions take "
	"on the\n"
	"devices now, NATIVE what the process has there beside them, its contexts "
	"included (by\n"
	"NVML; - where it cannot tell), BACKUP host memory for contents.\n"
	"\n"
	"  --json       an array of objects, sizes in bytes\n"
	"  -h, --help\n"
	"\n"
	"  stayput ps\n"
	"  stayput ps --json | jq '.[] | select(.state == \"paused\") | .pid'\n";

static cJSON *object_of(const struct process *process, const cJSON *snapshot)
{
	const struct totals t = totals_of(process, snapshot);
	char user[64], command[1024];
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "pid", process->pid);
	cJSON_AddStringToObject(
		object, "user", user_name(process->uid, user, sizeof user));
	cJSON_AddStringToObject(object, "command",
		command_of(process, snapshot, command, sizeof command));
	cJSON_AddStringToObject(object, "state", snapshot ? t.state : "no answer");
	cJSON_AddNumberToObject(object, "bytes_active", t.active);
	cJSON_AddNumberToObject(object, "bytes_paused", t.paused);
	if (t.native >= 0)
		cJSON_AddNumberToObject(object, "bytes_native", t.native);
	else
		cJSON_AddNullToObject(object, "bytes_native");
	cJSON_AddNumberToObject(object, "bytes_device", t.device);
	cJSON_AddNumberToObject(object, "bytes_backup", t.backup);
	return object;
}

static void print_table(const cJSON *objects)
{
	static const char *const sizes[] = {"bytes_active", "bytes_paused",
		"bytes_native", "bytes_device", "bytes_backup"};
	struct table table = {0};
	const cJSON *o;

	ROW(&table, ">PID", "USER", "STATE", ">ACTIVE", ">PAUSED", ">NATIVE", ">DEVICE",
		">BACKUP", "COMMAND");
	cJSON_ArrayForEach(o, objects)
	{
		char pid[16], text[5][CELL];

		snprintf(pid, sizeof pid, ">%.0f", number_of(o, "pid"));
		for (int i = 0; i < 5; i++) {
			const cJSON *size = cJSON_GetObjectItemCaseSensitive(o, sizes[i]);

			size_cell(cJSON_IsNumber(size) ? size->valuedouble : -1, text[i]);
		}
		ROW(&table, pid, word_of(o, "user"), word_of(o, "state"), text[0],
			text[1], text[2], text[3], text[4], word_of(o, "command"));
	}
	table_print(&table, stdout, "", 0, "");
}

static int ps(int argc, char **argv)
{
	struct processes found = {0};
	cJSON *objects, **snapshots;
	bool json;
	int code;

	if (!plain_options(&ps_command, argc, argv, &json, &code))
		return code;
	if (optind < argc)
		return say(USAGE, "ps takes no arguments; stayput show wants a pid");
	objects = cJSON_CreateArray();
	client_find(&found);
	snapshots = need(calloc(found.count + 1, sizeof *snapshots));
	client_show(found.list, found.count, snapshots);
	for (size_t i = 0; i < found.count; i++) {
		cJSON_AddItemToArray(objects, object_of(&found.list[i], snapshots[i]));
		cJSON_Delete(snapshots[i]);
	}
	free(snapshots);
	client_free(&found);
	if (json) {
		print_json(objects);
		return DONE;
	}
	print_table(objects);
	cJSON_Delete(objects);
	return DONE;
}

const struct command ps_command = {"ps", ps, "list processes under stayput", help};
