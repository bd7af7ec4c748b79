/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every real CUDA function. Two ways to one:
 *
 *   REAL(cudaFree)           inside a hook of that name: the function that the hook's
 *                            caller would have reached without us, or NULL
 *   driver()->cuMemCreate    everywhere else; driver_loaded() was true before
 *
 * Lock-free; may open and search libraries, so never called with a lock held. Builds with
 * STAYPUT_CHECKS trap when driver() is called under the lock.
 */
#ifndef REAL_H
#define REAL_H

#include <stdbool.h>

#include <cuda.h>

#define DRIVER_FUNCTIONS(F)                  \
	F(cuInit)                            \
	F(cuGetErrorName)                    \
	F(cuDeviceGet)                       \
	F(cuDeviceGetAttribute)              \
	F(cuDeviceGetUuid_v2)                \
	F(cuDeviceTotalMem_v2)               \
	F(cuCtxGetCurrent)                   \
	F(cuCtxGetDevice)                    \
	F(cuCtxPushCurrent_v2)               \
	F(cuCtxPopCurrent_v2)                \
	F(cuCtxSynchronize)                  \
	F(cuThreadExchangeStreamCaptureMode) \
	F(cuMemGetInfo_v2)                   \
	F(cuMemGetAllocationGranularity)     \
	F(cuMemAddressReserve)               \
	F(cuMemAddressFree)                  \
	F(cuMemCreate)                       \
	F(cuMemRelease)                      \
	F(cuMemMap)                          \
	F(cuMemUnmap)                        \
	F(cuMemSetAccess)                    \
	F(cuMemExportToShareableHandle)      \
	F(cuMemImportFromShareableHandle)    \
	F(cuMemcpyDtoHAsync_v2)              \
	F(cuMemcpyHtoDAsync_v2)              \
	F(cuMemsetD8Async)                   \
	F(cuMemHostAlloc)                    \
	F(cuMemFreeHost)                     \
	F(cuMemHostRegister_v2)              \
	F(cuMemHostUnregister)               \
	F(cuModuleLoadData)                  \
	F(cuModuleGetFunction)               \
	F(cuLaunchKernel)                    \
	F(cuEventCreate)                     \
	F(cuEventDestroy_v2)                 \
	F(cuEventRecord)                     \
	F(cuEventSynchronize)                \
	F(cuStreamCreate)                    \
	F(cuStreamDestroy_v2)                \
	F(cuMemPoolTrimTo)                   \
	F(cuDeviceGetMemPool)                \
	F(cuDeviceGetDefaultMemPool)         \
	F(cuPointerGetAttribute)             \
	F(cuStreamIsCapturing)               \
	F(cuStreamSynchronize)

struct driver {
#define DRIVER_FIELD(name) typeof(&name) name;
	DRIVER_FUNCTIONS(DRIVER_FIELD)
#undef DRIVER_FIELD
};

/* Loads libcuda.so.1 at the first call. False when it cannot be had; asked anew then. */
bool driver_load(void);

/* driver_load() has succeeded before: costs one atomic load, opens nothing. */
bool driver_loaded(void);

/* The process has opened libcuda.so.1, by itself or through us. Opens nothing. */
bool driver_is_there(void);

const struct driver *driver(void);

#define REAL(function) \
	((typeof(&function))real_find(#function, __builtin_return_address(0)))

/* What `symbol` means to the code at `caller`; NULL when nothing has it, which is never
 * remembered: a runtime may be loaded later. */
void *real_find(const char *symbol, void *caller);

/* What libcuda.so.1 exports under that name, or NULL. */
void *real_in_driver(const char *symbol);

#endif
