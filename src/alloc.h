/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every way to allocate comes here. Any thread; errno is kept. On an error nothing is
 * left behind and *ptr is not written. A record enters the table after its memory is
 * mapped.
 */
#ifndef ALLOC_H
#define ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

struct block;
struct choice;
struct place;

/*
 * Memory in a region, on the device of `place`, which is current. `size` is not 0.
 *
 *   CUDA_ERROR_OUT_OF_MEMORY   as from cuMemAlloc; freeing and trying again is useful
 *   CUDA_ERROR_NOT_SUPPORTED   this has to be native memory: no VMM on the device
 *   others                     the driver's
 */
CUresult alloc_allocate(CUdeviceptr *ptr, size_t size, const struct choice *choice,
	const struct place *place);

/* Counts native memory that a hook has just got: under policy keep, or because it could not
 * be ours. Without memory for the record it is not counted. */
void alloc_count_native(CUdeviceptr ptr, size_t size, const struct choice *choice);

/* The same for stream-ordered memory, which is on the device that `ptr` belongs to. */
void alloc_count_ordered(CUdeviceptr ptr, size_t size, const struct choice *choice);

/* From here, what would leave less than that free on its device finds no memory. Any
 * thread; 0, as at the start: whatever there is may be taken. */
void alloc_set_margin(uint64_t bytes);

/* The end of a block that nobody else knows (any more): its memory, if there is any, its
 * addresses, its record. */
CUresult alloc_destroy_block(struct block *block);

#endif
