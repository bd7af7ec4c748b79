/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that no signal of the program is delivered to. False when there is none to be
 * had. */
#ifndef THREAD_H
#define THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* One that nobody joins. `name`: at most 15 bytes. */
bool thread_start(const char *name, void *(*run)(void *argument), void *argument);

/* One for pthread_join(). */
bool thread_create(pthread_t *thread, void *(*run)(void *argument), void *argument);

#endif
