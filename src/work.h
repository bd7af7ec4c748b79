/* SPDX-License-Identifier: Apache-2.0 */
/* One device's part of an operation, and all of them at once, a thread each. */
#ifndef WORK_H
#define WORK_H

#include <stdbool.h>
#include <stddef.h>

#include "backup.h"
#include "stayput.h"

struct block;
struct device;
struct operation;

enum { WORK_SENTENCE = 1024 };

/* The blocks of one device: first those whose contents are kept, each part by address. */
struct work {
	struct operation *operation;
	struct device *device;
	struct block **blocks;
	size_t count;
	size_t host_count; /* how many of them have their contents kept */
	struct backup_job job;
	bool secured;    /* pause: counted in the operation */
	bool releasing;  /* pause: something has been unmapped */
	size_t released; /* pause: blocks of those without contents to keep */
	double deadline; /* resume: until when to wait for memory */
	uint64_t filled; /* resume: bytes of those without contents that are back */
	struct stayput_device_report report;
	int err; /* of its last step */
	char sentence[WORK_SENTENCE];
};

/* Runs one step of every work at the same time. Returns the error of the first work that
 * had one, with its sentence; each work keeps its own. */
int work_run_all(struct operation *op, int (*step)(struct work *work));

/* device_enter() with the sentence. */
int work_enter(struct work *work);

#endif
