/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that backups live in. */
#ifndef HOSTPOOL_H
#define HOSTPOOL_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the machine has `size` bytes to spare now; the sentence is set when not. */
bool hostpool_has_room(size_t size);

void *hostpool_take(size_t size);
void hostpool_give(void *memory, size_t size);

/* Gives memory back that is kept for later, until `keep` bytes of it are left. */
void hostpool_trim(size_t keep);

#endif
