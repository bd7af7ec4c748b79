/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that nobody joins and no signal of the program is delivered to. */
#ifndef THREAD_H
#define THREAD_H

#include <stdbool.h>

/* False when there is none to be had. `name`: at most 15 bytes. */
bool thread_start(const char *name, void *(*run)(void *argument), void *argument);

#endif
