/* SPDX-License-Identifier: Apache-2.0 */
/* Which names have a hook, and which lookup in the driver ends in which. Constant data;
 * no allocation, no lock. In libstayput-deep.so only. */
#ifndef LOOKUP_H
#define LOOKUP_H

#include <stdbool.h>

struct lookup_row {
	const char *base;
	int since; /* CUDA version, 1000 * major + 10 * minor */
	bool per_thread;
	const char *symbol;
	void *hook;
};

/* The hook that is exported under exactly this name, or NULL. */
void *lookup_hook(const char *symbol);

/* What the driver's cuGetProcAddress() finds: the newest form of `base` that is no newer
 * than `version`; the per-thread flavour where that is asked for and there is one. NULL
 * when that has no hook. */
const struct lookup_row *lookup_row(const char *base, int version, bool per_thread);

#endif
