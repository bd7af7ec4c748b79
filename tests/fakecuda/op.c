/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device does: copies and fills, in pieces, each looked up when its turn comes, so
 * that memory unmapped meanwhile is met as a GPU would meet it.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* One side of a copy while a piece of it is under way. */
struct grip {
	struct window window; /* of device memory */
	unsigned char *bytes;
	size_t size;
};

static bool grip_take(const struct side *side, CUdeviceptr at, size_t size, bool writes,
	struct grip *grip)
{
	const struct access access = {side->ctx, writes, true};

	grip->bytes = (unsigned char *)at;
	grip->size = size;
	if (!side->is_device)
		return !side->is_pinned || host_pin(grip->bytes, size);
	if (!space_pin(at, size, &access, &grip->window))
		return false;
	grip->bytes = grip->window.bytes;
	grip->size = grip->window.size;
	return true;
}

static bool grip_drop(const struct side *side, const struct grip *grip)
{
	if (side->is_device)
		return space_unpin(&grip->window);
	if (side->is_pinned)
		host_unpin(grip->bytes);
	return true;
}

/* How much was copied; 0: one side could not be reached. */
static size_t copy_piece(
	const struct copy *copy, CUdeviceptr to, CUdeviceptr from, size_t size)
{
	struct grip dst, src;
	bool is_good;

	if (!grip_take(&copy->src, from, size < PIECE ? size : PIECE, false, &src))
		return 0;
	if (!grip_take(&copy->dst, to, src.size, true, &dst)) {
		grip_drop(&copy->src, &src);
		return 0;
	}
	memmove(dst.bytes, src.bytes, dst.size);
	is_good = grip_drop(&copy->dst, &dst);
	is_good = grip_drop(&copy->src, &src) && is_good;
	return is_good ? dst.size : 0;
}

static CUresult copy_run(const struct copy *copy)
{
	for (size_t row = 0; row < copy->rows; row++) {
		CUdeviceptr to = copy->dst.at + row * copy->dst.pitch;
		CUdeviceptr from = copy->src.at + row * copy->src.pitch;

		for (size_t at = 0, n; at < copy->width; at += n) {
			n = copy_piece(copy, to + at, from + at, copy->width - at);
			if (n == 0)
				return CUDA_ERROR_INVALID_VALUE;
		}
	}
	return CUDA_SUCCESS;
}

static void write_elements(unsigned char *bytes, size_t size, const struct fill *fill)
{
	if (fill->element == 1) {
		memset(bytes, (int)fill->value, size);
		return;
	}
	for (size_t at = 0; at < size; at += fill->element)
		memcpy(bytes + at, &fill->value, fill->element);
}

static CUresult fill_run(const struct fill *fill, struct CUctx_st *ctx)
{
	const struct access access = {ctx, true, false};
	size_t size = fill->width * fill->element;
	struct window w;

	for (size_t row = 0; row < fill->rows; row++) {
		for (size_t at = 0; at < size; at += w.size) {
			CUdeviceptr to = fill->at + row * fill->pitch + at;

			if (!space_pin(to, size - at, &access, &w))
				return CUDA_ERROR_INVALID_VALUE;
			write_elements(w.bytes, w.size, fill);
			if (!space_unpin(&w))
				return CUDA_ERROR_INVALID_VALUE;
		}
	}
	return CUDA_SUCCESS;
}

CUresult op_run(struct op *op, struct CUctx_st *ctx)
{
	switch (op->kind) {
	case OP_COPY:
		return copy_run(&op->copy);
	case OP_FILL:
		return fill_run(&op->fill, ctx);
	case OP_KERNEL:
		return kernel_run(&op->kernel, ctx);
	case OP_HOST:
		op->host.fn(op->host.user);
		return CUDA_SUCCESS;
	case OP_FREE:
		return pool_free(op->freed);
	default:
		return CUDA_SUCCESS;
	}
}

void op_drop_locked(struct op *op)
{
	if (op->kind == OP_COPY)
		free(op->copy.snapshot);
	if (op->kind == OP_STAMP)
		event_release_locked(op->event);
}

static bool copy_side_allows_locked(const struct copy *copy, const struct side *side)
{
	const struct access access = {side->ctx, side == &copy->dst, true};

	if (!side->is_device)
		return true;
	for (size_t row = 0; row < copy->rows; row++)
		if (!space_allows_locked(
			    side->at + row * side->pitch, copy->width, &access))
			return false;
	return true;
}

static bool fill_allows_locked(const struct fill *fill, struct CUctx_st *ctx)
{
	const struct access access = {ctx, true, false};

	for (size_t row = 0; row < fill->rows; row++)
		if (!space_allows_locked(fill->at + row * fill->pitch,
			    fill->width * fill->element, &access))
			return false;
	return true;
}

CUresult op_check_locked(const struct op *op, struct CUctx_st *ctx)
{
	bool allowed = true;

	if (op->kind == OP_COPY)
		allowed = copy_side_allows_locked(&op->copy, &op->copy.dst) &&
			  copy_side_allows_locked(&op->copy, &op->copy.src);
	if (op->kind == OP_FILL)
		allowed = fill_allows_locked(&op->fill, ctx);
	return allowed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
