/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

static unsigned long faults;

void report_fault_locked(void)
{
	faults++;
}

static void count_ranges_locked(struct fakecuda_report *report)
{
	for (size_t i = 0; i < space_ranges.count; i++) {
		const struct range *range = (struct range *)space_ranges.items[i];

		if (range->kind == RANGE_MAPPED)
			report->mappings++;
		else
			report->native_allocs++;
	}
	for (size_t i = 0; i < space_reservations.count; i++) {
		const struct reservation *r =
			(struct reservation *)space_reservations.items[i];

		report->reservations += !r->is_orphan;
	}
}

static void fill_locked(struct fakecuda_report *report)
{
	memset(report, 0, sizeof *report);
	report->handles = vmm_handles_locked();
	report->host_registrations = host_count_locked();
	report->faults = faults;
	count_ranges_locked(report);
	for (int i = 0; i < settings()->devices; i++)
		report->bytes_used[i] = ledger_used(i);
}

void fakecuda_report(struct fakecuda_report *report)
{
	memset(report, 0, sizeof *report);
	if (fake_phase() == CUDA_ERROR_NOT_INITIALIZED)
		return;
	fake_lock();
	fill_locked(report);
	fake_unlock();
}

static void list_ranges_locked(FILE *out)
{
	static const char *const kinds[] = {"VMM mapping", "allocation",
		"pool allocation", "managed", "opened by IPC"};

	for (size_t i = 0; i < space_ranges.count; i++) {
		const struct range *range = (struct range *)space_ranges.items[i];

		fprintf(out, "fakecuda: leak: %s of %zu bytes at %#llx on device %d\n",
			kinds[range->kind], range->size, range->base,
			range->phys->device);
	}
}

void report_leaks(void)
{
	const char *path = getenv("FAKECUDA_LEAKS");
	struct fakecuda_report report;
	FILE *out = stderr;

	if (!path || !*path)
		return;
	if (strcmp(path, "-") != 0)
		out = fopen(path, "ae");
	if (!out)
		return;
	fake_lock();
	fill_locked(&report);
	list_ranges_locked(out);
	fake_unlock();
	if (report.handles)
		fprintf(out, "fakecuda: leak: %zu VMM handles\n", report.handles);
	if (report.reservations)
		fprintf(out, "fakecuda: leak: %zu reservations\n", report.reservations);
	if (report.host_registrations)
		fprintf(out, "fakecuda: leak: %zu pinned host ranges\n",
			report.host_registrations);
	if (report.faults)
		fprintf(out, "fakecuda: %lu faults\n", report.faults);
	if (out != stderr)
		fclose(out);
}
