/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory is private host memory at an address that only the fake knows. When it is
 * exported its contents move into a memfd, mapped at that same address, so that a process
 * with thousands of blocks needs no file descriptor for those it keeps to itself.
 *
 * Fresh memory holds 0xa5, written when a piece is first used: nobody may rely on zeros.
 */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ledger.h"

enum { POISON = 0xa5 };

/* Exported memory, so that importing one's own is recognised. */
static struct physical *shared[4096];

static size_t piece_count(size_t size)
{
	return (size + PIECE - 1) / PIECE;
}

/* The child of a fork has no device memory. */
static void *map_bytes(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, size, MADV_DONTFORK);
	return at;
}

static struct physical *new_physical(int device, size_t size)
{
	struct physical *phys = calloc(1, sizeof *phys);

	if (!phys)
		return NULL;
	phys->touched = calloc(piece_count(size) / 8 + 1, 1);
	phys->size = size;
	phys->device = device;
	phys->fd = -1;
	phys->id = fake_next_id();
	if (phys->touched)
		return phys;
	free(phys);
	return NULL;
}

CUresult physical_create_locked(int device, size_t size, struct physical **made)
{
	struct physical *phys;

	if (!ledger_charge(device, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	phys = new_physical(device, size);
	if (!phys)
		goto uncharge;
	phys->bytes = map_bytes(size);
	if (!phys->bytes)
		goto free_record;
	phys->is_charged = true;
	*made = phys;
	return CUDA_SUCCESS;

free_record:
	free(phys->touched);
	free(phys);
uncharge:
	ledger_discharge(device, size);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

struct physical *physical_wrap_locked(int device, void *bytes, size_t size)
{
	struct physical *phys = new_physical(device, size);

	if (!phys)
		return NULL;
	phys->bytes = bytes;
	memset(phys->touched, 0xff, piece_count(size) / 8 + 1);
	return phys;
}

static void forget_shared(const struct physical *phys)
{
	for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
		if (shared[i] == phys)
			shared[i] = NULL;
}

static void note_shared(struct physical *phys)
{
	for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
		if (!shared[i]) {
			shared[i] = phys;
			return;
		}
	}
}

static void uncharge(struct physical *phys)
{
	if (!phys->is_charged)
		return;
	if (phys->fd >= 0)
		ledger_drop(phys->inode);
	else
		ledger_discharge(phys->device, phys->size);
	phys->is_charged = false;
}

void physical_settle_locked(struct physical *phys)
{
	if (phys->handle_refs || phys->map_refs)
		return;
	uncharge(phys);
	if (phys->fd >= 0)
		forget_shared(phys);
	if (phys->pins)
		return;
	munmap(phys->bytes, phys->size);
	if (phys->fd >= 0)
		close(phys->fd);
	free(phys->touched);
	free(phys);
}

void physical_touch_locked(struct physical *phys, size_t offset, size_t size)
{
	size_t end = piece_count(offset + size);

	for (size_t i = offset / PIECE; i < end; i++) {
		size_t left = phys->size - i * PIECE;

		if (phys->touched[i / 8] & 1u << i % 8)
			continue;
		phys->touched[i / 8] |= 1u << i % 8;
		if (settings()->poison)
			memset(phys->bytes + i * PIECE, POISON,
				left < PIECE ? left : PIECE);
	}
}

void physical_overwrite_locked(struct physical *phys, size_t offset)
{
	size_t i = offset / PIECE;

	phys->touched[i / 8] |= 1u << i % 8;
}

static bool write_all(int fd, const unsigned char *bytes, size_t size)
{
	size_t at = 0;

	while (at < size) {
		ssize_t n = pwrite(fd, bytes + at, size - at, at);

		if (n <= 0)
			return false;
		at += n;
	}
	return true;
}

static bool map_shared(struct physical *phys, int fd, void *where)
{
	int fixed = where ? MAP_FIXED : 0;
	struct stat stat;
	void *at;

	if (fstat(fd, &stat) != 0)
		return false;
	at = mmap(where, phys->size, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, fd, 0);
	if (at == MAP_FAILED)
		return false;
	madvise(at, phys->size, MADV_DONTFORK);
	phys->bytes = at;
	phys->fd = fd;
	phys->inode = stat.st_ino;
	note_shared(phys);
	return true;
}

/* The device is in the name, where an importer reads it. */
CUresult physical_share_locked(struct physical *phys, int *fd)
{
	char name[32];

	if (phys->fd < 0) {
		snprintf(name, sizeof name, "fakecuda:%d", phys->device);
		*fd = memfd_create(name, MFD_CLOEXEC);
		if (*fd < 0)
			return CUDA_ERROR_OPERATING_SYSTEM;
		/* An access under way goes on in the old pages, so let it end first. */
		while (phys->pins)
			fake_wait_locked();
		physical_touch_locked(phys, 0, phys->size);
		if (!write_all(*fd, phys->bytes, phys->size) ||
			!map_shared(phys, *fd, phys->bytes)) {
			close(*fd);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		ledger_share(phys->device, phys->size, phys->inode);
	}
	*fd = phys->fd;
	return CUDA_SUCCESS;
}

/* Which device the memory behind a descriptor belongs to, or -1. */
static int device_of(int fd)
{
	char link[64], target[64];
	ssize_t len;
	int device;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	len = readlink(link, target, sizeof target - 1);
	if (len < 0)
		return -1;
	target[len] = 0;
	if (sscanf(target, "/memfd:fakecuda:%d", &device) != 1)
		return -1;
	return device >= 0 && device < settings()->devices ? device : -1;
}

static struct physical *find_shared(uint64_t inode)
{
	for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
		if (shared[i] && shared[i]->inode == inode)
			return shared[i];
	return NULL;
}

CUresult physical_import_locked(int fd, struct physical **made)
{
	int device = device_of(fd), copy;
	struct physical *phys;
	struct stat stat;

	if (device < 0 || fstat(fd, &stat) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	*made = find_shared(stat.st_ino);
	if (*made)
		return CUDA_SUCCESS;
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	phys = copy < 0 ? NULL : new_physical(device, stat.st_size);
	if (!phys || !map_shared(phys, copy, NULL)) {
		if (phys)
			free(phys->touched);
		free(phys);
		if (copy >= 0)
			close(copy);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memset(phys->touched, 0xff, piece_count(phys->size) / 8 + 1);
	phys->is_charged = true;
	ledger_hold(device, phys->size, phys->inode);
	*made = phys;
	return CUDA_SUCCESS;
}
