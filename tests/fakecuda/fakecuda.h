/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fakecuda.h - what a test may ask of the fake driver beside CUDA's own functions.
 *
 * Link with -lcuda from the build's fake/ folder, or look the names up with dlsym() in
 * libcuda.so.1. Every function may be called from any thread, before cuInit() too, and
 * never fails: what it cannot do it reports on standard error and leaves undone.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKECUDA_API __attribute__((visibility("default")))

enum { FAKECUDA_DEVICES_MAX = 8 };

/* What exists in this process at one moment. */
struct fakecuda_report {
	size_t handles;       /* VMM handles held: creates, imports and retains */
	size_t mappings;      /* VMM mappings */
	size_t reservations;  /* without those that a primary context reset orphaned */
	size_t native_allocs; /* cuMemAlloc and kin, managed, pools, opened by IPC */
	size_t host_registrations; /* registered or allocated pinned host ranges */
	size_t bytes_used[FAKECUDA_DEVICES_MAX]; /* of all processes sharing the device */
	unsigned long faults;                    /* bad accesses made by device work */
};

FAKECUDA_API void fakecuda_report(struct fakecuda_report *report);

/*
 * Make driver calls fail: "cuMemMap:3:OUT_OF_MEMORY;cuMemSetAccess:*:INVALID_VALUE" is
 * call, which one counted from 1 since this was set (`*`: each), and the error by name or
 * number. A call named `*` is any. Versions and stream flavours of one function count as
 * that function. NULL or "" clears. A call that fails so has had no effect.
 */
FAKECUDA_API void fakecuda_fail(const char *spec);

/* How many calls have failed by order since fakecuda_fail() was last called. */
FAKECUDA_API unsigned long fakecuda_failed(void);

/* How often a function has been called since the start, failures included. "*": all. */
FAKECUDA_API unsigned long fakecuda_calls(const char *name);

/* Calls of this function wait, counted and before they do anything, until this is called
 * again: with another name, or NULL. */
FAKECUDA_API void fakecuda_hold(const char *name);

/* Every item in a stream waits this long before it runs. */
FAKECUDA_API void fakecuda_delay_us(unsigned microseconds);

/* Change the memory of a device, for all processes that share it. What is in use stays.
 */
FAKECUDA_API void fakecuda_budget(int device, size_t bytes);

/*
 * Let modules have a kernel of that name. `params` are copies, made at the launch, in the
 * order of the kernel's parameters; grid_blocks is the product of the grid's dimensions.
 * The function runs on a stream's thread and may not call CUDA. A NULL fn takes it back.
 */
FAKECUDA_API void fakecuda_kernel(
	const char *name, void (*fn)(void **params, unsigned grid_blocks));

/*
 * Host memory that stands for [ptr, ptr + size), which must lie in one mapping. Inside a
 * kernel NULL is an illegal access: it is counted, and the context is lost when the
 * kernel returns. Elsewhere it lets a test look, with no access check, until the memory
 * is freed.
 */
FAKECUDA_API void *fakecuda_at(CUdeviceptr ptr, size_t size);

#ifdef __cplusplus
}
#endif

#endif
