/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy IPC, for native memory only. A handle says where the exporter's memfd is, and
 * the opener takes it from there.
 */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x63706966 };

struct ticket {
	uint32_t magic;
	pid_t pid;
	int fd;
	uint64_t inode;
	size_t offset, size;
};

_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "a ticket is a handle");

static CUresult get_locked(struct ticket *ticket, CUdeviceptr ptr)
{
	struct range *range = space_find_locked(ptr);
	CUresult err;
	int fd;

	if (!range || range->kind != RANGE_NATIVE)
		return CUDA_ERROR_INVALID_VALUE;
	err = physical_share_locked(range->phys, &fd);
	if (err != CUDA_SUCCESS)
		return err;
	*ticket = (struct ticket){.magic = MAGIC,
		.pid = getpid(),
		.fd = fd,
		.inode = range->phys->inode,
		.offset = range->offset,
		.size = range->size};
	return CUDA_SUCCESS;
}

static CUresult get(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct ticket ticket = {0};
	CUresult err;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = get_locked(&ticket, ptr);
	fake_unlock();
	if (err != CUDA_SUCCESS)
		return err;
	memset(handle, 0, sizeof *handle);
	memcpy(handle, &ticket, sizeof ticket);
	return CUDA_SUCCESS;
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : get(handle, ptr), "%#llx", ptr);
}

/* The exporter may be gone, and its number given to something else. */
static int open_exported(const struct ticket *ticket)
{
	char path[64];
	struct stat stat;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)ticket->pid, ticket->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &stat) != 0 || stat.st_ino != ticket->inode)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static struct range *find_opened_locked(const struct ticket *ticket)
{
	for (size_t i = 0; i < space_ranges.count; i++) {
		struct range *range = (struct range *)space_ranges.items[i];

		if (range->kind == RANGE_OPENED && range->phys->inode == ticket->inode &&
			range->offset == ticket->offset)
			return range;
	}
	return NULL;
}

static CUresult place_locked(
	const struct ticket *ticket, struct physical *phys, CUdeviceptr *ptr)
{
	struct range *range = calloc(1, sizeof *range);
	CUdeviceptr base = native_window_locked(phys->size);

	if (!range || !base) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*range = (struct range){.base = base + ticket->offset,
		.size = ticket->size,
		.kind = RANGE_OPENED,
		.phys = phys,
		.offset = ticket->offset,
		.ctx = context_current(),
		.opens = 1,
		.id = fake_next_id()};
	if (!index_insert(&space_ranges, (struct extent *)range)) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	phys->map_refs++;
	*ptr = range->base;
	return CUDA_SUCCESS;
}

static CUresult open_locked(const struct ticket *ticket, int fd, CUdeviceptr *ptr)
{
	struct range *range = find_opened_locked(ticket);
	struct physical *phys;
	CUresult err;

	if (range) {
		range->opens++;
		*ptr = range->base;
		return CUDA_SUCCESS;
	}
	err = physical_import_locked(fd, &phys);
	if (err != CUDA_SUCCESS)
		return err;
	err = place_locked(ticket, phys, ptr);
	physical_settle_locked(phys);
	return err;
}

static CUresult open_handle(
	CUdeviceptr *ptr, const CUipcMemHandle *handle, unsigned flags)
{
	struct ticket ticket;
	CUresult err;
	int fd;

	memcpy(&ticket, handle, sizeof ticket);
	if (!ptr || ticket.magic != MAGIC || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (ticket.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	fd = open_exported(&ticket);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = open_locked(&ticket, fd, ptr);
	fake_unlock();
	close(fd);
	return err;
}

API CUresult cuIpcOpenMemHandle_v2(
	CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : open_handle(ptr, &handle, flags);
	return done(__func__, err, "%#llx", err ? 0 : *ptr);
}

API CUresult cuIpcOpenMemHandle(
	CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(ptr, handle, flags);
}

static CUresult close_handle(CUdeviceptr ptr)
{
	CUresult err = stream_wait_context(context_current());
	struct range *range;

	if (err != CUDA_SUCCESS)
		return err;
	fake_lock();
	range = space_find_locked(ptr);
	if (!range || range->kind != RANGE_OPENED || range->base != ptr)
		err = CUDA_ERROR_INVALID_VALUE;
	else if (--range->opens == 0)
		native_remove_locked(range);
	fake_unlock();
	return err;
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : close_handle(ptr), "%#llx", ptr);
}
