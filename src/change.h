/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has to know that memory goes and comes: callbacks, and the user of NCCL, whose
 * registrations go stale. Callbacks run in the thread of the operation, without the lock.
 */
#ifndef CHANGE_H
#define CHANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "stayput.h"

struct operation;

/* STAYPUT_OK, or STAYPUT_ERR_HOST_MEMORY with the sentence set: there are enough already. */
int change_add(stayput_change_fn *fn, void *user);

/* False when it was not there. */
bool change_remove(stayput_change_fn *fn, void *user);

/* Room for the ranges of an operation that has collected its blocks; nothing is done when
 * nobody listens. `gone`: they have no memory now. STAYPUT_OK or STAYPUT_ERR_HOST_MEMORY,
 * with the sentence set. */
int change_open(struct operation *op, bool gone);
void change_close(struct operation *op);

/* Before anything is unmapped: all blocks of the operation. */
void change_tell_releasing(struct operation *op);

/* After all is done, in two steps, as blocks may be freed once they are published: which of
 * those that had lost their memory, or were said to, have it; and the telling. */
void change_note_restored(struct operation *op);
void change_tell_restored(struct operation *op);

/* This thread is in a callback. */
bool change_is_telling(void);

/* Warns, once, when NCCL is loaded and may keep registrations of paused memory. */
void change_warn_of_nccl(const char *tag);

#endif
