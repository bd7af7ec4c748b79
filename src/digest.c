/* SPDX-License-Identifier: Apache-2.0 */
#include "digest.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- The kernel -------------------------------------------------------------------------- */

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

/* ---- Digesting ----------------------------------------------------------------------------- */

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

static CUresult run_kernel(
	CUfunction function, CUdeviceptr *list, struct digest *digests, size_t pieces)
{
	CUstream stream;
	CUresult err = driver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

	if (err != CUDA_SUCCESS)
		return err;
	for (size_t at = 0; at < pieces && err == CUDA_SUCCESS; at += LAUNCH_PIECES) {
		size_t n = pieces - at < LAUNCH_PIECES ? pieces - at : LAUNCH_PIECES;

		err = driver()->cuLaunchKernel(function, (unsigned)n, 1, 1, DIGEST_THREADS,
			1, 1, 0, stream, (void *[]){&list, &digests}, NULL);
		if (err == CUDA_SUCCESS)
			err = device_wait_stream(stream);
		list += n;
		digests += n;
	}
	driver()->cuStreamDestroy_v2(stream);
	return err;
}

/* The kernel reads and writes host memory: a few bytes for each 2 MiB of the device's. */
struct digest *digest_blocks(struct device *dev, struct block *const *blocks, size_t count)
{
	size_t pieces = count_pieces(blocks, count);
	size_t size = pieces * (sizeof(struct digest) + sizeof(CUdeviceptr));
	CUfunction function = digest_load(dev);
	struct digest *answer = NULL, *digests;
	CUdeviceptr *list;
	void *shared;

	if (!function || pieces == 0 ||
		driver()->cuMemHostAlloc(&shared, size,
			CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) !=
			CUDA_SUCCESS)
		return NULL;
	digests = shared;
	list = (CUdeviceptr *)(digests + pieces);
	list_pieces(blocks, count, list);
	if (run_kernel(function, list, digests, pieces) == CUDA_SUCCESS)
		answer = malloc(pieces * sizeof *answer);
	if (answer)
		memcpy(answer, digests, pieces * sizeof *answer);
	driver()->cuMemFreeHost(shared);
	return answer;
}
