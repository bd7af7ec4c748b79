/* SPDX-License-Identifier: Apache-2.0 */
/* What an allocation is, as far as the environment can sort by it: STAYPUT_RULES and
 * STAYPUT_EXCLUDE. No state, no lock. */
#ifndef RULES_H
#define RULES_H

#include <stdbool.h>
#include <stddef.h>

/* An allocation that a hook has been asked for. */
struct request {
	size_t size;
	void *caller; /* the hook's return address */
	/* Ordinal of the device that it would be on; -1: none yet. Called when a rule wants
	 * to know, and never makes a context. */
	int (*device)(const struct request *request);
	int ordinal; /* for a `device` that was told */
};

/* The first entry of STAYPUT_RULES that applies, or -1. */
int rules_match(const struct request *request);

/* The caller's allocations stay native, whatever else is said. */
bool rules_exclude(const struct request *request);

#endif
