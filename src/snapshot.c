/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot.h"

#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "foreign.h"
#include "history.h"
#include "hostpool.h"
#include "json.h"
#include "lock.h"
#include "process.h"
#include "region.h"
#include "stayput.h"

enum { COMMAND_SIZE = 4096 };

struct region_copy {
	struct stayput_region_info info;
	uint64_t ordered[DEVICE_MAX]; /* stream-ordered bytes on each device */
};

static void copy_locked(const struct region *r, struct region_copy *copy)
{
	region_fill_info_locked(r, &copy->info);
	for (const struct space *s = r->spaces; s; s = s->next)
		copy->ordered[s->device->ordinal] += s->bytes_ordered;
}

/* Copies all, so that nothing is formatted under the lock. NULL without memory. */
static struct region_copy *copy_regions(size_t *count)
{
	struct region_copy *copies;
	size_t n = 0;

	lock_take();
	for (const struct region *r = region_first_locked(); r; r = r->next)
		n++;
	copies = calloc(n + 1, sizeof *copies);
	n = 0;
	for (const struct region *r = region_first_locked(); r && copies; r = r->next)
		copy_locked(r, &copies[n++]);
	lock_drop();
	*count = n;
	return copies;
}

static void add_ordered(struct json *j, const uint64_t bytes[DEVICE_MAX])
{
	const char *comma = "";

	json_add(j, "\"stream_ordered_by_device\":{");
	for (int i = 0; i < DEVICE_MAX; i++)
		if (bytes[i]) {
			json_add(j, "%s\"%d\":%llu", comma, i,
				(unsigned long long)bytes[i]);
			comma = ",";
		}
	json_add(j, "}");
}

static void add_region(struct json *j, const struct region_copy *copy)
{
	static const char *const states[] = {[STAYPUT_ACTIVE] = "active",
		[STAYPUT_PAUSED] = "paused",
		[STAYPUT_PARTLY] = "partly"};
	const struct stayput_region_info *r = &copy->info;

	json_add(j,
		"{\"tag\":\"%s\",\"state\":\"%s\",\"bytes_active\":%llu,"
		"\"bytes_paused\":%llu,\"bytes_kept\":%llu,\"bytes_device\":%llu,"
		"\"bytes_backup\":%llu,\"count_active\":%llu,\"count_paused\":%llu,"
		"\"count_kept\":%llu,\"mappings\":%llu,",
		r->tag, states[r->state], (unsigned long long)r->bytes_active,
		(unsigned long long)r->bytes_paused, (unsigned long long)r->bytes_kept,
		(unsigned long long)r->bytes_device, (unsigned long long)r->bytes_backup,
		(unsigned long long)r->count_active, (unsigned long long)r->count_paused,
		(unsigned long long)r->count_kept, (unsigned long long)r->mappings);
	json_add(j,
		"\"bytes_foreign_vmm\":%llu,\"count_foreign_vmm\":%llu,"
		"\"bytes_stream_ordered\":%llu,\"count_stream_ordered\":%llu,",
		(unsigned long long)r->bytes_foreign_vmm,
		(unsigned long long)r->count_foreign_vmm,
		(unsigned long long)r->bytes_stream_ordered,
		(unsigned long long)r->count_stream_ordered);
	add_ordered(j, copy->ordered);
	json_add(j, "}");
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
	struct region_copy *copies = copy_regions(&count);

	json_add(j, "\"regions\":[");
	for (size_t i = 0; i < count; i++) {
		json_add(j, "%s", i ? "," : "");
		add_region(j, &copies[i]);
	}
	json_add(j, "]");
	free(copies);
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
	uint64_t foreign[FOREIGN_MAKERS];
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
	for (int i = 0; i < FOREIGN_MAKERS; i++)
		foreign[i] = foreign_bytes_locked(i);
	lock_drop();
	json_add(j, ",\"host_bytes\":%zu,\"host_bytes_idle\":%zu,", host, idle);
	json_add(j, "\"foreign_vmm\":{\"pytorch\":%llu,\"xla\":%llu,\"other\":%llu},",
		(unsigned long long)foreign[FOREIGN_PYTORCH],
		(unsigned long long)foreign[FOREIGN_XLA],
		(unsigned long long)foreign[FOREIGN_OTHER]);
	history_write(j);
	json_add(j, "}");
}

size_t snapshot_write(char *buf, size_t size)
{
	struct json j = {.buf = buf, .size = size};

	snapshot_add(&j, NULL);
	return j.len;
}
