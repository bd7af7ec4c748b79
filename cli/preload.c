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

bool preload_is_ours(const char *path, size_t len)
{
	static const char *const names[] = {"libstayput.so", "libstayput-deep.so"};
	const char *slash = memrchr(path, '/', len);
	const char *base = slash ? slash + 1 : path;
	size_t base_len = path + len - base;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strlen(names[i]) == base_len && memcmp(base, names[i], base_len) == 0)
			return true;
	return false;
}

static void add(char *list, const char *word, size_t len)
{
	size_t at = strlen(list);

	if (at)
		list[at++] = ':';
	memcpy(list + at, word, len);
	list[at + len] = '\0';
}

char *preload_list(const char *old, const char *path)
{
	char *list = malloc(strlen(old ? old : "") + strlen(path) + 2);
	bool placed = false;

	if (!list)
		return NULL;
	*list = '\0';
	for (const char *p = old ? old : ""; *p;) {
		size_t len = strcspn(p, separators);

		if (len && !preload_is_ours(p, len))
			add(list, p, len);
		else if (len && !placed) {
			add(list, path, strlen(path));
			placed = true;
		}
		p += len + (p[len] != '\0');
	}
	if (!placed)
		add(list, path, strlen(path));
	return list;
}
