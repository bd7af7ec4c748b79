/* SPDX-License-Identifier: Apache-2.0 */
#include "fork.h"

#include <pthread.h>
#include <stdatomic.h>

#include "lock.h"
#include "region.h"

static _Atomic bool child;

/* A region that holds something means that CUDA was in use. */
static void in_child(void)
{
	for (struct region *r = region_first_locked(); r; r = r->next)
		if (r->was_used)
			atomic_store(&child, true);
	lock_drop();
}

static void register_handlers(void)
{
	pthread_atfork(lock_take, lock_drop, in_child);
}

void fork_watch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handlers);
}

bool fork_is_child(void)
{
	return atomic_load_explicit(&child, memory_order_relaxed);
}
