/* SPDX-License-Identifier: Apache-2.0 */
/* stayput metrics - Prometheus' text format, version 0.0.4. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "client.h"
#include "format.h"

static const char help[] =
	"usage: stayput metrics PID...|--all\n"
	"\n"
	"Prints what processes say of themselves in Prometheus' text format, for an "
	"exporter's\n"
	"folder of text files or a scrape by a script. Sizes are bytes.\n"
	"\n"
	"  --all        all of your processes under stayput; none is no error\n"
	"  -h, --help\n"
	"\n"
	"  stayput metrics 4711\n"
	"  stayput metrics --all >new && mv new stayput.prom    # whole at any moment\n";

/* A family of samples: one for each process, or each member of an array of its snapshot. */
struct family {
	const char *name, *type, *help;
	const char *array;  /* "regions", "devices"; NULL: of the process */
	const char *member; /* whose number is the sample */
};

static const struct family families[] = {
	{"stayput_region_active_bytes", "gauge",
		"Memory in the region that is usable, as asked for.", "regions",
		"bytes_active"},
	{"stayput_region_paused_bytes", "gauge",
		"Memory in the region that is paused, as asked for.", "regions",
		"bytes_paused"},
	{"stayput_region_kept_bytes", "gauge",
		"Memory of the region that is never released.", "regions", "bytes_kept"},
	{"stayput_region_device_bytes", "gauge",
		"Physical device memory behind the region.", "regions", "bytes_device"},
	{"stayput_region_backup_bytes", "gauge", "Host memory for the region's contents.",
		"regions", "bytes_backup"},
	{"stayput_region_stream_ordered_bytes", "gauge",
		"Stream-ordered memory that the region would have, and that stays.",
		"regions", "bytes_stream_ordered"},
	{"stayput_region_foreign_vmm_bytes", "gauge",
		"Memory of other virtual memory management that the region would have, "
		"and "
		"that stays.",
		"regions", "bytes_foreign_vmm"},
	{"stayput_region_active_allocations", "gauge",
		"Allocations in the region that are usable.", "regions", "count_active"},
	{"stayput_region_paused_allocations", "gauge",
		"Allocations in the region that are paused.", "regions", "count_paused"},
	{"stayput_device_active_bytes", "gauge",
		"Memory in regions on the device that is usable, as asked for.",
		"devices", "bytes_active"},
	{"stayput_device_paused_bytes", "gauge",
		"Memory in regions on the device that is paused, as asked for.",
		"devices", "bytes_paused"},
	{"stayput_device_bytes", "gauge", "Physical memory of the device behind regions.",
		"devices", "bytes_device"},
	{"stayput_host_bytes", "gauge", "Pinned host memory for backups.", NULL,
		"host_bytes"},
	{"stayput_host_idle_bytes", "gauge",
		"Pinned host memory that holds nothing at the moment.", NULL,
		"host_bytes_idle"},
};

static void print_label_value(const char *text)
{
	for (; *text; text++)
		if (*text == '\\' || *text == '"')
			printf("\\%c", *text);
		else if (*text == '\n')
			fputs("\\n", stdout);
		else
			putchar(*text);
}

static void print_sample(
	const struct family *family, int pid, const cJSON *object, double value)
{
	const cJSON *device = cJSON_GetObjectItemCaseSensitive(object, "device");
	const char *tag = word_of(object, "tag");

	printf("%s{pid=\"%d\"", family->name, pid);
	if (*tag) {
		fputs(",tag=\"", stdout);
		print_label_value(tag);
		putchar('"');
	}
	if (cJSON_IsNumber(device))
		printf(",device=\"%.0f\",uuid=\"%s\"", device->valuedouble,
			word_of(object, "uuid"));
	printf("} %.15g\n", value);
}

static void print_family(const struct family *family, const struct processes *found,
	cJSON *const *snapshots)
{
	printf("# HELP %s %s\n# TYPE %s %s\n", family->name, family->help, family->name,
		family->type);
	for (size_t i = 0; i < found->count; i++) {
		const cJSON *array, *object;

		if (!family->array) {
			print_sample(family, (int)found->list[i].pid, NULL,
				number_of(snapshots[i], family->member));
			continue;
		}
		array = cJSON_GetObjectItemCaseSensitive(snapshots[i], family->array);
		cJSON_ArrayForEach(object, array)
			print_sample(family, (int)found->list[i].pid, object,
				number_of(object, family->member));
	}
}

/* How the last pause or resume of each process went. */
static void print_last(const struct processes *found, cJSON *const *snapshots)
{
	static const struct {
		const char *name, *help, *member;
	} kinds[] = {
		{"stayput_last_operation_seconds",
			"Duration of the last pause or resume.", "seconds"},
		{"stayput_last_operation_code",
			"How it ended: 0, or a negative STAYPUT_ERR_ code.", "code"},
		{"stayput_last_operation_timestamp_seconds", "When it ended, since 1970.",
			"at"},
	};

	for (size_t f = 0; f < sizeof kinds / sizeof *kinds; f++) {
		printf("# HELP %s %s\n# TYPE %s gauge\n", kinds[f].name, kinds[f].help,
			kinds[f].name);
		for (size_t i = 0; i < found->count; i++) {
			const cJSON *last =
				cJSON_GetObjectItemCaseSensitive(snapshots[i], "last");
			const cJSON *from =
				f ? last
				  : cJSON_GetObjectItemCaseSensitive(last, "report");

			if (cJSON_IsObject(last))
				printf("%s{pid=\"%d\",operation=\"%s\"} %.15g\n",
					kinds[f].name, (int)found->list[i].pid,
					word_of(last, "do"),
					number_of(from, kinds[f].member));
		}
	}
}

/* Drops what does not answer, and says so. Returns how many that were. */
static size_t ask_all(struct processes *found, cJSON **snapshots)
{
	size_t silent = 0;

	client_show(found->list, found->count, snapshots);
	for (size_t i = found->count; i-- > 0;) {
		if (snapshots[i])
			continue;
		say(FAILED, "process %d does not answer", (int)found->list[i].pid);
		client_drop(found, i);
		memmove(snapshots + i, snapshots + i + 1,
			(found->count - i) * sizeof *snapshots);
		silent++;
	}
	return silent;
}

static int print_all(struct processes *found, size_t missing)
{
	cJSON **snapshots = need(calloc(found->count + 1, sizeof *snapshots));
	size_t silent = ask_all(found, snapshots);

	for (size_t f = 0; f < sizeof families / sizeof *families; f++)
		print_family(&families[f], found, snapshots);
	print_last(found, snapshots);
	for (size_t i = 0; i < found->count; i++)
		cJSON_Delete(snapshots[i]);
	free(snapshots);
	if (missing + silent == 0)
		return DONE;
	return found->count ? PARTLY : silent ? FAILED : NO_PROCESS;
}

static int metrics(int argc, char **argv)
{
	static const struct option options[] = {
		{"all", no_argument, NULL, 'a'}, {"help", no_argument, NULL, 'h'}, {0}};
	struct processes found = {0};
	bool all = false;
	size_t missing;
	int option, code;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h')
			return print_help(&metrics_command);
		if (option != 'a')
			return USAGE;
		all = true;
	}
	if (all && optind < argc)
		return say(USAGE, "--all leaves no room for pids");
	if (!all && !client_pids("metrics", argv + optind, argc - optind))
		return USAGE;
	client_choose(&found, argv + optind, argc - optind, all, &missing);
	code = print_all(&found, missing);
	client_free(&found);
	return code;
}

const struct command metrics_command = {
	"metrics", metrics, "numbers in Prometheus' text format", help};
