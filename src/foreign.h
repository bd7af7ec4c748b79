/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program or its framework makes by cuMemCreate() itself, and that is not
 * adopted (adopt.h): native, not ours to pause, and counted, so that it can be said where a
 * region's memory went. It counts until its handle is released: a program that releases it
 * once it has mapped it, and keeps the mapping, holds more than is counted. Under the lock.
 * Without memory for the record it is not counted.
 */
#ifndef FOREIGN_H
#define FOREIGN_H

#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

struct region;

enum foreign_maker { FOREIGN_PYTORCH, FOREIGN_XLA, FOREIGN_OTHER, FOREIGN_MAKERS };

/* Who makes memory, by the name that caller_name() gives its code. */
enum foreign_maker foreign_maker(const char *name);

/* The handle has been created; `region` was in force, or is NULL. */
void foreign_created(CUmemGenericAllocationHandle handle, size_t size,
	enum foreign_maker maker, struct region *region);

/* It is being released: once is enough, whoever else may hold it. */
void foreign_released(CUmemGenericAllocationHandle handle);

/* Bytes in handles that have not been released. */
uint64_t foreign_bytes_locked(enum foreign_maker maker);

#endif
