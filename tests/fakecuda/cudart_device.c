/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the driver, and which device and context a thread uses. Nothing of the driver
 * is touched before the first call. No lock is held while libraries are opened.
 */
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { DEVICES_MAX = 8 };

static _Atomic(const struct driver *) loaded;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Under the lock: the primary contexts, and which of them this runtime holds. */
static CUcontext primary[DEVICES_MAX];
static bool is_held[DEVICES_MAX];

struct thread {
	int device;
	bool must_bind; /* cudaSetDevice() was called since */
	cudaError_t last;
};

static __thread struct thread self;

const struct driver *driver(void)
{
	return atomic_load_explicit(&loaded, memory_order_acquire);
}

typedef CUresult look_up_v1(const char *, void **, int, cuuint64_t);
typedef CUresult look_up_v2(const char *, void **, int, cuuint64_t, int *);

CUresult runtime_look_up(const char *name, void **function, int version,
	unsigned long long flags, int *status)
{
	void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
	void *v2 = handle ? dlsym(handle, "cuGetProcAddress_v2") : NULL;
	void *v1 = handle && !v2 ? dlsym(handle, "cuGetProcAddress") : NULL;

	*function = NULL;
	*status = 1;
	if (v2)
		return ((look_up_v2 *)v2)(name, function, version, flags, status);
	if (!v1)
		return CUDA_ERROR_NOT_FOUND;
	*status = 0;
	return ((look_up_v1 *)v1)(name, function, version, flags);
}

static bool look_up(const char *name, int version, enum flavour flavour, void *field)
{
	int status;
	void **at = field;

	runtime_look_up(name, at, version, flavour == PER_THREAD ? 2 : 0, &status);
	return *at;
}

static bool fill(struct driver *d)
{
	bool all = true;

#define FILL(name, version) all &= look_up(#name, version, LEGACY, &d->name##_[LEGACY]);
#define FILL_BOTH(name, version)                                     \
	all &= look_up(#name, version, LEGACY, &d->name##_[LEGACY]); \
	all &= look_up(#name, version, PER_THREAD, &d->name##_[PER_THREAD]);
	DRIVER_FUNCTIONS(FILL, FILL_BOTH)
#undef FILL
#undef FILL_BOTH
#if CUDA_VERSION >= 12030
	for (enum flavour f = LEGACY; f < FLAVOURS; f++)
		look_up("cuStreamBeginCaptureToGraph", 12030, f,
			&d->cuStreamBeginCaptureToGraph_[f]);
#endif
	return all;
}

static bool open_driver(void)
{
	const struct driver *seen = NULL;
	struct driver *fresh;

	if (driver())
		return true;
	fresh = calloc(1, sizeof *fresh);
	if (!fresh || !fill(fresh) ||
		!atomic_compare_exchange_strong(&loaded, &seen, fresh))
		free(fresh);
	return driver() != NULL;
}

int runtime_driver_version(void)
{
	int version = 0;

	CALL(cuDriverGetVersion)(&version);
	return version;
}

cudaError_t runtime_load(void)
{
	static atomic_bool is_initialised;
	CUresult err;

	if (!open_driver() || runtime_driver_version() / 1000 < FAKE_RUNTIME / 1000)
		return cudaErrorInsufficientDriver;
	if (is_initialised)
		return cudaSuccess;
	err = CALL(cuInit)(0);
	is_initialised = err == CUDA_SUCCESS;
	return translate(err);
}

static CUresult hold(int device, CUcontext *ctx)
{
	CUresult err = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	if (!is_held[device]) {
		err = CALL(cuDevicePrimaryCtxRetain)(&primary[device], device);
		is_held[device] = err == CUDA_SUCCESS;
	}
	*ctx = primary[device];
	pthread_mutex_unlock(&lock);
	return err;
}

static cudaError_t bind_device(int device)
{
	CUcontext ctx;
	CUresult err = hold(device, &ctx);

	if (err == CUDA_SUCCESS)
		err = CALL(cuCtxSetCurrent)(ctx);
	if (err == CUDA_SUCCESS)
		self.must_bind = false;
	return translate(err);
}

/* The context that cudaDeviceReset() took away and that nobody has asked for since. */
static bool was_reset(CUcontext ctx)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < DEVICES_MAX; i++)
		found |= primary[i] == ctx && !is_held[i];
	pthread_mutex_unlock(&lock);
	return found;
}

cudaError_t runtime_enter(void)
{
	cudaError_t err = runtime_load();
	CUcontext current = NULL;

	if (err != cudaSuccess)
		return err;
	if (self.must_bind)
		return bind_device(self.device);
	err = translate(CALL(cuCtxGetCurrent)(&current));
	if (err != cudaSuccess || (current && !was_reset(current)))
		return err;
	return bind_device(self.device);
}

cudaError_t runtime_context_of(int device, CUcontext *ctx)
{
	int count = 0;
	CUresult err = CALL(cuDeviceGetCount)(&count);

	if (err == CUDA_SUCCESS && (device < 0 || device >= count))
		return cudaErrorInvalidDevice;
	return translate(err ? err : hold(device, ctx));
}

cudaError_t runtime_leave(cudaError_t err)
{
	if (err != cudaSuccess && err != cudaErrorNotReady)
		self.last = err;
	return err;
}

RUNTIME(cudaGetDeviceCount, int *count)
{
	cudaError_t err = runtime_load();

	if (err == cudaSuccess)
		err = translate(CALL(cuDeviceGetCount)(count));
	if (err != cudaSuccess && count)
		*count = 0;
	return runtime_leave(err);
}

/* From 12 on this makes the context, before that the next call does. */
RUNTIME(cudaSetDevice, int device)
{
	cudaError_t err = runtime_load();
	int count = 0;

	if (err == cudaSuccess)
		err = translate(CALL(cuDeviceGetCount)(&count));
	if (err == cudaSuccess && (device < 0 || device >= count))
		err = cudaErrorInvalidDevice;
	if (err != cudaSuccess)
		return runtime_leave(err);
	self.device = device;
	self.must_bind = true;
	return runtime_leave(FAKE_RUNTIME >= 12000 ? bind_device(device) : cudaSuccess);
}

RUNTIME(cudaGetDevice, int *device)
{
	cudaError_t err = runtime_load();
	CUcontext current = NULL;

	if (err == cudaSuccess && !device)
		err = cudaErrorInvalidValue;
	if (err != cudaSuccess)
		return runtime_leave(err);
	*device = self.device;
	if (!self.must_bind && CALL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current)
		CALL(cuCtxGetDevice)(device);
	return cudaSuccess;
}

RUNTIME(cudaDeviceSynchronize, void)
{
	cudaError_t err = runtime_enter();

	return runtime_leave(err ? err : translate(CALL(cuCtxSynchronize)()));
}

static cudaError_t reset(void)
{
	int device = self.device;
	cudaError_t err = cudaGetDevice(&device);

	if (err != cudaSuccess)
		return err;
	pthread_mutex_lock(&lock);
	is_held[device] = false;
	pthread_mutex_unlock(&lock);
	return translate(CALL(cuDevicePrimaryCtxReset)(device));
}

RUNTIME(cudaDeviceReset, void)
{
	return runtime_leave(reset());
}

RUNTIME(cudaDeviceGetAttribute, int *value, enum cudaDeviceAttr which, int device)
{
	cudaError_t err = runtime_load();

	if (err == cudaSuccess)
		err = translate(CALL(cuDeviceGetAttribute)(
			value, (CUdevice_attribute)which, device));
	return runtime_leave(err);
}

RUNTIME(cudaDeviceCanAccessPeer, int *can, int device, int peer)
{
	cudaError_t err = runtime_load();

	err = err ? err : translate(CALL(cuDeviceCanAccessPeer)(can, device, peer));
	return runtime_leave(err);
}

RUNTIME(cudaDeviceEnablePeerAccess, int peer, unsigned int flags)
{
	cudaError_t err = runtime_enter();
	CUcontext ctx;

	err = err ? err : runtime_context_of(peer, &ctx);
	if (!err && peer == self.device)
		err = cudaErrorPeerAccessUnsupported;
	return runtime_leave(
		err ? err : translate(CALL(cuCtxEnablePeerAccess)(ctx, flags)));
}

RUNTIME(cudaDeviceDisablePeerAccess, int peer)
{
	cudaError_t err = runtime_enter();
	CUcontext ctx;

	err = err ? err : runtime_context_of(peer, &ctx);
	return runtime_leave(err ? err : translate(CALL(cuCtxDisablePeerAccess)(ctx)));
}

RUNTIME(cudaDeviceGetDefaultMemPool, cudaMemPool_t *pool, int device)
{
	cudaError_t err = runtime_load();

	err = err ? err : translate(CALL(cuDeviceGetDefaultMemPool)(pool, device));
	return runtime_leave(err);
}

RUNTIME(cudaRuntimeGetVersion, int *version)
{
	if (!version)
		return runtime_leave(cudaErrorInvalidValue);
	*version = FAKE_RUNTIME;
	return cudaSuccess;
}

RUNTIME(cudaDriverGetVersion, int *version)
{
	if (!version)
		return runtime_leave(cudaErrorInvalidValue);
	*version = open_driver() ? runtime_driver_version() : 0;
	return cudaSuccess;
}

RUNTIME(cudaGetLastError, void)
{
	cudaError_t last = self.last;

	self.last = cudaSuccess;
	return last;
}

RUNTIME(cudaPeekAtLastError, void)
{
	return self.last;
}

static cudaError_t entry_point(const char *name, void **function, unsigned version,
	unsigned long long flags, int *status)
{
	cudaError_t err = runtime_load();
	int found = 1;

	if (err == cudaSuccess && (!name || !function))
		err = cudaErrorInvalidValue;
	if (err == cudaSuccess)
		err = translate(
			runtime_look_up(name, function, (int)version, flags, &found));
	if (status)
		*status = found;
	return runtime_leave(err);
}

/* The runtime's own version, or the driver's where that is older. */
static unsigned own_version(void)
{
	int version = open_driver() ? runtime_driver_version() : FAKE_RUNTIME;

	return version < FAKE_RUNTIME ? version : FAKE_RUNTIME;
}

#if FAKE_RUNTIME < 12000
static cudaError_t old_entry_point(
	const char *name, void **function, unsigned long long flags)
{
	cudaError_t err = entry_point(name, function, own_version(), flags, NULL);

	if (err == cudaSuccess && !*function)
		err = runtime_leave(cudaErrorSymbolNotFound);
	return err;
}

RUNTIME(cudaGetDriverEntryPoint, const char *name, void **function,
	unsigned long long flags)
{
	return old_entry_point(name, function, flags);
}

RUNTIME(cudaGetDriverEntryPoint_ptsz, const char *name, void **function,
	unsigned long long flags)
{
	return old_entry_point(name, function, flags ? flags : 2);
}
#else
RUNTIME(cudaGetDriverEntryPoint, const char *name, void **function,
	unsigned long long flags, int *status)
{
	return entry_point(name, function, own_version(), flags, status);
}

RUNTIME(cudaGetDriverEntryPoint_ptsz, const char *name, void **function,
	unsigned long long flags, int *status)
{
	return entry_point(name, function, own_version(), flags ? flags : 2, status);
}
#endif

#if FAKE_RUNTIME >= 12050
RUNTIME(cudaGetDriverEntryPointByVersion, const char *name, void **function,
	unsigned int version, unsigned long long flags, int *status)
{
	return entry_point(name, function, version, flags, status);
}

RUNTIME(cudaGetDriverEntryPointByVersion_ptsz, const char *name, void **function,
	unsigned int version, unsigned long long flags, int *status)
{
	return entry_point(name, function, version, flags ? flags : 2, status);
}
#endif
