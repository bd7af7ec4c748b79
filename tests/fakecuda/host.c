/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned host memory, registered or allocated. A copy that finds its host side no longer
 * registered when it runs is a fault, as it is on a GPU.
 */
#include "fake.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct index hosts;

struct host_range *host_find_locked(const void *at)
{
	return (struct host_range *)index_find(&hosts, (CUdeviceptr)at);
}

bool host_is_pinned_locked(const void *at, size_t size)
{
	CUdeviceptr from = (CUdeviceptr)at, end = from + size;

	while (from < end) {
		const struct host_range *host =
			(struct host_range *)index_find(&hosts, from);

		if (!host)
			return false;
		from = host->base + host->size;
	}
	return true;
}

bool host_pin(const void *at, size_t size)
{
	bool found;

	fake_lock();
	found = host_is_pinned_locked(at, size);
	if (found)
		host_find_locked(at)->pins++;
	fake_unlock();
	return found;
}

void host_unpin(const void *at)
{
	fake_lock();
	if (--host_find_locked(at)->pins == 0)
		fake_progress_locked();
	fake_unlock();
}

size_t host_count_locked(void)
{
	return hosts.count;
}

static CUresult insert_locked(CUdeviceptr base, size_t size, unsigned flags, bool is_ours)
{
	struct host_range *host;

	if (index_overlaps(&hosts, base, size))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	host = calloc(1, sizeof *host);
	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*host = (struct host_range){.base = base,
		.size = size,
		.flags = flags,
		.is_ours = is_ours,
		.ctx = context_current(),
		.id = fake_next_id()};
	if (index_insert(&hosts, (struct extent *)host))
		return CUDA_SUCCESS;
	free(host);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static size_t whole_pages(size_t size)
{
	size_t page = sysconf(_SC_PAGESIZE);

	return (size + page - 1) / page * page;
}

static void remove_locked(struct host_range *host)
{
	while (host->pins)
		fake_wait_locked();
	index_remove(&hosts, (struct extent *)host);
	if (host->is_ours)
		munmap((void *)host->base, whole_pages(host->size));
	free(host);
}

void host_remove_all_locked(const struct CUctx_st *ctx)
{
	size_t i = 0;

	while (i < hosts.count) {
		struct host_range *host = (struct host_range *)hosts.items[i];

		if (host->ctx == ctx)
			remove_locked(host);
		else
			i++;
	}
}

static CUresult allocate(void **ptr, size_t size, unsigned flags)
{
	CUresult err;
	void *at;

	if (!ptr || !size)
		return CUDA_ERROR_INVALID_VALUE;
	err = capture_allow_unsafe();
	if (err != CUDA_SUCCESS)
		return err;
	if (size > (size_t)1 << 47)
		return CUDA_ERROR_OUT_OF_MEMORY;
	at = mmap(NULL, whole_pages(size), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fake_lock();
	err = insert_locked((CUdeviceptr)at, size, flags, true);
	fake_unlock();
	if (err != CUDA_SUCCESS)
		munmap(at, whole_pages(size));
	else
		*ptr = at;
	return err;
}

API CUresult cuMemAllocHost_v2(void **ptr, size_t size)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : allocate(ptr, size, 0), "%zu", size);
}

API CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : allocate(ptr, size, flags), "%zu, %#x", size,
		flags);
}

/* Finds the range that begins at `ptr` and is (not) ours, and removes it. */
static CUresult remove_range(const void *ptr, bool is_ours, CUresult otherwise)
{
	CUresult err = capture_allow_unsafe();
	struct host_range *host;

	if (err != CUDA_SUCCESS)
		return err;
	fake_lock();
	host = host_find_locked(ptr);
	if (!host || host->base != (CUdeviceptr)ptr || host->is_ours != is_ours)
		err = otherwise;
	else
		remove_locked(host);
	fake_unlock();
	return err;
}

/* Waits for the context first, as the real one does. */
static CUresult release(void *ptr)
{
	CUresult err = capture_allow_unsafe();

	if (err == CUDA_SUCCESS)
		err = stream_wait_context(context_current());
	return err ? err : remove_range(ptr, true, CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuMemFreeHost(void *ptr)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : release(ptr), "%p", ptr);
}

/* mincore() knows no page that is not mapped. */
static bool is_mapped(const void *ptr, size_t size)
{
	size_t page = sysconf(_SC_PAGESIZE), left;
	uintptr_t at = (uintptr_t)ptr / page * page;
	uintptr_t end = (uintptr_t)ptr + size;
	unsigned char resident[4096];

	for (; at < end; at += sizeof resident * page) {
		left = whole_pages(end - at);
		if (left > sizeof resident * page)
			left = sizeof resident * page;
		if (mincore((void *)at, left, resident) != 0)
			return false;
	}
	return true;
}

static CUresult enroll(void *ptr, size_t size, unsigned flags)
{
	CUresult err;

	if (!ptr || !size || (uintptr_t)ptr + size < (uintptr_t)ptr)
		return CUDA_ERROR_INVALID_VALUE;
	err = capture_allow_unsafe();
	if (err != CUDA_SUCCESS)
		return err;
	if (!is_mapped(ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = insert_locked((CUdeviceptr)ptr, size, flags, false);
	fake_unlock();
	return err;
}

API CUresult cuMemHostRegister_v2(void *ptr, size_t size, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : enroll(ptr, size, flags);
	return done(__func__, err, "%p, %zu, %#x", ptr, size, flags);
}

API CUresult cuMemHostUnregister(void *ptr)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	if (err == CUDA_SUCCESS)
		err = remove_range(ptr, false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	return done(__func__, err, "%p", ptr);
}

static CUresult device_pointer(CUdeviceptr *dev, void *ptr)
{
	bool found;

	if (!dev || !ptr)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	found = host_find_locked(ptr);
	fake_unlock();
	if (!found)
		return CUDA_ERROR_INVALID_VALUE;
	*dev = (CUdeviceptr)ptr;
	return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dev, void *ptr, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(
		__func__, err ? err : device_pointer(dev, ptr), "%p, %#x", ptr, flags);
}

static CUresult get_flags(unsigned *flags, void *ptr)
{
	struct host_range *host;

	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	host = host_find_locked(ptr);
	if (host)
		*flags = host->flags;
	fake_unlock();
	return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *ptr)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : get_flags(flags, ptr), "%p", ptr);
}
