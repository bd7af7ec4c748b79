/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between device and host on a stream of our own, which waits for nobody's default
 * stream. Everything here is used inside device_enter() of the device, by one thread.
 */
#ifndef TRANSFER_H
#define TRANSFER_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

/* Batches in flight at most. Whoever frees memory of the same context waits for what is
 * in flight, and no longer, since the next batch is begun only when an old one has ended.
 */
enum { TRANSFER_WINDOW = 3 };

struct transfer {
	CUstream stream; /* NULL: not open */
	CUevent marks[TRANSFER_WINDOW];
	size_t begun;  /* batches that were marked */
	size_t ended;  /* batches of them whose copies are known to have ended */
	char *staging; /* two pinned buffers for host memory that is not */
	CUevent staged[2];
	CUevent paces[TRANSFER_WINDOW];
	size_t paced;   /* how many there have been */
	size_t unpaced; /* bytes begun since the last one */
};

CUresult transfer_open(struct transfer *t);

/* Waits for what is in flight, and closes; also when it was not opened. */
CUresult transfer_close(struct transfer *t);

/* What was begun since the last mark is one batch. Waits until fewer than TRANSFER_WINDOW
 * batches are in flight. */
CUresult transfer_mark(struct transfer *t);

/* So many bytes more have been begun. Waits while as many are in flight as a few batches
 * have: of one large block too, what has been begun is not far from what is done. */
CUresult transfer_pace(struct transfer *t, size_t bytes);

/* Waits for all that was begun. */
CUresult transfer_drain(struct transfer *t);

/* Begins to copy. Memory that is not pinned is copied, when to the host also waited for,
 * by way of the staging buffers. */
CUresult transfer_save(
	struct transfer *t, char *host, CUdeviceptr device, size_t size, bool pinned);
CUresult transfer_restore(
	struct transfer *t, CUdeviceptr device, char *host, size_t size, bool pinned);

#endif
