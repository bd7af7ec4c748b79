/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NVML says of this machine's GPUs. It is opened at run time, and costs no context on
 * a device. GPUs count from 0 in NVML's order, which CUDA_VISIBLE_DEVICES does not change.
 */
#ifndef GPU_H
#define GPU_H

#include <stdbool.h>
#include <stddef.h>

/* Opens NVML once; false where it cannot be had. All below answer false or 0 then. */
bool gpu_open(void);

unsigned gpu_count(void);

bool gpu_memory(unsigned gpu, double *used, double *total);

/* Device memory of a process on a GPU as NVML sees it; false where NVML does not know the
 * process: it has none there, or has another pid outside of this container. */
bool gpu_process_memory(unsigned gpu, unsigned pid, double *bytes);

/* The version of the kernel's driver, "580.159.04". */
bool gpu_driver_version(char *buf, size_t size);

/* The index of the GPU with this UUID ("GPU-..."). */
bool gpu_by_uuid(const char *uuid, unsigned *gpu);

/* Generation and lanes of the widest PCIe link that card and slot agree on. */
bool gpu_link(unsigned gpu, unsigned *generation, unsigned *width);

/* False also for cards that have no MIG. */
bool gpu_is_mig(unsigned gpu);

#endif
