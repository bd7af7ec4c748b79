/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why not dlsym(RTLD_NEXT) alone: it answers NULL for a runtime that was opened
 * RTLD_LOCAL, and the wrong runtime when a process has two. What the caller itself is
 * linked against is right in both cases, so that is asked first.
 */
#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "caller.h"
#include "dl.h"
#include "lock.h"
#include "log.h"

static _Atomic(const struct driver *) loaded;

struct driver_row {
	const char *name;
	size_t offset;
};

static const struct driver_row driver_rows[] = {
#define DRIVER_ROW(name) {#name, offsetof(struct driver, name)},
	DRIVER_FUNCTIONS(DRIVER_ROW)
#undef DRIVER_ROW
};

static void *driver_handle(void)
{
	return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
}

/* Fills every field, or says which one is missing. */
static bool fill(struct driver *d, void *handle)
{
	for (size_t i = 0; i < sizeof driver_rows / sizeof *driver_rows; i++) {
		void *function = dl_symbol(handle, driver_rows[i].name);

		if (!function) {
			log_line(LOG_ERROR,
				"libcuda.so.1 has no %s: the driver is too old (CUDA "
				"11.8 "
				"is needed); memory stays native",
				driver_rows[i].name);
			return false;
		}
		memcpy((char *)d + driver_rows[i].offset, &function, sizeof function);
	}
	return true;
}

bool driver_load(void)
{
	const struct driver *seen = NULL;
	int saved = errno;
	struct driver *fresh;
	void *handle;

	if (driver_loaded())
		return true;
	handle = driver_handle();
	fresh = handle ? malloc(sizeof *fresh) : NULL;
	if (fresh && fill(fresh, handle)) {
		if (!atomic_compare_exchange_strong(&loaded, &seen, fresh))
			free(fresh);
	} else {
		free(fresh);
	}
	errno = saved;
	return driver_loaded();
}

bool driver_loaded(void)
{
	return atomic_load_explicit(&loaded, memory_order_acquire) != NULL;
}

bool driver_is_there(void)
{
	void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);

	if (handle)
		dlclose(handle);
	return handle != NULL;
}

const struct driver *driver(void)
{
	lock_check_free();
	return atomic_load_explicit(&loaded, memory_order_acquire);
}

/* Answers are kept, for each symbol and file that calls it, in slots that are filled once
 * and never emptied; the library that an answer lies in is pinned, so that a kept answer
 * cannot dangle. As in caller.c, a file is found by where the loader keeps its name, which
 * has to be the same still: another library may be at its place. When the slots around a
 * hash are full the search is simply made each time. */
enum { SLOTS = 256, PROBES = 4 };

struct answer {
	const char *symbol;
	const char *at;
	void *function;
	char path[];
};

static _Atomic(struct answer *) answers[SLOTS];

/* What is not in a file, compiled as it runs, is linked to nothing. */
static const char in_no_file[] = "";

static size_t slot_of(const char *symbol, const char *path)
{
	uint64_t mix = (uintptr_t)symbol * 31 + (uintptr_t)path;

	return (mix * UINT64_C(0x9e3779b97f4a7c15)) >> 56;
}

static void remember(const char *symbol, const char *path, void *function)
{
	size_t len = strlen(path) + 1, slot = slot_of(symbol, path);
	struct answer *answer = malloc(sizeof *answer + len);

	if (!answer)
		return;
	*answer = (struct answer){symbol, path, function};
	memcpy(answer->path, path, len);
	for (size_t i = 0; i < PROBES; i++) {
		struct answer *empty = NULL;

		if (atomic_compare_exchange_strong(
			    &answers[(slot + i) % SLOTS], &empty, answer))
			return;
	}
	free(answer);
}

static void *recall(const char *symbol, const char *path)
{
	size_t slot = slot_of(symbol, path);

	for (size_t i = 0; i < PROBES; i++) {
		const struct answer *a = atomic_load_explicit(
			&answers[(slot + i) % SLOTS], memory_order_acquire);

		if (!a)
			return NULL;
		if (a->symbol == symbol && a->at == path && strcmp(a->path, path) == 0)
			return a->function;
	}
	return NULL;
}

/* `function` lies in neither this object nor the one at `other`; else NULL. */
static void *foreign(void *function, const void *other)
{
	Dl_info theirs, ours, others = {.dli_fbase = NULL};

	if (!function || !dladdr(function, &theirs) ||
		!dladdr((void *)(uintptr_t)real_find, &ours))
		return NULL;
	if (other)
		dladdr(other, &others);
	return theirs.dli_fbase != ours.dli_fbase && theirs.dli_fbase != others.dli_fbase
		       ? function
		       : NULL;
}

/* The function's library is called libcudart... or libcuda...: no interposer. */
static bool in_cuda(void *function)
{
	const char *name;
	Dl_info info;

	if (!function || !dladdr(function, &info))
		return false;
	name = strrchr(info.dli_fname, '/');
	return strncmp(name ? name + 1 : info.dli_fname, "libcuda", 7) == 0;
}

/* Looks in an object that is loaded already, and in what it was linked against. The
 * link map's name is opened rather than the map itself used as a handle: the map of an
 * object that was only ever loaded as a dependency makes dlsym() crash. */
static void *in_object(const char *path, const char *symbol, const void *caller)
{
	void *handle = dlopen(path, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
	void *function;

	if (!handle)
		return NULL;
	function = foreign(dl_symbol(handle, symbol), caller);
	dlclose(handle);
	return function;
}

/* What the caller defines itself is not what it calls: it is an interposer then. */
static void *in_caller(void *caller, const char *symbol)
{
	struct link_map *map = NULL;
	Dl_info info;

	if (!dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP))
		return NULL;
	if (!map || !map->l_name || !map->l_name[0])
		return NULL;
	return in_object(map->l_name, symbol, caller);
}

struct runtime_path {
	char path[512];
};

/* Only copies: opening a library from inside the iteration takes the loader's two locks
 * in the wrong order. */
static int note_runtime(struct dl_phdr_info *info, size_t size, void *data)
{
	struct runtime_path *found = data;
	const char *name = strrchr(info->dlpi_name, '/');

	(void)size;
	name = name ? name + 1 : info->dlpi_name;
	if (strncmp(name, "libcudart", 9) != 0 ||
		strlen(info->dlpi_name) >= sizeof found->path)
		return 0;
	strcpy(found->path, info->dlpi_name);
	return 1;
}

static void *in_any_runtime(const char *symbol)
{
	struct runtime_path found = {.path = ""};

	dl_iterate_phdr(note_runtime, &found);
	return found.path[0] ? in_object(found.path, symbol, NULL) : NULL;
}

void *real_in_driver(const char *symbol)
{
	void *handle = driver_handle();

	return handle ? foreign(dl_symbol(handle, symbol), NULL) : NULL;
}

static void pin(void *function)
{
	Dl_info info;

	if (dladdr(function, &info) && info.dli_fname[0])
		dlopen(info.dli_fname,
			RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
}

/* Another interposer behind us comes first, as it would without us; then what the caller
 * is linked against; then what the process has. */
static void *search(const char *symbol, void *caller)
{
	bool of_runtime = strncmp(symbol, "cuda", 4) == 0;
	void *next = foreign(dl_symbol(RTLD_NEXT, symbol), NULL);
	void *function = next;

	if (next && !in_cuda(next))
		return next;
	function = in_caller(caller, symbol);
	if (function || next)
		return function ? function : next;
	return of_runtime ? in_any_runtime(symbol) : real_in_driver(symbol);
}

void *real_find(const char *symbol, void *caller)
{
	int saved = errno;
	const char *path = caller_path(caller);
	void *function;

	if (!path)
		path = in_no_file;
	function = recall(symbol, path);
	if (function)
		return function;
	function = search(symbol, caller);
	if (function) {
		pin(function);
		remember(symbol, path, function);
	}
	errno = saved;
	return function;
}
