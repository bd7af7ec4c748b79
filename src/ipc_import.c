/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who opens something has the link to its exporter meanwhile, so that what is opened twice
 * at once is opened once.
 */
#include "ipc_import.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "capture.h"
#include "clock.h"
#include "config.h"
#include "device.h"
#include "error.h"
#include "fork.h"
#include "ipc_export.h"
#include "ipc_link.h"
#include "lock.h"
#include "real.h"

enum { PASSING_SECONDS = 30, RETRY_MS = 5 };

struct import {
	struct ipc_handle handle;
	CUcontext context;     /* where it was opened */
	struct device *device; /* of that context */
	struct ipc_link *link;
	CUdeviceptr at; /* of the mapping */
	size_t block_size;
	CUdeviceptr base;
	size_t size;
	struct device *owner; /* that the memory is on; NULL: not visible here */
	uint64_t allowed;     /* those of owner->peers that have access */
	unsigned opens;
	struct import *next;
};

/* Under the lock; the count also without. */
static struct import *imports;
static struct import *deferred;
static _Atomic size_t import_count;

static struct import *find_open_locked(const struct ipc_handle *handle, CUcontext context)
{
	struct import *i = imports;

	while (i && (i->context != context || i->handle.id != handle->id ||
			    memcmp(i->handle.token, handle->token, IPC_TOKEN) != 0))
		i = i->next;
	return i;
}

/* The link to the exporter, busy for the caller; or what is open already, counted. Neither
 * without memory. */
static struct ipc_link *enter_link(
	const struct ipc_handle *handle, CUcontext context, struct import **open)
{
	struct ipc_link *link;

	lock_take();
	for (;;) {
		*open = find_open_locked(handle, context);
		link = *open ? NULL : ipc_link_find_locked(handle->token);
		if (!link || !link->busy)
			break;
		lock_wait();
	}
	if (*open)
		(*open)->opens++;
	if (link)
		link->busy = true;
	lock_drop();
	return link;
}

static struct device *device_of_uuid(const CUuuid *uuid)
{
	struct device *dev;
	CUuuid its;

	for (CUdevice i = 0; i < DEVICE_MAX; i++) {
		if (driver()->cuDeviceGetUuid_v2(&its, i) != CUDA_SUCCESS)
			return NULL;
		if (memcmp(&its, uuid, sizeof its) == 0)
			return device_get(i, &dev) == CUDA_SUCCESS ? dev : NULL;
	}
	return NULL;
}

static CUresult set_access(struct import *i)
{
	CUmemAccessDesc access[DEVICE_MAX];
	uint64_t devices = UINT64_C(1) << i->device->ordinal;
	size_t count = 0;

	if (i->owner) {
		i->allowed = i->owner->peers;
		devices |= i->allowed | UINT64_C(1) << i->owner->ordinal;
	}
	for (int id = 0; id < DEVICE_MAX; id++)
		if (devices >> id & 1)
			access[count++] = (CUmemAccessDesc){
				.location = {CU_MEM_LOCATION_TYPE_DEVICE, id},
				.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
			};
	return driver()->cuMemSetAccess(i->at, i->block_size, access, count);
}

static CUresult map_memory(struct import *i, CUmemGenericAllocationHandle memory)
{
	CUresult err = driver()->cuMemAddressReserve(&i->at, i->block_size, 0, 0, 0);

	if (err != CUDA_SUCCESS)
		return err;
	err = driver()->cuMemMap(i->at, i->block_size, 0, memory, 0);
	if (err != CUDA_SUCCESS)
		goto unreserve;
	err = set_access(i);
	if (err == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	driver()->cuMemUnmap(i->at, i->block_size);
unreserve:
	driver()->cuMemAddressFree(i->at, i->block_size);
	return err;
}

/* Closes the descriptor in any case. */
static CUresult map_descriptor(struct import *i, int fd)
{
	CUmemGenericAllocationHandle memory;
	CUresult err = driver()->cuMemImportFromShareableHandle(
		&memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	close(fd);
	if (err == CUDA_SUCCESS) {
		err = map_memory(i, memory);
		/* The mapping keeps the memory; a handle would too, for ever. */
		if (driver()->cuMemRelease(memory) != CUDA_SUCCESS)
			driver()->cuMemRelease(memory);
	}
	if (err != CUDA_SUCCESS)
		ipc_link_fail(err,
			"memory of process %d could not be mapped on device %d: %s (%d)",
			i->handle.pid, i->device->ordinal, error_cuda_name(err),
			(int)err);
	return err;
}

static CUresult fetch_and_map(struct import *i)
{
	struct ipc_reply reply;
	CUresult err;
	int fd;

	err = ipc_link_fetch(i->link, &i->handle, &reply, &fd);
	if (err != CUDA_SUCCESS)
		return err;
	i->block_size = reply.block_size;
	i->size = reply.size;
	i->owner = device_of_uuid(&reply.uuid);
	err = map_descriptor(i, fd);
	i->base = i->at + reply.offset;
	if (err != CUDA_SUCCESS)
		ipc_link_close(i->link, &i->handle);
	return err;
}

static void list_locked(struct import *i)
{
	i->opens = 1;
	i->next = imports;
	imports = i;
	atomic_fetch_add(&import_count, 1);
}

/* *before is what it was set up as: peers may have changed since. */
static void publish_locked(struct import *i, struct import *before)
{
	/* So that its destruction is heard of. */
	device_note_context_locked(i->device, i->context);
	i->link->imports++;
	*before = *i;
	if (i->owner)
		i->allowed = i->owner->peers;
	list_locked(i);
}

/* peers_change() may have looked before it was published. A copy, as the other may be closed
 * meanwhile; the driver refuses then. */
static void allow_peers(struct import copy)
{
	if (copy.owner && copy.owner->peers != copy.allowed)
		set_access(&copy);
}

static CUresult open_new(CUdeviceptr *ptr, const struct ipc_handle *handle,
	const struct place *place, struct ipc_link *link)
{
	struct import *i = calloc(1, sizeof *i), copy;
	CUresult err = CUDA_ERROR_OUT_OF_MEMORY;

	if (i) {
		*i = (struct import){.handle = *handle,
			.context = place->context,
			.device = place->device,
			.link = link};
		err = fetch_and_map(i);
	}
	lock_take();
	if (err == CUDA_SUCCESS) {
		publish_locked(i, &copy);
	}
	ipc_link_leave_locked(link);
	lock_drop();
	if (err != CUDA_SUCCESS) {
		free(i);
		return err;
	}
	*ptr = copy.base;
	allow_peers(copy);
	return CUDA_SUCCESS;
}

static CUresult check_handle(const struct ipc_handle *handle)
{
	if (handle->version != IPC_VERSION)
		return ipc_link_fail(CUDA_ERROR_NOT_SUPPORTED,
			"this handle is of version %u, made by another version of "
			"libstayput.so; this one knows version %d",
			handle->version, IPC_VERSION);
	if (ipc_export_is_own(handle))
		return ipc_link_fail(CUDA_ERROR_INVALID_CONTEXT,
			"this handle is of this process, where it cannot be opened");
	return CUDA_SUCCESS;
}

static CUresult try_to_open(
	CUdeviceptr *ptr, const struct ipc_handle *handle, const struct place *place)
{
	struct import *open;
	struct ipc_link *link = enter_link(handle, place->context, &open);

	if (link)
		return open_new(ptr, handle, place, link);
	if (!open)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ptr = open->base;
	return CUDA_SUCCESS;
}

/* Others may use the link while the exporter pauses or resumes the memory. */
static CUresult import_open(
	CUdeviceptr *ptr, const struct ipc_handle *handle, const struct place *place)
{
	const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000};
	double deadline = clock_now() + PASSING_SECONDS;
	CUresult err = check_handle(handle);

	if (err != CUDA_SUCCESS)
		return err;
	fork_watch();
	fork_note_use();
	while ((err = try_to_open(ptr, handle, place)) == CUDA_ERROR_NOT_READY) {
		if (clock_now() >= deadline)
			return ipc_link_fail(CUDA_ERROR_ILLEGAL_STATE,
				"process %d has been pausing or resuming the memory of "
				"this handle for %d s",
				handle->pid, PASSING_SECONDS);
		nanosleep(&pause, NULL);
	}
	return err;
}

CUresult ipc_import_open(
	CUdeviceptr *ptr, const struct ipc_handle *handle, const struct place *place)
{
	int saved = errno;
	CUresult err;

	/* Perhaps the first that this library does here: from now on the log is as wanted. */
	config();
	err = import_open(ptr, handle, place);
	errno = saved;
	return err;
}

static void unlink_locked(struct import *i)
{
	struct import **at = &imports;

	while (*at != i)
		at = &(*at)->next;
	*at = i->next;
	atomic_fetch_sub(&import_count, 1);
}

/* The end of what has left the list. What cannot be unmapped is open still. */
static CUresult finish(struct import *i, bool unhold)
{
	struct ipc_link *link = i->link;
	CUresult sync = device_synchronize_context(i->context);
	CUresult err = driver()->cuMemUnmap(i->at, i->block_size);

	lock_take();
	if (unhold)
		capture_unhold_locked();
	if (err != CUDA_SUCCESS) {
		list_locked(i);
		lock_drop();
		return err == CUDA_ERROR_DEINITIALIZED ? CUDA_SUCCESS : err;
	}
	while (link->busy)
		lock_wait();
	link->busy = true;
	lock_drop();
	driver()->cuMemAddressFree(i->at, i->block_size);
	ipc_link_close(link, &i->handle);
	lock_take();
	link->imports--;
	ipc_link_leave_locked(link);
	lock_drop();
	free(i);
	return sync;
}

/* The last closing of it takes it out of the list. */
static struct import *close_locked(CUdeviceptr ptr, bool *last, bool *put_off)
{
	struct import *i = imports;

	while (i && i->base != ptr)
		i = i->next;
	*last = i && --i->opens == 0;
	if (!*last)
		return i;
	unlink_locked(i);
	*put_off = !capture_hold_locked();
	if (*put_off) {
		i->next = deferred;
		deferred = i;
	}
	return i;
}

CUresult ipc_import_close(CUdeviceptr ptr)
{
	bool last = false, put_off = false;
	CUresult err = CUDA_SUCCESS;
	int saved = errno;
	struct import *i;

	if (fork_is_child() || import_count == 0)
		return CUDA_ERROR_NOT_FOUND;
	lock_take();
	i = close_locked(ptr, &last, &put_off);
	lock_drop();
	if (!i)
		return CUDA_ERROR_NOT_FOUND;
	if (last && !put_off)
		err = finish(i, true);
	errno = saved;
	return err;
}

void ipc_import_close_deferred(void)
{
	struct import *list = NULL, *i;

	lock_take();
	if (deferred && capture_hold_locked()) {
		list = deferred;
		deferred = NULL;
	}
	lock_drop();
	while ((i = list)) {
		list = i->next;
		finish(i, !list);
	}
}

bool ipc_import_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size)
{
	const struct import *i;

	if (import_count == 0 || fork_is_child())
		return false;
	lock_take();
	i = imports;
	while (i && ptr - i->base >= i->size)
		i = i->next;
	if (i) {
		*base = i->base;
		*size = i->size;
	}
	lock_drop();
	return i != NULL;
}

/* The mapping of an import that is on `owner` and has not followed yet; it is as good as done.
 * One that was opened on `accessor` has access by that. None when the opposite is wanted by
 * now. */
static bool next_to_change(
	CUdevice owner, CUdevice accessor, bool allowed, CUdeviceptr *at, size_t *size)
{
	struct import *i;

	lock_take();
	for (i = imports; i; i = i->next)
		if (i->owner && i->owner->ordinal == owner &&
			i->device->ordinal != accessor &&
			(i->owner->peers >> accessor & 1) == allowed &&
			(i->allowed >> accessor & 1) != allowed)
			break;
	if (i) {
		i->allowed ^= UINT64_C(1) << accessor;
		*at = i->at;
		*size = i->block_size;
	}
	lock_drop();
	return i != NULL;
}

void ipc_import_change_peer(CUdevice owner, const CUmemAccessDesc *access)
{
	CUdevice accessor = access->location.id;
	bool allowed = access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
	CUdeviceptr at;
	size_t size;

	/* If one goes meanwhile, the driver refuses. */
	while (import_count > 0 && next_to_change(owner, accessor, allowed, &at, &size))
		driver()->cuMemSetAccess(at, size, access, 1);
}

static void close_all(const struct device *dev, CUcontext ctx)
{
	struct import *i;

	do {
		lock_take();
		i = imports;
		while (i && (dev ? i->device != dev : i->context != ctx))
			i = i->next;
		if (i)
			unlink_locked(i);
		lock_drop();
	} while (i && finish(i, false) == CUDA_SUCCESS);
}

void ipc_import_close_device(const struct device *dev)
{
	close_all(dev, NULL);
}

void ipc_import_close_context(CUcontext ctx)
{
	close_all(NULL, ctx);
}

void ipc_import_forget_all_locked(void)
{
	ipc_link_forget_all_locked();
	imports = deferred = NULL;
	atomic_store(&import_count, 0);
}
