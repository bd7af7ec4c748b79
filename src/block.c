/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include "device.h"
#include "mapping.h"
#include "real.h"
#include "region.h"

/* Most mappings that one driver call may change. A call costs about 30 us a mapping and
 * keeps the driver's lock meanwhile: other threads wait for a millisecond at most. */
enum { RUN_MAX = 32 };

static CUresult create_with(struct block *block, unsigned handle_types)
{
	const struct device *dev = block->space->device;
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = (CUmemAllocationHandleType)handle_types,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev->ordinal},
		.allocFlags = {.gpuDirectRDMACapable = dev->rdma},
	};

	return driver()->cuMemCreate(&block->handle, block->size, &prop, 0);
}

static bool refuses_handle_types(CUresult err)
{
	return err == CUDA_ERROR_NOT_PERMITTED || err == CUDA_ERROR_NOT_SUPPORTED ||
	       err == CUDA_ERROR_INVALID_VALUE;
}

/* What a device says that it can share memory by may not be permitted on this system: fabric
 * handles want a service. What it does take is remembered. A program's own memory is again
 * what the program has asked for. */
static CUresult create(struct block *block)
{
	struct device *dev = block->space->device;
	unsigned types = dev->handle_types;
	CUresult err;

	if (block->mapping)
		return driver()->cuMemCreate(
			&block->handle, block->size, &block->mapping->token->prop, 0);
	err = create_with(block, types);
	while (types && refuses_handle_types(err)) {
		types &= types & DEVICE_FABRIC ? ~(unsigned)DEVICE_FABRIC : 0;
		err = create_with(block, types);
		if (err == CUDA_SUCCESS)
			dev->handle_types = types;
	}
	return err;
}

/* For the devices of a mask, none included. */
static CUresult set_access(CUdeviceptr base, size_t size, uint64_t devices)
{
	CUmemAccessDesc access[DEVICE_MAX];
	size_t count = 0;

	for (int id = 0; id < DEVICE_MAX; id++)
		if (devices >> id & 1)
			access[count++] = (CUmemAccessDesc){
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
					.id = id},
				.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
			};
	return count ? driver()->cuMemSetAccess(base, size, access, count) : CUDA_SUCCESS;
}

static uint64_t owner_of(const struct block *block)
{
	return UINT64_C(1) << block->space->device->ordinal;
}

/* A handle that is not released keeps its memory: that is worth a second try. */
static CUresult release(struct block *block)
{
	CUresult err = driver()->cuMemRelease(block->handle);

	return err == CUDA_SUCCESS ? err : driver()->cuMemRelease(block->handle);
}

CUresult block_map(struct block *block)
{
	CUresult err = create(block);

	if (err != CUDA_SUCCESS)
		return err;
	err = driver()->cuMemMap(block->base, block->size, 0, block->handle, 0);
	if (err != CUDA_SUCCESS)
		goto release;
	block->allowed = block->space->device->peers;
	err = set_access(block->base, block->size, owner_of(block) | block->allowed);
	if (err != CUDA_SUCCESS)
		goto unmap;
	block->mapped = true;
	return CUDA_SUCCESS;

unmap:
	driver()->cuMemUnmap(block->base, block->size);
release:
	release(block);
	return err;
}

void block_allow_peers(struct block *block)
{
	uint64_t peers = block->space->device->peers;

	if (block->allowed != peers)
		set_access(block->base, block->size, peers);
	block->allowed = peers;
}

CUresult block_unmap(struct block *block)
{
	CUresult err = driver()->cuMemUnmap(block->base, block->size);

	if (err != CUDA_SUCCESS)
		return err;
	block->mapped = false;
	return release(block);
}

/* How many blocks, from the first, lie next to each other in one span, RUN_MAX at most. A
 * program's own mappings may lie in reservations of one mapping each. */
static size_t run_length(struct block *const *blocks, size_t count)
{
	size_t n = 1;

	while (n < count && n < RUN_MAX && blocks[0]->span &&
		blocks[n]->span == blocks[0]->span &&
		blocks[n - 1]->base + blocks[n - 1]->size == blocks[n]->base)
		n++;
	return n;
}

static size_t run_bytes(struct block *const *blocks, size_t n)
{
	return blocks[n - 1]->base + blocks[n - 1]->size - blocks[0]->base;
}

CUresult block_create_all(struct block *const *blocks, size_t count, size_t *done)
{
	CUresult err = CUDA_SUCCESS;

	for (*done = 0; *done < count; ++*done) {
		err = create(blocks[*done]);
		if (err != CUDA_SUCCESS)
			break;
	}
	return err;
}

CUresult block_map_all(struct block *const *blocks, size_t count, size_t *done)
{
	CUresult err = CUDA_SUCCESS;

	for (*done = 0; *done < count; ++*done) {
		struct block *b = blocks[*done];

		err = driver()->cuMemMap(b->base, b->size, 0, b->handle, 0);
		if (err != CUDA_SUCCESS)
			break;
		b->mapped = true;
	}
	return err;
}

CUresult block_access_all(struct block *const *blocks, size_t count, enum access who)
{
	CUresult err = CUDA_SUCCESS;
	uint64_t devices;
	size_t n;

	for (size_t i = 0; i < count && err == CUDA_SUCCESS; i += n) {
		n = run_length(blocks + i, count - i);
		if (blocks[i]->mapping) {
			err = mapping_allow(blocks[i], who);
			continue;
		}
		devices = who == ACCESS_OWNER ? 0 : blocks[i]->space->device->peers;
		if (who != ACCESS_PEERS)
			devices |= owner_of(blocks[i]);
		err = set_access(blocks[i]->base, run_bytes(blocks + i, n), devices);
	}
	return err;
}

void block_release_all(struct block *const *blocks, size_t count)
{
	for (size_t i = 0; i < count; i++)
		release(blocks[i]);
}

CUresult block_unmap_all(struct block *const *blocks, size_t count, size_t *done)
{
	CUresult err;
	size_t n;

	for (*done = 0; *done < count; *done += n) {
		struct block *const *run = blocks + *done;

		n = run_length(run, count - *done);
		err = driver()->cuMemUnmap(run[0]->base, run_bytes(run, n));
		if (err != CUDA_SUCCESS)
			return err;
		for (size_t i = 0; i < n; i++)
			run[i]->mapped = false;
		block_release_all(run, n);
	}
	return CUDA_SUCCESS;
}
