/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a program manages itself, by cuMemCreate and cuMemMap. In a region it is
 * adopted: the program has a token for the handle, each mapping is a block at the
 * program's own address, and a pause releases it like any other.
 *
 * Adopted is pinned memory of a device that the calling thread's context is on. What a
 * pause cannot give back is held, and stays active: memory that was exported, bound to a
 * multicast object or an array, that is mapped at several addresses, or that its own
 * device may not read and write. So is, without a word, what is mapped nowhere.
 *
 * While paused, the program's calls succeed as if it were mapped: what it sets is there
 * after the resume. Only a second mapping of it, and an export, have to wait for that:
 * CUDA_ERROR_ILLEGAL_STATE. What is unmapped while paused has lost its contents, also when
 * the program maps or exports the same handle again. In a callback of
 * stayput_on_change(), what changes memory that is about to go is
 * CUDA_ERROR_NOT_PERMITTED.
 *
 * The functions here answer as the driver does. `real` is its function; the program's
 * calls take turns in it where records have to follow. Any thread, errno is kept.
 */
#ifndef ADOPT_H
#define ADOPT_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

struct choice;
struct device;
struct token;

/* The driver has made *handle: it becomes a token, if the memory can be adopted. */
bool adopt_created(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, const struct choice *choice);

/* For tokens. */
CUresult adopt_release(CUmemGenericAllocationHandle name, typeof(&cuMemRelease) real);
CUresult adopt_map(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle name, unsigned long long flags,
	typeof(&cuMemMap) real);
CUresult adopt_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle name);

/* The driver's handle for one that somebody else will have, which holds the memory from
 * here on; and the end of that, when nobody has got it. */
CUresult adopt_share(
	CUmemGenericAllocationHandle name, CUmemGenericAllocationHandle *handle);
void adopt_unshare(CUmemGenericAllocationHandle name);

/* The same by address, for all that lies in the range. */
void adopt_share_range(CUdeviceptr ptr, size_t size);
void adopt_unshare_range(CUdeviceptr ptr, size_t size);

/* For addresses, when mapping_any(). */
CUresult adopt_unmap(CUdeviceptr ptr, size_t size, typeof(&cuMemUnmap) real);
CUresult adopt_set_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *access,
	size_t count, typeof(&cuMemSetAccess) real);
CUresult adopt_free_addresses(
	CUdeviceptr ptr, size_t size, typeof(&cuMemAddressFree) real);

/* These answer when they return true; else the driver's own answer is right. */
bool adopt_get_access(
	unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr);
bool adopt_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr ptr);
bool adopt_paused_range(CUdeviceptr ptr, CUdeviceptr *base, size_t *size);

/* Addresses in the range only seem free to the driver: paused memory belongs there. */
bool adopt_any_paused(CUdeviceptr ptr, size_t size);

/* Memory behind the token that a pause has not released; 0 while there is none. */
CUmemGenericAllocationHandle adopt_handle(const struct token *t);

/* The end of a token that nothing refers to any more: its memory, and its record. With the
 * turn. */
CUresult adopt_end(struct token *t, typeof(&cuMemRelease) real);

/* The device is being reset: the driver leaves such memory as it is, but what was pinned
 * for backups is not any more. Contents of paused memory are lost. */
void adopt_reset(const struct device *dev);

#endif
