/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the library and its process as JSON. */
#ifndef SNAPSHOT_H
#define SNAPSHOT_H

#include <stddef.h>

#include "json.h"

/* The object. `unused`: as what writes answers has it. */
void snapshot_add(struct json *j, const void *unused);

/* As snprintf(): writes at most `size` bytes, returns what the whole text needs. */
size_t snapshot_write(char *buf, size_t size);

#endif
