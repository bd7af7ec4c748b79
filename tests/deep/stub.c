/* SPDX-License-Identifier: Apache-2.0 */
/* Looks functions up from within a library that is named as the driver is. Under WSL,
 * libcuda.so.1 is a stub that takes each of its functions so from the real one. */
#include <dlfcn.h>

void *stub_look_up(void *handle, const char *name);

void *stub_look_up(void *handle, const char *name)
{
	return dlsym(handle, name);
}
