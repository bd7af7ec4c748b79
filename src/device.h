/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of this process: what each can do, and the contexts that allocations were made
 * in, which are what has to be synchronised. A device is described at its first use and
 * never forgotten; only its contexts change, under the lock.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include "digest.h"
#include "hostpool.h"

enum { DEVICE_MAX = 64, DEVICE_CONTEXTS = 32, DEVICE_UUID = 48 };

/* CU_MEM_HANDLE_TYPE_FABRIC, which headers before CUDA 12.4 lack. */
enum { DEVICE_FABRIC = 8 };

struct device {
	CUdevice ordinal;
	char uuid[DEVICE_UUID]; /* "GPU-...", by which NVML knows it; or "" */
	bool vmm;               /* has virtual memory management */
	bool rdma;              /* takes gpuDirectRDMACapable */
	size_t granule;         /* sizes and addresses of blocks are multiples of it */
	size_t memory;          /* bytes on the card */
	size_t pitch_align;     /* of rows, for pitched allocations */
	int numa_node;          /* of the host memory nearest to it, or -1 */
	_Atomic unsigned handle_types; /* that its memory is created with; see block.c */
	_Atomic uint64_t peers;        /* devices that may use its memory, one bit each */
	CUcontext contexts[DEVICE_CONTEXTS];
	size_t context_count;
	struct digester digester; /* used inside device_enter() by whoever operates */
	struct hostpool pool;
};

/* Those that have been described; NULL after the last. */
struct device *device_first(void);
struct device *device_next(const struct device *dev);

/* Where a thread's calls go. */
struct place {
	struct device *device;
	CUcontext context;
};

/* The calling thread's current context and its device. The driver's own error when there
 * is none. */
CUresult device_current(struct place *place);

/* A device is being reset. */
void device_note_reset(void);

CUresult device_get(CUdevice ordinal, struct device **dev);

/* The device that a context is on. */
CUresult device_of_context(CUcontext ctx, CUdevice *ordinal);

/* The pitch of rows of `width` bytes, and what `rows` of them take. False on overflow. */
bool device_pitch(
	const struct device *dev, size_t width, size_t rows, size_t *pitch, size_t *size);

/* Allocations have been made in `ctx`. False when the device has too many contexts. */
bool device_note_context_locked(struct device *dev, CUcontext ctx);

bool device_knows_context(CUcontext ctx);

/* `ctx` is being destroyed. */
void device_forget_context(CUcontext ctx);

/* Waits for all work in every context noted. Contexts that are gone are forgotten.
 * Nothing may be capturing (capture_hold() before). */
CUresult device_synchronize(struct device *dev);

/* The same for one context; one that is gone counts as idle. */
CUresult device_synchronize_context(CUcontext ctx);

/* Memory that the device's pools for stream-ordered allocation hold back goes to the
 * system, as far as the driver can. */
void device_trim_pools(const struct device *dev);

/* Makes a noted context current, for copies and questions about memory. Unless it fails,
 * device_leave() follows on the same thread; they nest. Meanwhile captures of other
 * threads do not restrict what this thread may call. */
CUresult device_enter(struct device *dev);
void device_leave(void);

/* Waits for a stream, before memory is taken from under what runs in it: a wait that
 * fails is tried once more. On an error work may still run: what it uses must stay. */
CUresult device_wait_stream(CUstream stream);

/* Of the whole card, whoever uses it; SIZE_MAX when the driver does not say. Between
 * device_enter() and device_leave(). */
size_t device_free_memory(void);

#endif
