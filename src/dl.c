/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Found by its versions, which an override has none of. A search that fails makes an
 * error text, for which a malloc() that is not the C library's may well call dlsym()
 * and so come here again. So the version that is there is asked for first, and whoever
 * comes here inside of a search goes on with the next one.
 */
#include "dl.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* A sanitizer's runtime looks its own functions up here before it can watch ours, or bear
 * calls of what it has replaced, such as atoi(). */
#define UNWATCHED __attribute__((no_sanitize("address"), no_sanitize("thread")))

void *dl_found;

/* Since 2.34, dlsym() has a new version everywhere; before, that of the architecture. */
static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};

UNWATCHED static size_t first_version(void)
{
	bool is_old = strverscmp(gnu_get_libc_version(), "2.34") < 0;

#if defined(__x86_64__)
	return is_old ? 2 : 0;
#else
	return is_old ? 1 : 0;
#endif
}

UNWATCHED void *dl_find(void)
{
	static __thread size_t tried;
	void *found = __atomic_load_n(&dl_found, __ATOMIC_ACQUIRE);
	const size_t count = sizeof versions / sizeof *versions, begun = tried;

	while (!found && tried < count)
		found = dlvsym(RTLD_NEXT, "dlsym",
			versions[(first_version() + tried++) % count]);
	tried = begun;
	if (found)
		__atomic_store_n(&dl_found, found, __ATOMIC_RELEASE);
	return found;
}

UNWATCHED void *dl_symbol(void *handle, const char *name)
{
	void *(*find)(void *, const char *) = (void *(*)(void *, const char *))dl_find();

	return find ? find(handle, name) : NULL;
}
