/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that allocates, writes, reads and frees 4 MiB by one route, ROUTE, and says
 * whether the library that is preloaded caught it: "caught", "native", or what went wrong.
 * With -DPLUGIN a shared object that host.c opens instead of a program.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "stayput.h"

#define RUNTIME 1      /* the runtime, however it is linked */
#define DRIVER 2       /* linked to libcuda */
#define DLSYM 3        /* dlsym() in libcuda */
#define PROC_ADDRESS 4 /* cuGetProcAddress() */
#define ENTRY_POINT 5  /* cudaGetDriverEntryPoint() */

enum { SIZE = 4 << 20 };

struct functions {
	CUresult (*allocate)(CUdeviceptr *ptr, size_t size);
	CUresult (*release)(CUdeviceptr ptr);
	CUresult (*set)(CUdeviceptr ptr, unsigned char value, size_t size);
	CUresult (*read)(void *host, CUdeviceptr ptr, size_t size);
};

#if ROUTE == RUNTIME

static CUresult allocate(CUdeviceptr *ptr, size_t size)
{
	return (CUresult)cudaMalloc((void **)ptr, size);
}

static CUresult release(CUdeviceptr ptr)
{
	return (CUresult)cudaFree((void *)ptr);
}

static CUresult set(CUdeviceptr ptr, unsigned char value, size_t size)
{
	return (CUresult)cudaMemset((void *)ptr, value, size);
}

static CUresult read(void *host, CUdeviceptr ptr, size_t size)
{
	return (CUresult)cudaMemcpy(host, (void *)ptr, size, cudaMemcpyDeviceToHost);
}

static int find(struct functions *f)
{
	*f = (struct functions){allocate, release, set, read};
	return 1;
}

#else

#if ROUTE == DRIVER

static void *look_up(const char *name, int version)
{
	(void)version;
	if (strcmp(name, "cuMemAlloc") == 0)
		return (void *)cuMemAlloc;
	if (strcmp(name, "cuMemFree") == 0)
		return (void *)cuMemFree;
	return strcmp(name, "cuMemsetD8") == 0 ? (void *)cuMemsetD8
					       : (void *)cuMemcpyDtoH;
}

#elif ROUTE == DLSYM

static void *look_up(const char *name, int version)
{
	static void *handle;
	char symbol[64];

	(void)version;
	if (!handle)
		handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	snprintf(symbol, sizeof symbol, "%s_v2", name);
	return dlsym(handle, symbol);
}

#elif ROUTE == PROC_ADDRESS

static void *look_up(const char *name, int version)
{
	void *found = NULL;

	cuGetProcAddress_v2(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
	return found;
}

#elif ROUTE == ENTRY_POINT

static void *look_up(const char *name, int version)
{
	void *found = NULL;

	cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, NULL);
	return found;
}

#endif

static int find(struct functions *f)
{
	CUcontext context;

	*(void **)&f->allocate = look_up("cuMemAlloc", 3020);
	*(void **)&f->release = look_up("cuMemFree", 3020);
	*(void **)&f->set = look_up("cuMemsetD8", 3020);
	*(void **)&f->read = look_up("cuMemcpyDtoH", 3020);
	return f->allocate && f->release && f->set && f->read &&
	       cuInit(0) == CUDA_SUCCESS &&
	       cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
	       cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

#endif

static int is_ours(CUdeviceptr ptr)
{
	struct stayput_info info = {.struct_size = sizeof info};
	typeof(&stayput_query) query;

	*(void **)&query = dlsym(RTLD_DEFAULT, "stayput_query");
	return query && query((void *)ptr, &info) == STAYPUT_OK;
}

static const char *take_route(void)
{
	unsigned char back[2] = {0, 0};
	struct functions f;
	CUdeviceptr ptr;
	int ours;

	if (!find(&f))
		return "FAILED to find the functions";
	if (f.allocate(&ptr, SIZE) != CUDA_SUCCESS)
		return "FAILED to allocate";
	ours = is_ours(ptr);
	if (f.set(ptr, 7, SIZE) != CUDA_SUCCESS ||
		f.read(&back[0], ptr, 1) != CUDA_SUCCESS ||
		f.read(&back[1], ptr + SIZE - 1, 1) != CUDA_SUCCESS || back[0] != 7 ||
		back[1] != 7)
		return "FAILED to use the memory";
	if (f.release(ptr) != CUDA_SUCCESS || is_ours(ptr))
		return "FAILED to free";
	return ours ? "caught" : "native";
}

#ifdef PLUGIN

const char *plugin_take_route(void);

const char *plugin_take_route(void)
{
	return take_route();
}

#else

int main(void)
{
	puts(take_route());
	return 0;
}

#endif
