/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A change is noted first; then all blocks that are known get their access again. A block
 * that is published later was mapped either after the change was noted, or before: then
 * block_allow_peers(), which follows its publication, finds that it is out of date.
 */
#include "peers.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "block.h"
#include "change.h"
#include "device.h"
#include "ipc_import.h"
#include "lock.h"
#include "log.h"
#include "real.h"
#include "region.h"
#include "stayput.h"

/* Where a block is, as nobody owns it while its access is set. If it goes meanwhile, the
 * driver refuses; if another block comes there, it has the same access. */
struct range {
	CUdeviceptr base;
	size_t size;
};

static bool is_settled(const struct block *list)
{
	for (const struct block *b = list; b; b = b->next)
		if (b->state == STAYPUT_PAUSING || b->state == STAYPUT_RESUMING)
			return false;
	return true;
}

/* Adds the blocks of a list that may be mapped, or only counts when there is no room yet. In
 * a callback that includes what is being paused, and stays active if that fails. */
static size_t add_blocks(const struct block *list, struct range *ranges)
{
	size_t n = 0;

	for (const struct block *b = list; b; b = b->next) {
		/* A program's own mappings are not changed by what it lets peers do. */
		if ((b->state != STAYPUT_ACTIVE && b->state != STAYPUT_PAUSING) ||
			b->mapping)
			continue;
		if (ranges)
			ranges[n] = (struct range){b->base, b->size};
		n++;
	}
	return n;
}

static size_t add_all_locked(
	const struct device *owner, struct range *ranges, bool *settled)
{
	size_t n = 0;

	*settled = true;
	for (struct region *r = region_first_locked(); r; r = r->next)
		for (struct space *s = r->spaces; s; s = s->next) {
			if (s->device != owner)
				continue;
			*settled =
				*settled && is_settled(s->large) && is_settled(s->shared);
			n += add_blocks(s->large, ranges ? ranges + n : NULL);
			n += add_blocks(s->shared, ranges ? ranges + n : NULL);
		}
	return n;
}

/* The mapped blocks on a device, once nobody is pausing or resuming any; but a callback of
 * the one that is does not wait for itself. */
static struct range *list_blocks(const struct device *owner, size_t *count)
{
	struct range *ranges;
	bool settled;

	lock_take();
	while (add_all_locked(owner, NULL, &settled), !settled && !change_is_telling())
		lock_wait();
	*count = add_all_locked(owner, NULL, &settled);
	ranges = calloc(*count + 1, sizeof *ranges);
	if (ranges)
		add_all_locked(owner, ranges, &settled);
	lock_drop();
	return ranges;
}

void peers_change(CUdevice accessor, CUdevice owner, bool allowed)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = accessor},
		.flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
				 : CU_MEM_ACCESS_FLAGS_PROT_NONE,
	};
	struct range *ranges;
	struct device *dev;
	size_t count;

	if (accessor < 0 || accessor >= DEVICE_MAX || !driver_load() ||
		device_get(owner, &dev) != CUDA_SUCCESS)
		return;
	if (allowed)
		atomic_fetch_or(&dev->peers, UINT64_C(1) << accessor);
	else
		atomic_fetch_and(&dev->peers, ~(UINT64_C(1) << accessor));
	ranges = list_blocks(dev, &count);
	for (size_t i = 0; ranges && i < count; i++)
		driver()->cuMemSetAccess(ranges[i].base, ranges[i].size, &access, 1);
	ipc_import_change_peer(owner, &access);
	if (!ranges)
		log_line(LOG_WARN,
			"no memory to give device %d access to region memory on device "
			"%d",
			accessor, owner);
	free(ranges);
}
