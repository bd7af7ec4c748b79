/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the fake share. Everything CHECKs. */
#ifndef CASES_H
#define CASES_H

#include <cuda.h>
#include <semaphore.h>

#include "../test.h"
#include "fakecuda.h"

#define MIB2 ((size_t)2 << 20)

enum { CASES_MAX = 128 };

struct cases {
	const struct test *tests;
	size_t count;
};

extern const struct cases stream_cases, process_cases, shared_cases;

/* Plain memory of device 0. */
extern const CUmemAllocationProp cases_prop;

/* cuInit(), the primary context of device 0 current, the kernels below registered. */
void cases_start(void);
/* The primary context of a device, current. */
CUcontext cases_enter(int device);

CUdeviceptr cases_reserve(size_t size);
/* Fresh memory of a device at an address, its handle released, without access. */
void cases_map(CUdeviceptr at, size_t size, int device);
CUmemAccessDesc cases_desc(int device);
CUresult cases_access(CUdeviceptr at, size_t size, int device);
/* All of that on device 0. */
CUdeviceptr cases_allocate(size_t size);

struct fakecuda_report cases_report(void);
CUdeviceptr cases_range_start(CUdeviceptr at);
size_t cases_range_size(CUdeviceptr at);

/*
 * Kernels of one block with one parameter, an address:
 *   touch    writes the int 42 there
 *   wait     the same, after posting cases_running and then waiting for cases_go
 *   hold     waits for cases_go, and looks at no memory
 *   nothing
 */
extern sem_t cases_running, cases_go;
void cases_launch(const char *kernel, CUdeviceptr at, CUstream stream);
/* Keeps a stream busy until cases_go is posted. */
void cases_hold(CUstream stream);
/* Posts from another thread, most likely while this one waits in its next call. */
void cases_post_later(sem_t *semaphore);

/* A new non-blocking stream, capturing. */
CUstream cases_capture(CUstreamCaptureMode mode);
CUgraphExec cases_end_capture(CUstream stream);

/* Runs `fn` in a child process; returns its exit status, or -1 when a signal ended it. */
int cases_child(void (*fn)(void));

/* Makes an empty file and writes its name. */
void cases_temporary(char path[32]);

#endif
