/* SPDX-License-Identifier: Apache-2.0 */
/* What others know this process by, from /proc. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stddef.h>

/* Its arguments with blanks between; cut where `size` ends. "" when that cannot be read. */
void process_command(char *buf, size_t size);

/* Seconds since it was started; 0 when that cannot be read. */
double process_uptime(void);

#endif
