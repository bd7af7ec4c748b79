/* SPDX-License-Identifier: Apache-2.0 */
#include "hostpool.h"

#include <stdio.h>
#include <sys/mman.h>

#include "error.h"
#include "stayput.h"

/* MemAvailable in bytes; SIZE_MAX when the kernel does not say. */
static size_t available(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	size_t kib = (size_t)-1 / 1024;
	char line[128];

	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib * 1024;
}

bool hostpool_has_room(size_t size)
{
	size_t room = size ? available() : 0;

	if (size <= room)
		return true;
	error_set(STAYPUT_ERR_HOST_MEMORY,
		"backups need %zu bytes of host memory and %zu are available", size, room);
	return false;
}

void *hostpool_take(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

void hostpool_give(void *memory, size_t size)
{
	munmap(memory, size);
}

/* Nothing is kept beyond the backups that need it. */
void hostpool_trim(size_t keep)
{
	(void)keep;
}
