/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot.h"

#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "history.h"
#include "hostpool.h"
#include "json.h"
#include "lock.h"
#include "process.h"
#include "region.h"
#include "stayput.h"

enum { COMMAND_SIZE = 4096 };

/* Copies all, so that nothing is formatted under the lock. NULL without memory. */
static struct stayput_region_info *copy_regions(size_t *count)
{
	struct stayput_region_info *infos;
	size_t n = 0;

	lock_take();
	for (const struct region *r = region_first_locked(); r; r = r->next)
		n++;
	infos = calloc(n + 1, sizeof *infos);
	n = 0;
	for (const struct region *r = region_first_locked(); r && infos; r = r->next)
		region_fill_info_locked(r, &infos[n++]);
	lock_drop();
	*count = n;
	return infos;
}

static void add_region(struct json *j, const struct stayput_region_info *r)
{
	static const char *const states[] = {[STAYPUT_ACTIVE] = "active",
		[STAYPUT_PAUSED] = "paused",
		[STAYPUT_PARTLY] = "partly"};

	json_add(j,
		"{\"tag\":\"%s\",\"state\":\"%s\",\"bytes_active\":%llu,"
		"\"bytes_paused\":%llu,\"bytes_kept\":%llu,\"bytes_device\":%llu,"
		"\"bytes_backup\":%llu,\"count_active\":%llu,\"count_paused\":%llu,"
		"\"count_kept\":%llu,\"mappings\":%llu}",
		r->tag, states[r->state], (unsigned long long)r->bytes_active,
		(unsigned long long)r->bytes_paused, (unsigned long long)r->bytes_kept,
		(unsigned long long)r->bytes_device, (unsigned long long)r->bytes_backup,
		(unsigned long long)r->count_active, (unsigned long long)r->count_paused,
		(unsigned long long)r->count_kept, (unsigned long long)r->mappings);
}

static void add_device(struct json *j, const struct device *dev)
{
	struct stayput_region_info info = {.struct_size = sizeof info};

	lock_take();
	for (const struct region *r = region_first_locked(); r; r = r->next)
		for (const struct space *s = r->spaces; s; s = s->next)
			if (s->device == dev)
				region_add_space_locked(s, &info);
	lock_drop();
	json_add(j,
		"{\"device\":%d,\"uuid\":\"%s\",\"bytes_total\":%zu,"
		"\"bytes_active\":%llu,\"bytes_paused\":%llu,\"bytes_kept\":%llu,"
		"\"bytes_device\":%llu,\"bytes_backup\":%llu}",
		dev->ordinal, dev->uuid, dev->memory,
		(unsigned long long)info.bytes_active,
		(unsigned long long)info.bytes_paused,
		(unsigned long long)info.bytes_kept,
		(unsigned long long)info.bytes_device,
		(unsigned long long)info.bytes_backup);
}

static void add_devices(struct json *j)
{
	const char *comma = "";

	json_add(j, "\"devices\":[");
	for (const struct device *dev = device_first(); dev; dev = device_next(dev)) {
		json_add(j, "%s", comma);
		add_device(j, dev);
		comma = ",";
	}
	json_add(j, "]");
}

static void add_regions(struct json *j)
{
	size_t count;
	struct stayput_region_info *infos = copy_regions(&count);

	json_add(j, "\"regions\":[");
	for (size_t i = 0; i < count; i++) {
		json_add(j, "%s", i ? "," : "");
		add_region(j, &infos[i]);
	}
	json_add(j, "]");
	free(infos);
}

static void add_process(struct json *j)
{
	char command[COMMAND_SIZE];

	process_command(command, sizeof command);
	json_add(j,
		"\"version\":\"%s\",\"pid\":%d,\"uid\":%u,\"command\":", STAYPUT_VERSION,
		(int)getpid(), (unsigned)geteuid());
	json_string(j, command);
	json_add(j, ",\"uptime_seconds\":");
	json_decimal(j, process_uptime());
}

void snapshot_add(struct json *j, const void *unused)
{
	size_t host, idle;

	(void)unused;
	json_add(j, "{");
	add_process(j);
	json_add(j, ",");
	add_devices(j);
	json_add(j, ",");
	add_regions(j);
	lock_take();
	host = hostpool_total_locked();
	idle = hostpool_idle_locked();
	lock_drop();
	json_add(j, ",\"host_bytes\":%zu,\"host_bytes_idle\":%zu,", host, idle);
	history_write(j);
	json_add(j, "}");
}

size_t snapshot_write(char *buf, size_t size)
{
	struct json j = {.buf = buf, .size = size};

	snapshot_add(&j, NULL);
	return j.len;
}
