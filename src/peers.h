/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Access to region memory from other devices. Enabling peer access does nothing for VMM
 * memory, so whoever enables it is noted with the device that owns the memory
 * (device->peers). Blocks get access for all of them when they are mapped, and those that
 * are mapped already when that changes.
 */
#ifndef PEERS_H
#define PEERS_H

#include <stdbool.h>

#include <cuda.h>

/* From now on `accessor` may, or may not, use memory on `owner`. Waits for pauses and
 * resumes there. Best done after the real call has succeeded. */
void peers_change(CUdevice accessor, CUdevice owner, bool allowed);

#endif
