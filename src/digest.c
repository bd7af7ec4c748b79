/* SPDX-License-Identifier: Apache-2.0 */
#include "digest.h"

#include "block.h"
#include "device.h"
#include "digest_constants.h"
#include "digest_ptx.h"
#include "lock.h"
#include "log.h"
#include "real.h"

/* Pieces of one launch: 4 GiB, a millisecond. Whoever synchronises the context meanwhile
 * waits for no more than that. */
enum { LAUNCH_PIECES = 2048 };

size_t digest_pieces(const struct block *block)
{
	return block->size / DIGEST_PIECE;
}

static CUresult load(const struct device *dev, CUfunction *function)
{
	CUmodule module;
	CUresult err = CUDA_ERROR_NOT_SUPPORTED;

	if (dev->granule % DIGEST_PIECE == 0)
		err = driver()->cuModuleLoadData(&module, digest_ptx);
	if (err == CUDA_SUCCESS)
		err = driver()->cuModuleGetFunction(function, module, "stayput_digest");
	if (err != CUDA_SUCCESS)
		log_line(LOG_INFO,
			"device %d: no kernel for digests (CUDA error %d), so that every "
			"pause copies everything",
			dev->ordinal, (int)err);
	return err;
}

/* False: the caller has to load it, and others wait for that. */
static bool known_locked(struct digester *d, CUcontext ctx)
{
	while (d->loading)
		lock_wait();
	if (d->tried && (!d->context || d->context == ctx))
		return true;
	d->loading = true;
	return false;
}

CUfunction digest_load(struct device *dev)
{
	struct digester *d = &dev->digester;
	CUfunction function = NULL;
	CUcontext ctx = NULL;
	bool known;

	driver()->cuCtxGetCurrent(&ctx);
	lock_take();
	known = known_locked(d, ctx);
	function = d->function;
	lock_drop();
	if (known)
		return function;
	if (load(dev, &function) != CUDA_SUCCESS)
		function = NULL;
	lock_take();
	*d = (struct digester){
		.tried = true, .context = function ? ctx : NULL, .function = function};
	lock_notify();
	lock_drop();
	return function;
}

void digest_unload_locked(struct device *dev)
{
	if (!dev->digester.loading)
		dev->digester = (struct digester){.tried = false};
}

void digest_unload_context(CUcontext ctx)
{
	lock_take();
	for (struct device *dev = device_first(); dev; dev = device_next(dev))
		if (dev->digester.context == ctx)
			digest_unload_locked(dev);
	lock_drop();
}

static size_t count_pieces(struct block *const *blocks, size_t count)
{
	size_t pieces = 0;

	for (size_t i = 0; i < count; i++)
		pieces += digest_pieces(blocks[i]);
	return pieces;
}

static void list_pieces(struct block *const *blocks, size_t count, CUdeviceptr *list)
{
	for (size_t i = 0; i < count; i++)
		for (size_t at = 0; at < blocks[i]->size; at += DIGEST_PIECE)
			*list++ = blocks[i]->base + at;
}

void digest_end(struct digesting *d)
{
	CUresult err = d->stream ? device_wait_stream(d->stream) : CUDA_SUCCESS;

	if (d->stream)
		driver()->cuStreamDestroy_v2(d->stream);
	if (d->digests && err == CUDA_SUCCESS)
		driver()->cuMemFreeHost(d->digests);
	*d = (struct digesting){.function = NULL};
}

/* The next part, unless all have been launched. */
static CUresult launch(struct digesting *d)
{
	size_t left = d->pieces - d->launched;
	size_t n = left < LAUNCH_PIECES ? left : LAUNCH_PIECES;
	CUdeviceptr *list = d->list + d->launched;
	struct digest *digests = d->digests + d->launched;

	d->launched += n;
	return n == 0 ? CUDA_SUCCESS
		      : driver()->cuLaunchKernel(d->function, (unsigned)n, 1, 1,
				DIGEST_THREADS, 1, 1, 0, d->stream,
				(void *[]){&list, &digests}, NULL);
}

/* A few bytes of host memory for each 2 MiB of the device's. */
static bool allocate(struct digesting *d)
{
	size_t size = d->pieces * (sizeof *d->digests + sizeof *d->list);
	void *memory;

	if (driver()->cuMemHostAlloc(&memory, size,
		    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) != CUDA_SUCCESS)
		return false;
	d->digests = memory;
	d->list = (CUdeviceptr *)(d->digests + d->pieces);
	return true;
}

void digest_begin(struct digesting *d, struct device *dev, struct block *const *blocks,
	size_t count)
{
	*d = (struct digesting){
		.function = digest_load(dev), .pieces = count_pieces(blocks, count)};
	if (!d->function || d->pieces == 0 || !allocate(d))
		return;
	list_pieces(blocks, count, d->list);
	if (driver()->cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING) !=
			CUDA_SUCCESS ||
		launch(d) != CUDA_SUCCESS)
		digest_end(d);
}

const struct digest *digest_get(struct digesting *d, size_t first, size_t count)
{
	while (d->stream && d->ended < first + count) {
		CUresult err = device_wait_stream(d->stream);

		d->ended = d->launched;
		if (err == CUDA_SUCCESS)
			err = launch(d);
		if (err != CUDA_SUCCESS)
			digest_end(d);
	}
	return d->stream ? d->digests + first : NULL;
}
