/* SPDX-License-Identifier: Apache-2.0 */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((void)(element))

#include "foreign.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "fork.h"
#include "lock.h"
#include "region.h"

struct memory {
	CUmemGenericAllocationHandle handle;
	size_t size;
	enum foreign_maker maker;
	struct region *region;
	UT_hash_handle hh;
};

static struct memory *by_handle;
static uint64_t bytes[FOREIGN_MAKERS];

enum foreign_maker foreign_maker(const char *name)
{
	if (strstr(name, "libc10_cuda"))
		return FOREIGN_PYTORCH;
	if (strstr(name, "xla") || strstr(name, "jax"))
		return FOREIGN_XLA;
	return FOREIGN_OTHER;
}

static void count_locked(const struct memory *m, int sign)
{
	bytes[m->maker] += sign * (int64_t)m->size;
	if (!m->region)
		return;
	m->region->bytes_foreign += sign * (int64_t)m->size;
	m->region->count_foreign += sign;
}

static struct memory *take_locked(CUmemGenericAllocationHandle handle)
{
	struct memory *m;

	HASH_FIND(hh, by_handle, &handle, sizeof handle, m);
	if (m) {
		HASH_DELETE(hh, by_handle, m);
		count_locked(m, -1);
	}
	return m;
}

void foreign_created(CUmemGenericAllocationHandle handle, size_t size,
	enum foreign_maker maker, struct region *region)
{
	struct memory *m, *stale;
	int saved = errno;

	m = calloc(1, sizeof *m);
	errno = saved;
	if (!m)
		return;
	*m = (struct memory){handle, size, maker, region, {.tbl = NULL}};
	fork_watch();
	lock_take();
	/* Released past us, and the handle given out again. */
	stale = take_locked(handle);
	HASH_ADD(hh, by_handle, handle, sizeof m->handle, m);
	if (m->hh.tbl) {
		count_locked(m, 1);
		m = NULL;
	}
	lock_drop();
	free(stale);
	free(m);
	errno = saved;
}

void foreign_released(CUmemGenericAllocationHandle handle)
{
	struct memory *m;

	lock_take();
	m = take_locked(handle);
	lock_drop();
	free(m);
}

uint64_t foreign_bytes_locked(enum foreign_maker maker)
{
	return bytes[maker];
}
