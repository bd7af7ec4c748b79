/* SPDX-License-Identifier: Apache-2.0 */
/* A library that uses the runtime it is linked to, as an extension module does. */
#include "libraries.h"

cudaError_t consumer_malloc(void **ptr, size_t size)
{
	return cudaMalloc(ptr, size);
}

cudaError_t consumer_free(void *ptr)
{
	return cudaFree(ptr);
}

int consumer_runtime(void)
{
	int version = 0;

	cudaRuntimeGetVersion(&version);
	return version / 1000;
}

cudaError_t consumer_last_error(void)
{
	return cudaGetLastError();
}

void *consumer_allocate(torch_malloc *allocate, ssize_t size, int device)
{
	return allocate(size, device, NULL);
}

void consumer_release(torch_free *release, void *ptr, ssize_t size, int device)
{
	release(ptr, size, device, NULL);
}

int consumer_device(void)
{
	int device = -1;

	cudaGetDevice(&device);
	return device;
}

cudaError_t consumer_set_device(int device)
{
	return cudaSetDevice(device);
}

cudaError_t consumer_write(void *ptr, int value, size_t size)
{
	cudaError_t err = cudaMemset(ptr, value, size);

	return err == cudaSuccess ? cudaDeviceSynchronize() : err;
}

cudaError_t consumer_read(void *host, const void *ptr, size_t size)
{
	return cudaMemcpy(host, ptr, size, cudaMemcpyDeviceToHost);
}
