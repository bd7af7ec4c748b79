/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side whose memory it is. Opens its socket, with one thread that answers there, when
 * the first handle is asked for. What another process has been passed is leased to it until
 * it says so or its connection ends; leased blocks are not released by a pause. When the
 * program closes the socket, nothing can be shared any more, and no file that has the number
 * since is touched.
 */
#ifndef IPC_EXPORT_H
#define IPC_EXPORT_H

#include <stdbool.h>
#include <sys/types.h>

#include <cuda.h>

#include "ipc.h"

struct block;

/*
 * A handle of the whole allocation that `ptr` points into, the same one each time.
 *
 *   CUDA_ERROR_NOT_FOUND          not ours, or native: the real function's to answer
 *   CUDA_ERROR_NOT_INITIALIZED    ours, but this is a forked child
 *   CUDA_ERROR_NOT_SUPPORTED      the device cannot share memory by file descriptor
 *   CUDA_ERROR_OPERATING_SYSTEM   no socket or thread could be had, or the program has closed
 *                                 the socket
 *
 * Of the last two, the sentence is set and a line is in the log.
 */
CUresult ipc_export(struct ipc_handle *handle, CUdeviceptr ptr);

/* The handle is one of this process. */
bool ipc_export_is_own(const struct ipc_handle *handle);

/* Returns when everything is known that importers have done until now: closed, or died. */
void ipc_export_settle(void);

/* A process that holds the block; 0 when none does, or it cannot be seen from here. */
pid_t ipc_export_holder_locked(const struct block *block);

/* The block is being freed: who has imported it keeps the memory, which is ours no more. */
void ipc_export_forget_block_locked(struct block *block);

/* In a forked child: the socket is the parent's. Frees no memory. */
void ipc_export_forget_all_locked(void);

#endif
