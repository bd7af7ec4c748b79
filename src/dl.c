/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Found by its versions, which an override has none of. A search that fails makes an
 * error text, for which a malloc() that is not the C library's may well call dlsym()
 * and so come here again: it then goes on with the next version instead of from the
 * first.
 */
#include "dl.h"

#include <dlfcn.h>
#include <stddef.h>

/* A sanitizer's runtime looks its own functions up here before it can watch ours. */
#define UNWATCHED __attribute__((no_sanitize("address"), no_sanitize("thread")))

__attribute__((visibility("hidden"))) void *dl_found;

UNWATCHED void *dl_find(void)
{
	static const char *const versions[] = {
		"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	static __thread size_t next;
	void *found = __atomic_load_n(&dl_found, __ATOMIC_ACQUIRE);
	size_t begun = next;

	while (!found && next < sizeof versions / sizeof *versions)
		found = dlvsym(RTLD_NEXT, "dlsym", versions[next++]);
	next = begun;
	if (found)
		__atomic_store_n(&dl_found, found, __ATOMIC_RELEASE);
	return found;
}

UNWATCHED void *dl_symbol(void *handle, const char *name)
{
	void *(*find)(void *, const char *) = (void *(*)(void *, const char *))dl_find();

	return find ? find(handle, name) : NULL;
}
