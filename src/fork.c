/* SPDX-License-Identifier: Apache-2.0 */
#include "fork.h"

#include <pthread.h>
#include <stdatomic.h>

#include "capture.h"
#include "control.h"
#include "history.h"
#include "ipc_export.h"
#include "ipc_import.h"
#include "lock.h"

static _Atomic bool used;
static _Atomic bool child;

static void before(void)
{
	lock_take();
	control_before_fork();
}

static void in_parent(void)
{
	control_after_fork();
	lock_drop();
}

static void in_child(void)
{
	control_in_child();
	child = used;
	capture_forget_all_locked();
	ipc_export_forget_all_locked();
	ipc_import_forget_all_locked();
	history_forget_locked();
	lock_restart();
}

static void register_handlers(void)
{
	pthread_atfork(before, in_parent, in_child);
}

void fork_watch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handlers);
}

void fork_note_use(void)
{
	atomic_store_explicit(&used, true, memory_order_relaxed);
}

bool fork_is_child(void)
{
	return atomic_load_explicit(&child, memory_order_relaxed);
}
