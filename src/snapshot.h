/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the library as JSON. Everything in it is a tag, a word or a number, so
 * that nothing has to be escaped. */
#ifndef SNAPSHOT_H
#define SNAPSHOT_H

#include <stddef.h>

/* As snprintf(): writes at most `size` bytes, returns what the whole text needs. */
size_t snapshot_write(char *buf, size_t size);

#endif
