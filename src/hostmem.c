/* SPDX-License-Identifier: Apache-2.0 */
#include "hostmem.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 1024 };

static FILE *open_file(const char *root, const char *folder, const char *name)
{
	char path[PATH_SIZE];
	int n = snprintf(path, sizeof path, "%s%s%s", root, folder, name);

	return n > 0 && n < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* The number after `key` at the beginning of a line, or the first number with key "". */
static bool read_number(FILE *file, const char *key, size_t *value)
{
	size_t key_len = strlen(key);
	char line[256];
	bool found = false;

	while (file && !found && fgets(line, sizeof line, file))
		found = strncmp(line, key, key_len) == 0 &&
			sscanf(line + key_len, "%zu", value) == 1;
	if (file)
		fclose(file);
	return found;
}

static size_t machine_available(const char *root)
{
	size_t kib;

	return read_number(open_file(root, "/proc/meminfo", ""), "MemAvailable:", &kib)
		       ? kib * 1024
		       : SIZE_MAX;
}

/* The names of one cgroup version's files. */
struct cgroup_names {
	const char *mount, *limit, *usage, *reclaimable;
};

static const struct cgroup_names version_1 = {"/sys/fs/cgroup/memory",
	"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
static const struct cgroup_names version_2 = {
	"/sys/fs/cgroup", "/memory.max", "/memory.current", "inactive_file "};

/* What one group leaves; the page cache that it counts as used can be had back. */
static size_t group_available(
	const char *root, const char *folder, const struct cgroup_names *names)
{
	size_t limit, usage, cache = 0;

	if (!read_number(open_file(root, folder, names->limit), "", &limit) ||
		!read_number(open_file(root, folder, names->usage), "", &usage))
		return SIZE_MAX;
	read_number(open_file(root, folder, "/memory.stat"), names->reclaimable, &cache);
	usage -= cache < usage ? cache : usage;
	return limit > usage ? limit - usage : 0;
}

/* The least that `path` below the mount and all groups above it leave. In a container the
 * path may be the host's, and only the mount itself exists. */
static size_t path_available(
	const char *root, const char *path, const struct cgroup_names *names)
{
	char folder[PATH_SIZE];
	size_t least = SIZE_MAX, mount_len = strlen(names->mount);
	int n = snprintf(folder, sizeof folder, "%s%s", names->mount, path);

	if (n < 0 || n >= (int)sizeof folder)
		return SIZE_MAX;
	for (;;) {
		size_t room = group_available(root, folder, names);
		char *slash = strrchr(folder + mount_len, '/');

		if (room < least)
			least = room;
		if (!slash)
			return least;
		*slash = '\0';
	}
}

size_t hostmem_available(const char *root)
{
	FILE *file = open_file(root, "/proc/self/cgroup", "");
	size_t least = machine_available(root);
	char line[PATH_SIZE];

	while (file && fgets(line, sizeof line, file)) {
		const struct cgroup_names *names = NULL;
		char *controllers = strchr(line, ':');
		char *path = controllers ? strchr(controllers + 1, ':') : NULL;
		size_t room;

		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		if (strcmp(controllers + 1, "") == 0)
			names = &version_2;
		else if (strstr(controllers + 1, "memory"))
			names = &version_1;
		room = names ? path_available(root, path, names) : SIZE_MAX;
		if (room < least)
			least = room;
	}
	if (file)
		fclose(file);
	return least;
}
