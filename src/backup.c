/* SPDX-License-Identifier: Apache-2.0 */
#include "backup.h"

#include "block.h"
#include "error.h"
#include "hostpool.h"
#include "real.h"
#include "stayput.h"

int backup_reserve(struct block *const *blocks, size_t count)
{
	size_t total = 0, i;

	for (i = 0; i < count; i++)
		total += blocks[i]->backup ? 0 : blocks[i]->size;
	if (!hostpool_has_room(total))
		return STAYPUT_ERR_HOST_MEMORY;
	for (i = 0; i < count; i++) {
		struct block *b = blocks[i];

		if (b->backup)
			continue;
		b->backup = hostpool_take(b->size);
		if (!b->backup)
			goto give_back;
	}
	return STAYPUT_OK;

give_back:
	while (i-- > 0)
		backup_drop(blocks[i]);
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"the system refused host memory: %zu bytes are needed for backups", total);
}

/* One of our own, which does not wait for the program's default stream. */
static CUresult with_stream(CUresult (*copy)(struct block *, CUstream),
	struct block *const *blocks, size_t count, uint64_t *copied)
{
	CUstream stream;
	CUresult err = driver()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), end;

	if (err != CUDA_SUCCESS)
		return err;
	for (size_t i = 0; i < count && err == CUDA_SUCCESS; i++) {
		err = copy(blocks[i], stream);
		*copied += err == CUDA_SUCCESS ? blocks[i]->size : 0;
	}
	end = driver()->cuStreamSynchronize(stream);
	driver()->cuStreamDestroy_v2(stream);
	return err == CUDA_SUCCESS ? end : err;
}

static CUresult save_one(struct block *b, CUstream stream)
{
	return driver()->cuMemcpyDtoHAsync_v2(b->backup, b->base, b->size, stream);
}

static CUresult restore_one(struct block *b, CUstream stream)
{
	return driver()->cuMemcpyHtoDAsync_v2(b->base, b->backup, b->size, stream);
}

CUresult backup_save(struct block *const *blocks, size_t count, uint64_t *copied)
{
	return with_stream(save_one, blocks, count, copied);
}

CUresult backup_restore(struct block *const *blocks, size_t count, uint64_t *copied)
{
	return with_stream(restore_one, blocks, count, copied);
}

void backup_drop(struct block *block)
{
	if (block->backup)
		hostpool_give(block->backup, block->size);
	block->backup = NULL;
}
