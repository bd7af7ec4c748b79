/* SPDX-License-Identifier: Apache-2.0 */
/* Who else uses a device, by NVML, which is opened only when somebody wants to know. */
#ifndef NVML_H
#define NVML_H

#include <stddef.h>
#include <stdint.h>

/* Writes "; pid 4711 (python) holds 12345 bytes, ..." for the processes that use the
 * most of that device, or "" where NVML cannot be opened or knows none. */
void nvml_holders(const char *uuid, char *buf, size_t size);

/* What this process holds of the device that it holds most of. 0 where NVML does not say,
 * as in a container whose process ids are its own. */
uint64_t nvml_own_bytes(void);

#endif
