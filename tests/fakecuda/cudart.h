/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake runtimes: one source, built once for each of CUDA 11, 12 and 13 with
 * FAKE_RUNTIME set to the version. As the real one does, it opens libcuda.so.1 at the
 * first call and takes every function from cuGetProcAddress().
 *
 * Only types come from the CUDA headers: the prototypes there are those of one version.
 */
#ifndef CUDART_H
#define CUDART_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>
#include <driver_types.h>

#ifdef FAKE_RUNTIME_STATIC
#define EXPORT
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Begins the definition of an exported function. */
#define RUNTIME(name, ...)                    \
	EXPORT cudaError_t name(__VA_ARGS__); \
	EXPORT cudaError_t name(__VA_ARGS__)

/* F: name and version. P: the same, in both stream flavours. */
#define DRIVER_FUNCTIONS(F, P)                      \
	F(cuInit, 2000)                             \
	F(cuDriverGetVersion, 2020)                 \
	F(cuDeviceGetCount, 2000)                   \
	F(cuDeviceGetAttribute, 2000)               \
	F(cuDeviceCanAccessPeer, 4000)              \
	F(cuDeviceGetDefaultMemPool, 11020)         \
	F(cuDevicePrimaryCtxRetain, 7000)           \
	F(cuDevicePrimaryCtxReset, 11000)           \
	F(cuCtxGetCurrent, 4000)                    \
	F(cuCtxSetCurrent, 4000)                    \
	F(cuCtxGetDevice, 2000)                     \
	F(cuCtxSynchronize, 2000)                   \
	F(cuCtxEnablePeerAccess, 4000)              \
	F(cuCtxDisablePeerAccess, 4000)             \
	F(cuMemAlloc, 3020)                         \
	F(cuMemAllocPitch, 3020)                    \
	F(cuMemAllocManaged, 6000)                  \
	F(cuMemFree, 3020)                          \
	F(cuMemGetInfo, 3020)                       \
	F(cuMemAllocHost, 3020)                     \
	F(cuMemHostAlloc, 2020)                     \
	F(cuMemFreeHost, 2000)                      \
	F(cuMemHostRegister, 6050)                  \
	F(cuMemHostUnregister, 4000)                \
	F(cuMemHostGetDevicePointer, 3020)          \
	F(cuMemHostGetFlags, 2030)                  \
	F(cuMemPoolTrimTo, 11020)                   \
	F(cuIpcGetMemHandle, 4010)                  \
	F(cuIpcOpenMemHandle, 11000)                \
	F(cuIpcCloseMemHandle, 4010)                \
	F(cuPointerGetAttributes, 7000)             \
	F(cuStreamCreateWithPriority, 5050)         \
	F(cuStreamDestroy, 4000)                    \
	F(cuEventCreate, 2000)                      \
	F(cuEventDestroy, 4000)                     \
	F(cuEventQuery, 2000)                       \
	F(cuEventSynchronize, 2000)                 \
	F(cuEventElapsedTime, 2000)                 \
	F(cuThreadExchangeStreamCaptureMode, 10010) \
	F(cuGraphCreate, 10000)                     \
	F(cuGraphDestroy, 10000)                    \
	F(cuGraphGetNodes, 10000)                   \
	F(cuGraphInstantiateWithFlags, 11040)       \
	F(cuGraphExecDestroy, 10000)                \
	P(cuMemAllocAsync, 11020)                   \
	P(cuMemAllocFromPoolAsync, 11020)           \
	P(cuMemFreeAsync, 11020)                    \
	P(cuMemcpy, 4000)                           \
	P(cuMemcpyHtoD, 3020)                       \
	P(cuMemcpyDtoH, 3020)                       \
	P(cuMemcpyDtoD, 3020)                       \
	P(cuMemcpyPeer, 4000)                       \
	P(cuMemcpy2DUnaligned, 3020)                \
	P(cuMemcpyAsync, 4000)                      \
	P(cuMemcpyHtoDAsync, 3020)                  \
	P(cuMemcpyDtoHAsync, 3020)                  \
	P(cuMemcpyDtoDAsync, 3020)                  \
	P(cuMemcpyPeerAsync, 4000)                  \
	P(cuMemcpy2DAsync, 3020)                    \
	P(cuMemsetD8, 3020)                         \
	P(cuMemsetD8Async, 3020)                    \
	P(cuStreamSynchronize, 2000)                \
	P(cuStreamQuery, 2000)                      \
	P(cuStreamWaitEvent, 3020)                  \
	P(cuStreamBeginCapture, 10010)              \
	P(cuStreamEndCapture, 10000)                \
	P(cuStreamIsCapturing, 10000)               \
	P(cuEventRecord, 2000)                      \
	P(cuGraphLaunch, 10000)                     \
	P(cuLaunchHostFunc, 10000)

/* of[LEGACY] and of[PER_THREAD] of a function that knows streams; of[LEGACY] of others.
 */
enum flavour { LEGACY, PER_THREAD, FLAVOURS };

#define DRIVER_FIELD(name, version) typeof(&name) name##_[1];
#define DRIVER_FIELDS(name, version) typeof(&name) name##_[FLAVOURS];

struct driver {
	DRIVER_FUNCTIONS(DRIVER_FIELD, DRIVER_FIELDS)
#if CUDA_VERSION >= 12030
	/* Newer than the oldest driver that will do; NULL there. */
	typeof(&cuStreamBeginCaptureToGraph) cuStreamBeginCaptureToGraph_[FLAVOURS];
#endif
};

#undef DRIVER_FIELD
#undef DRIVER_FIELDS

/* The driver's functions. Only after one of the two below has succeeded. */
const struct driver *driver(void);

/* The function of the calling thread's stream flavour, or the only one. */
#define CALL(name) (driver()->name##_[LEGACY])
#define CALL_AS(flavour, name) (driver()->name##_[flavour])

/* Opens and initialises the driver. */
cudaError_t runtime_load(void);
/* The same, and makes a context current as any call that needs one does. */
cudaError_t runtime_enter(void);

/* Remembers a failure for cudaGetLastError(), and returns it. */
cudaError_t runtime_leave(cudaError_t err);

/* The numbers are the same in both. */
static inline cudaError_t translate(CUresult err)
{
	return (cudaError_t)err;
}

/* Context of a device, for calls about two of them. */
cudaError_t runtime_context_of(int device, CUcontext *ctx);

/* One of cuGetProcAddress()'s answers, whichever form of it the driver has. */
CUresult runtime_look_up(const char *name, void **function, int version,
	unsigned long long flags, int *status);
int runtime_driver_version(void);

#endif
