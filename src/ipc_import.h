/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that opens a handle: memory of another process, mapped here whole. There is one
 * connection to each exporter, for as long as something of it is open; the exporter takes
 * its end for a closing. What is mapped stays usable when the exporter dies.
 */
#ifndef IPC_IMPORT_H
#define IPC_IMPORT_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

#include "ipc.h"

struct device;
struct place;

/*
 * Maps what the handle names, with access for the current device, for the one that the
 * memory is on, and for those that may use that one's memory. Opened again in the same
 * context: the same address, counted. Waits for the exporter, ten seconds at most, and
 * half a minute while it pauses or resumes the memory. On an error nothing is left, the
 * sentence is set and one line is in the log: a warning the first time, for each kind of
 * failure, and information after that.
 *
 *   CUDA_ERROR_INVALID_CONTEXT     opened in the process that made it, as natively
 *   CUDA_ERROR_MAP_FAILED          the exporter has ended, or has closed all its descriptors
 *   CUDA_ERROR_INVALID_VALUE       the exporter has freed the memory, as natively
 *   CUDA_ERROR_ILLEGAL_STATE       the memory is paused
 *   CUDA_ERROR_NOT_PERMITTED       the exporter is another user's
 *   CUDA_ERROR_NOT_SUPPORTED       a handle of another version of this library
 *   CUDA_ERROR_OPERATING_SYSTEM    the exporter does not answer, or no descriptor is free
 *   others                         the driver's, there or here
 */
CUresult ipc_import_open(
	CUdeviceptr *ptr, const struct ipc_handle *handle, const struct place *place);

/* Counts down; the last one waits for the work in its context, unmaps, and waits until the
 * exporter knows, ten seconds at most; or does so once no capture is in progress.
 * CUDA_ERROR_NOT_FOUND: not one of ours. */
CUresult ipc_import_close(CUdeviceptr ptr);

/* Closes what was put off, unless a capture is in progress. */
void ipc_import_close_deferred(void);

/* Base and size, as the exporter asked for them, of what was opened and `ptr` points into.
 * Takes the lock only while something is open. */
bool ipc_import_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size);

/* As peers_change() for what is on `owner`. */
void ipc_import_change_peer(CUdevice owner, const CUmemAccessDesc *access);

/* What was opened in contexts of a device that is being reset, or in one that is being
 * destroyed, goes with it. */
void ipc_import_close_device(const struct device *dev);
void ipc_import_close_context(CUcontext ctx);

/* In a forked child: the connections are the parent's. Frees no memory. */
void ipc_import_forget_all_locked(void);

#endif
