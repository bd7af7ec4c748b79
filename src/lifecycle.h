/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pause and resume as transactions: claim the regions, list the blocks per device, do the
 * work without the lock, publish what became of each block. Any thread; waits for the GPU
 * and for other operations on the same regions. Arguments have been checked.
 */
#ifndef LIFECYCLE_H
#define LIFECYCLE_H

#include <stddef.h>

struct asker;
struct stayput_options;
struct stayput_report;

/* Returns STAYPUT_OK or a STAYPUT_ERR_* with the sentence set. No tags: every region. No
 * asker: this program. The report is filled in in any case. */
int lifecycle_pause(const char *const *tags, size_t count,
	const struct stayput_options *options, struct asker *asker,
	struct stayput_report *report);
int lifecycle_resume(const char *const *tags, size_t count,
	const struct stayput_options *options, struct asker *asker,
	struct stayput_report *report);

/* Gets the host memory that pausing the regions would need. */
int lifecycle_reserve(const char *const *tags, size_t count);

#endif
