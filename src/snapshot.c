/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "foreign.h"
#include "hostpool.h"
#include "lock.h"
#include "region.h"
#include "stayput.h"

struct text {
	char *buf;
	size_t size, len;
};

__attribute__((format(printf, 2, 3))) static void add(
	struct text *t, const char *format, ...)
{
	size_t left = t->len < t->size ? t->size - t->len : 0;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(left ? t->buf + t->len : NULL, left, format, args);
	va_end(args);
	t->len += n > 0 ? n : 0;
}

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

static void add_devices(struct text *t, const uint64_t bytes[DEVICE_MAX])
{
	const char *comma = "";

	for (int i = 0; i < DEVICE_MAX; i++)
		if (bytes[i]) {
			add(t, "%s\"%d\":%llu", comma, i, (unsigned long long)bytes[i]);
			comma = ",";
		}
}

static void add_region(struct text *t, const struct region_copy *copy)
{
	const struct stayput_region_info *r = &copy->info;
	static const char *const states[] = {[STAYPUT_ACTIVE] = "active",
		[STAYPUT_PAUSED] = "paused",
		[STAYPUT_PARTLY] = "partly"};

	add(t,
		"{\"tag\":\"%s\",\"state\":\"%s\",\"bytes_active\":%llu,"
		"\"bytes_paused\":%llu,\"bytes_kept\":%llu,\"bytes_device\":%llu,"
		"\"bytes_backup\":%llu,\"count_active\":%llu,\"count_paused\":%llu,"
		"\"count_kept\":%llu,\"mappings\":%llu,"
		"\"bytes_foreign_vmm\":%llu,\"count_foreign_vmm\":%llu,"
		"\"bytes_stream_ordered\":%llu,\"count_stream_ordered\":%llu,"
		"\"stream_ordered_by_device\":{",
		r->tag, states[r->state], (unsigned long long)r->bytes_active,
		(unsigned long long)r->bytes_paused, (unsigned long long)r->bytes_kept,
		(unsigned long long)r->bytes_device, (unsigned long long)r->bytes_backup,
		(unsigned long long)r->count_active, (unsigned long long)r->count_paused,
		(unsigned long long)r->count_kept, (unsigned long long)r->mappings,
		(unsigned long long)r->bytes_foreign_vmm,
		(unsigned long long)r->count_foreign_vmm,
		(unsigned long long)r->bytes_stream_ordered,
		(unsigned long long)r->count_stream_ordered);
	add_devices(t, copy->ordered);
	add(t, "}}");
}

size_t snapshot_write(char *buf, size_t size)
{
	struct text t = {.buf = buf, .size = size};
	uint64_t foreign[FOREIGN_MAKERS];
	size_t count, host, idle;
	struct region_copy *regions = copy_regions(&count);

	add(&t, "{\"version\":\"%s\",\"pid\":%d,\"regions\":[", STAYPUT_VERSION,
		(int)getpid());
	for (size_t i = 0; i < count; i++) {
		add(&t, "%s", i ? "," : "");
		add_region(&t, &regions[i]);
	}
	lock_take();
	host = hostpool_total_locked();
	idle = hostpool_idle_locked();
	for (int i = 0; i < FOREIGN_MAKERS; i++)
		foreign[i] = foreign_bytes_locked(i);
	lock_drop();
	add(&t, "],\"host_bytes\":%zu,\"host_bytes_idle\":%zu,", host, idle);
	add(&t, "\"foreign_vmm\":{\"pytorch\":%llu,\"xla\":%llu,\"other\":%llu}}",
		(unsigned long long)foreign[FOREIGN_PYTORCH],
		(unsigned long long)foreign[FOREIGN_XLA],
		(unsigned long long)foreign[FOREIGN_OTHER]);
	free(regions);
	return t.len;
}
