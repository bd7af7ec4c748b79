/* SPDX-License-Identifier: Apache-2.0 */
/* A library whose constructor allocates, before main() or inside dlopen(). */
#include "libraries.h"

#include <dlfcn.h>
#include <stddef.h>

static void *memory;

__attribute__((constructor)) static void allocate(void)
{
	void (*hold)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "early_hold");

	if (hold)
		hold();
	if (cudaMalloc(&memory, 4096) != cudaSuccess)
		memory = NULL;
}

void *early_memory(void)
{
	return memory;
}
