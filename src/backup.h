/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contents of blocks in host memory. The caller owns the blocks by a passing state, and is
 * inside device_enter() of their device for save and restore.
 */
#ifndef BACKUP_H
#define BACKUP_H

#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

struct block;

/* Gets host memory for the contents of all blocks that have none yet, or for none.
 * STAYPUT_OK or STAYPUT_ERR_HOST_MEMORY, with the sentence set. */
int backup_reserve(struct block *const *blocks, size_t count);

/* Copies contents to the host, or back; *copied counts bytes. Both wait for the copies.
 * On an error, backups of which restore was asked are good still. */
CUresult backup_save(struct block *const *blocks, size_t count, uint64_t *copied);
CUresult backup_restore(struct block *const *blocks, size_t count, uint64_t *copied);

/* Lets go of the host memory, if there is any. */
void backup_drop(struct block *block);

#endif
