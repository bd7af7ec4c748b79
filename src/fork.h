/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA cannot be used in the child of a process that has used it. */
#ifndef FORK_H
#define FORK_H

#include <stdbool.h>

/* From the first call on, the lock is taken around fork() and the child knows. */
void fork_watch(void);

/* CUDA is in use here: something has been allocated. */
void fork_note_use(void);

/* This process is such a child. One load. */
bool fork_is_child(void);

#endif
