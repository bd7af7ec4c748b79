/* SPDX-License-Identifier: Apache-2.0 */
#include "capture.h"

#include <stdlib.h>

#include "lock.h"

/* One capture in progress. The per-thread default stream has one handle for all threads,
 * so the thread is part of the name; the address of a thread-local says which it is. */
struct capture {
	CUstream stream;
	const void *thread;
	CUcontext context; /* NULL: not known */
	struct capture *next;
};

static struct capture *captures;
static unsigned unrecorded; /* captures there was no memory to record */
static unsigned holds;

static __thread char this_thread;

static const void *thread_of(CUstream stream)
{
	return stream == CU_STREAM_PER_THREAD ? &this_thread : NULL;
}

static struct capture **find(CUstream stream)
{
	struct capture **at = &captures;

	while (*at && ((*at)->stream != stream || (*at)->thread != thread_of(stream)))
		at = &(*at)->next;
	return at;
}

void capture_beginning(CUstream stream, CUcontext context)
{
	struct capture *c = malloc(sizeof *c);

	lock_take();
	while (holds > 0)
		lock_wait();
	if (c) {
		*c = (struct capture){stream, thread_of(stream), context, captures};
		captures = c;
	} else {
		unrecorded++;
	}
	lock_drop();
}

bool capture_ended(CUstream stream)
{
	struct capture **at, *found;
	bool none_left;

	lock_take();
	at = find(stream);
	found = *at;
	if (found)
		*at = found->next;
	else if (unrecorded > 0)
		unrecorded--;
	none_left = !captures && unrecorded == 0;
	lock_drop();
	free(found);
	return none_left;
}

bool capture_hold_locked(void)
{
	if (captures || unrecorded > 0)
		return false;
	holds++;
	return true;
}

void capture_hold_again_locked(void)
{
	holds++;
}

void capture_unhold_locked(void)
{
	if (--holds == 0)
		lock_notify();
}

void capture_forget_context_locked(CUcontext context)
{
	for (struct capture **at = &captures; *at;) {
		struct capture *c = *at;

		if (c->context == context || !c->context) {
			*at = c->next;
			free(c);
		} else {
			at = &c->next;
		}
	}
}

void capture_forget_all_locked(void)
{
	captures = NULL;
	unrecorded = 0;
	holds = 0;
}
