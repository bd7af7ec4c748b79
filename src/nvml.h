/* SPDX-License-Identifier: Apache-2.0 */
/* Who else uses a device, by NVML, which is opened only when somebody wants to know. */
#ifndef NVML_H
#define NVML_H

#include <stddef.h>

/* Writes "; pid 4711 (python) holds 12345 bytes, ..." for the processes that use the
 * most of that device, or "" where NVML cannot be opened or knows none. */
void nvml_holders(const char *uuid, char *buf, size_t size);

#endif
