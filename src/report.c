/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

static void add_number(struct json *j, const char *name, uint64_t number)
{
	json_add(j, "\"%s\":%llu,", name, (unsigned long long)number);
}

static void add_seconds(struct json *j, const char *name, double seconds)
{
	json_add(j, "\"%s\":", name);
	json_decimal(j, seconds);
	json_add(j, ",");
}

static void write_members(struct json *j, const struct stayput_device_report *r)
{
	add_number(j, "bytes_released", r->bytes_released);
	add_number(j, "bytes_released_driver", r->bytes_released_driver);
	add_number(j, "bytes_restored", r->bytes_restored);
	add_number(j, "bytes_copied", r->bytes_copied);
	add_number(j, "bytes_unchanged", r->bytes_unchanged);
	add_number(j, "bytes_zeroed", r->bytes_zeroed);
	add_number(j, "bytes_held", r->bytes_held);
	add_seconds(j, "seconds_sync", r->seconds_sync);
	add_seconds(j, "seconds_pin", r->seconds_pin);
	add_seconds(j, "seconds_digest", r->seconds_digest);
	add_seconds(j, "seconds_copy", r->seconds_copy);
	add_seconds(j, "seconds_unmap", r->seconds_unmap);
	add_seconds(j, "seconds_create", r->seconds_create);
	add_seconds(j, "seconds_map", r->seconds_map);
	json_add(j, "\"copied_per_second\":%.0f", r->copied_per_second);
}

void report_write(struct json *j, const struct stayput_report *report)
{
	json_add(j, "{\"seconds\":");
	json_decimal(j, report->seconds);
	json_add(j, ",");
	add_number(j, "allocations", report->allocations);
	add_number(j, "failed", report->failed);
	add_number(j, "bytes_stream_ordered", report->bytes_stream_ordered);
	json_add(j, "\"total\":{");
	write_members(j, &report->total);
	json_add(j, "},\"devices\":[");
	for (size_t i = 0; i < report->device_count && i < STAYPUT_REPORT_DEVICES; i++) {
		json_add(j, "%s{\"device\":%d,", i ? "," : "", report->device[i].device);
		write_members(j, &report->device[i]);
		json_add(j, "}");
	}
	json_add(j, "]}");
}

static const char *code_name(int code)
{
	static const char *const names[] = {"OK", "INVALID", "NOT_FOUND", "BUSY",
		"DEVICE_MEMORY", "HOST_MEMORY", "DRIVER", "IO", "UNSUPPORTED", "CORRUPT"};
	size_t i = code <= 0 ? -(size_t)code : sizeof names;

	return i < sizeof names / sizeof *names ? names[i] : "UNKNOWN";
}

void report_write_code(struct json *j, int code, const char *message)
{
	json_add(j, "\"code\":%d,\"name\":\"%s\",\"message\":", code, code_name(code));
	json_string(j, message);
}
