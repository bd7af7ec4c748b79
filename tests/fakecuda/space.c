/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table that stands for a device's page tables. Addresses of reservations and of
 * native memory are real and have no access for the host, so that a host access crashes.
 */
#include "fake.h"

struct index space_ranges, space_reservations;

struct range *space_find_locked(CUdeviceptr at)
{
	return (struct range *)index_find(&space_ranges, at);
}

struct reservation *space_reservation_locked(CUdeviceptr at)
{
	return (struct reservation *)index_find(&space_reservations, at);
}

bool space_is_device_locked(CUdeviceptr at)
{
	return space_find_locked(at) || space_reservation_locked(at) ||
	       native_is_window(at);
}

static bool may_reach(const struct range *range, const struct access *access)
{
	const struct CUctx_st *ctx = access->ctx;
	unsigned flags;

	if (range->kind == RANGE_MAPPED) {
		flags = range->access[ctx->device];
		return access->writes ? flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
				      : flags != 0;
	}
	if (range->kind == RANGE_MANAGED || range->phys->device == ctx->device)
		return true;
	return access->by_copy || (ctx->peers & 1u << range->phys->device);
}

bool space_pin_locked(
	CUdeviceptr at, size_t size, const struct access *access, struct window *w)
{
	struct range *range = space_find_locked(at);
	size_t offset, in_piece, in_range;

	if (!range || !may_reach(range, access))
		return false;
	offset = range->offset + (at - range->base);
	in_piece = PIECE - offset % PIECE;
	in_range = range->base + range->size - at;
	w->size = size < in_piece ? size : in_piece;
	w->size = w->size < in_range ? w->size : in_range;
	if (access->writes && w->size == PIECE)
		physical_overwrite_locked(range->phys, offset);
	else
		physical_touch_locked(range->phys, offset, w->size);
	range->phys->pins++;
	w->phys = range->phys;
	w->bytes = range->phys->bytes + offset;
	w->at = at;
	return true;
}

bool space_pin(CUdeviceptr at, size_t size, const struct access *access, struct window *w)
{
	bool found;

	fake_lock();
	found = space_pin_locked(at, size, access, w);
	fake_unlock();
	return found;
}

bool space_unpin_locked(const struct window *w)
{
	const struct range *range = space_find_locked(w->at);
	bool is_same = range && range->phys == w->phys;

	if (--w->phys->pins == 0)
		fake_progress_locked();
	physical_settle_locked(w->phys);
	return is_same;
}

bool space_unpin(const struct window *w)
{
	bool is_same;

	fake_lock();
	is_same = space_unpin_locked(w);
	fake_unlock();
	return is_same;
}

bool space_allows_locked(CUdeviceptr at, size_t size, const struct access *access)
{
	CUdeviceptr end = at + size;

	while (at < end) {
		const struct range *range = space_find_locked(at);

		if (!range || !may_reach(range, access))
			return false;
		at = range->base + range->size;
	}
	return true;
}
