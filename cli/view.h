/* SPDX-License-Identifier: Apache-2.0 */
/* What a process says of itself, added up for tables. */
#ifndef VIEW_H
#define VIEW_H

#include "client.h"

enum { CELL = 40 };

/* ">1.5 GiB" for a table, ">-" when `bytes` is negative. Returns `buf`. */
const char *size_cell(double bytes, char buf[CELL]);

struct totals {
	double active, paused, device, backup;
	double native; /* what NVML has beyond `device`, contexts included; -1: not known */
	const char
		*state; /* "active", "paused", "partly", "empty", "pausing", "resuming" */
};

struct totals totals_of(const struct process *process, const cJSON *snapshot);

/* The command line as /proc has it, or where that cannot be read, as the process says. */
const char *command_of(
	const struct process *process, const cJSON *snapshot, char *buf, size_t size);

#endif
