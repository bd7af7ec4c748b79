/* SPDX-License-Identifier: Apache-2.0 */
/* A library whose destructor frees what it was given, after the driver's own end. */
#include "libraries.h"

#include <stddef.h>
#include <unistd.h>

enum { ROOM = 8 };

static void *kept[ROOM];
static size_t count;

void late_keep(void *ptr)
{
	if (count == ROOM)
		_exit(1);
	kept[count++] = ptr;
}

__attribute__((destructor)) static void free_all(void)
{
	void *ptr;

	if (count == 0)
		return;
	if (cudaMalloc(&ptr, 4096) != cudaErrorCudartUnloading)
		_exit(LATE_TOO_EARLY);
	for (size_t i = 0; i < count; i++)
		if (cudaFree(kept[i]) != cudaSuccess)
			_exit(LATE_FAILED);
	_exit(LATE_FREED);
}
