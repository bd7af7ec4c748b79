/* SPDX-License-Identifier: Apache-2.0 */
/* How much host memory this process may still take. Reads files; no state. */
#ifndef HOSTMEM_H
#define HOSTMEM_H

#include <stddef.h>

/* The least of what the machine (MemAvailable) and every cgroup that the process is in,
 * version 1 or 2, leave. SIZE_MAX when neither says anything. `root` is put before each
 * path: "" but in tests. */
size_t hostmem_available(const char *root);

#endif
