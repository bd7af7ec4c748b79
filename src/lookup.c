/* SPDX-License-Identifier: Apache-2.0 */
/* Only addresses are taken here, so no prototype, and no CUDA header, which would put
 * newer names in the place of some of these. */
#include "lookup.h"

#include <stddef.h>
#include <string.h>

#define LOOKUP_NAME(name) void name(void);
#define LOOKUP_ROW(base, since, flavour, symbol)
#include "lookup_table.h"
#undef LOOKUP_NAME
#undef LOOKUP_ROW

struct name_row {
	const char *symbol;
	void *hook;
};

static const struct name_row names[] = {
#define LOOKUP_NAME(name) {#name, (void *)name},
#define LOOKUP_ROW(base, since, flavour, symbol)
#include "lookup_table.h"
#undef LOOKUP_NAME
#undef LOOKUP_ROW
};

enum { LEGACY, PER_THREAD };

static const struct lookup_row rows[] = {
#define LOOKUP_NAME(name)
#define LOOKUP_ROW(base, since, flavour, symbol) \
	{#base, since, flavour == PER_THREAD, #symbol, (void *)symbol},
#include "lookup_table.h"
#undef LOOKUP_NAME
#undef LOOKUP_ROW
};

void *lookup_hook(const char *symbol)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(names[i].symbol, symbol) == 0)
			return names[i].hook;
	return NULL;
}

static const struct lookup_row *newest(const char *base, int version, bool per_thread)
{
	const struct lookup_row *best = NULL;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].per_thread == per_thread && rows[i].since <= version &&
			(!best || rows[i].since > best->since) &&
			strcmp(rows[i].base, base) == 0)
			best = &rows[i];
	return best;
}

const struct lookup_row *lookup_row(const char *base, int version, bool per_thread)
{
	const struct lookup_row *row = per_thread ? newest(base, version, true) : NULL;

	return row ? row : newest(base, version, false);
}
