/* SPDX-License-Identifier: Apache-2.0 */
#include "caller.h"

#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "dl.h"

enum { PATH_SIZE = 1024 };

/* As in the C library's dlfcn.h, which older ones do not have it in; larger than it. */
struct found_object {
	unsigned long long flags;
	void *map_start, *map_end;
	struct link_map *map;
	void *others[32];
};

typedef int find_object(void *address, struct found_object *found);

static int find_nothing(void *address, struct found_object *found)
{
	(void)address;
	(void)found;
	return -1;
}

/* The C library's _dl_find_object(), which takes no lock, or find_nothing(). */
static find_object *object_finder(void)
{
	static _Atomic(find_object *) known;
	find_object *find = atomic_load_explicit(&known, memory_order_relaxed);

	if (find)
		return find;
	find = (find_object *)dl_symbol(RTLD_DEFAULT, "_dl_find_object");
	if (!find)
		find = find_nothing;
	atomic_store_explicit(&known, find, memory_order_relaxed);
	return find;
}

struct search {
	uintptr_t address;
	const char *path;
};

static int look_in(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;

	(void)size;
	for (size_t i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];

		if (part->p_type == PT_LOAD &&
			search->address - (info->dlpi_addr + part->p_vaddr) <
				part->p_memsz) {
			search->path = info->dlpi_name;
			return 1;
		}
	}
	return 0;
}

const char *caller_path(const void *address)
{
	struct search search = {.address = (uintptr_t)address};
	find_object *find = object_finder();
	struct found_object found;

	if (find == find_nothing)
		dl_iterate_phdr(look_in, &search);
	else if (find((void *)(uintptr_t)address, &found) == 0)
		search.path = found.map->l_name;
	return search.path;
}

/* The program's own, whose path the loader does not keep. */
static void program_path(char buf[PATH_SIZE])
{
	int saved = errno;
	ssize_t n = readlink("/proc/self/exe", buf, PATH_SIZE - 1);

	buf[n > 0 ? n : 0] = '\0';
	errno = saved;
}

/* From the last folder on. */
static const char *end_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	while (slash && slash > path && slash[-1] != '/')
		slash--;
	return slash ? slash : path;
}

static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* What the environment says of a file of that name. */
static struct caller judge(const char *path)
{
	const struct config *c = config();
	struct caller caller = {.excluded = false};
	char program[PATH_SIZE];
	const char *name;

	/* A program is where somebody works; only of libraries does the folder tell. */
	if (!*path)
		program_path(program);
	name = *path ? end_of(path) : file_name(program);
	for (size_t i = 0; i < c->exclude_count && !caller.excluded; i++)
		caller.excluded = strstr(name, c->exclude[i]) != NULL;
	for (size_t i = 0; i < c->match_count; i++)
		if (c->matches[i].module[0] && strstr(name, c->matches[i].module))
			caller.named |= UINT64_C(1) << i;
	return caller;
}

/* Files that have been judged. A slot is filled once and never emptied. It is found by
 * where the loader keeps the name, and counts when the name there is still the same. When
 * the slots around a hash are full, the file is judged at each call. */
enum { SLOTS = 256, PROBES = 8 };

struct known_file {
	const char *at;
	struct caller caller;
	char path[];
};

static _Atomic(struct known_file *) files[SLOTS];

static size_t slot_of(const char *at)
{
	return ((uintptr_t)at * UINT64_C(0x9e3779b97f4a7c15)) >> 56;
}

static void remember(const char *path, struct caller caller)
{
	size_t len = strlen(path) + 1, slot = slot_of(path);
	struct known_file *file = malloc(sizeof *file + len);

	if (!file)
		return;
	file->at = path;
	file->caller = caller;
	memcpy(file->path, path, len);
	for (size_t i = 0; i < PROBES; i++) {
		struct known_file *empty = NULL;

		if (atomic_compare_exchange_strong(
			    &files[(slot + i) % SLOTS], &empty, file))
			return;
	}
	free(file);
}

static const struct known_file *recall(const char *path)
{
	size_t slot = slot_of(path);

	for (size_t i = 0; i < PROBES; i++) {
		const struct known_file *file = atomic_load_explicit(
			&files[(slot + i) % SLOTS], memory_order_acquire);

		if (!file)
			return NULL;
		if (file->at == path && strcmp(file->path, path) == 0)
			return file;
	}
	return NULL;
}

struct caller caller_find(const void *address)
{
	const char *path = caller_path(address);
	const struct known_file *file = path ? recall(path) : NULL;
	struct caller caller = {.excluded = false};

	if (file)
		return file->caller;
	if (path) {
		caller = judge(path);
		remember(path, caller);
	}
	return caller;
}

void caller_name(const void *address, char *buf, size_t size)
{
	const char *path = caller_path(address);
	char program[PATH_SIZE] = "";

	if (path && !*path)
		program_path(program);
	path = end_of(path && *path ? path : program);
	snprintf(buf, size, "%s", *path == '/' ? path + 1 : path);
}
