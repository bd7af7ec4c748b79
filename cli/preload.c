/* SPDX-License-Identifier: Apache-2.0 */
#include "preload.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* What the loader takes as the end of a name in LD_PRELOAD. */
static const char separators[] = " :";

bool preload_find(bool deep, char *path, size_t size)
{
	const char *name = deep ? "libstayput-deep.so" : "libstayput.so";
	char folder[PATH_MAX], *slash, *real;
	ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);

	folder[n > 0 ? n : 0] = '\0';
	slash = strrchr(folder, '/');
	if (!slash) {
		say(FAILED, "/proc/self/exe cannot be read, so %s cannot be found", name);
		return false;
	}
	*slash = '\0';
	snprintf(path, size, "%s/%s", folder, name);
	if (access(path, R_OK) != 0)
		snprintf(path, size, "%s/../lib/%s", folder, name);
	real = realpath(path, NULL);
	if (!real) {
		say(FAILED, "%s is neither in %s nor in %s/../lib", name, folder, folder);
		return false;
	}
	snprintf(path, size, "%s", real);
	free(real);
	if (path[strcspn(path, separators)]) {
		say(FAILED,
			"LD_PRELOAD cannot hold \"%s\": it has no way to write a space "
			"or a "
			"colon",
			path);
		return false;
	}
	return true;
}

enum { PLAIN, DEEP, TMS, LIBRARIES };

/* Which library of ours a path is, by its file's name; LIBRARIES for none. */
static int library_of(const char *path, size_t len)
{
	static const char *const names[] = {[PLAIN] = "libstayput.so",
		[DEEP] = "libstayput-deep.so",
		[TMS] = "libstayput-tms.so"};
	const char *slash = memrchr(path, '/', len);
	const char *base = slash ? slash + 1 : path;
	size_t base_len = path + len - base;
	int i = 0;

	while (i < LIBRARIES &&
		(strlen(names[i]) != base_len || memcmp(base, names[i], base_len) != 0))
		i++;
	return i;
}

static void add(char *list, const char *word, size_t len)
{
	size_t at = strlen(list);

	if (at)
		list[at++] = ':';
	memcpy(list + at, word, len);
	list[at + len] = '\0';
}

/* The length of the list's next name, which *p is moved to; 0 at its end. */
static size_t next_name(const char **p)
{
	*p += strspn(*p, separators);
	return strcspn(*p, separators);
}

bool preload_has_tms(const char *list)
{
	size_t len;

	for (const char *p = list ? list : ""; (len = next_name(&p)); p += len)
		if (library_of(p, len) == TMS)
			return true;
	return false;
}

char *preload_list(const char *old, const char *path)
{
	char *list = malloc(strlen(old ? old : "") + strlen(path) + 2);
	bool tms = preload_has_tms(old), placed = false;
	size_t len;

	if (!list)
		return NULL;
	*list = '\0';
	for (const char *p = old ? old : ""; (len = next_name(&p)); p += len) {
		int library = library_of(p, len);

		if (library == LIBRARIES)
			add(list, p, len);
		else if (library == TMS && !placed)
			add(list, p, len);
		else if (!tms && !placed)
			add(list, path, strlen(path));
		placed |= library == TMS || (library != LIBRARIES && !tms);
	}
	if (!placed)
		add(list, path, strlen(path));
	return list;
}
