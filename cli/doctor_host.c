/* SPDX-License-Identifier: Apache-2.0 */
/* What backups need of the host. */
#include "doctor.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "format.h"
#include "hostmem.h"

enum { TEXT = 40 };

/* The first line of a file without its end, or "". */
static const char *read_line(const char *path, char *buf, size_t size)
{
	FILE *file = fopen(path, "re");

	if (!file || !fgets(buf, (int)size, file))
		buf[0] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	if (file)
		fclose(file);
	return buf;
}

/* A line of /proc/meminfo, in bytes; 0 when there is none. */
static double meminfo(const char *key)
{
	FILE *file = fopen("/proc/meminfo", "re");
	double kib = 0;
	char line[256];

	while (file && fgets(line, sizeof line, file))
		if (strncmp(line, key, strlen(key)) == 0)
			sscanf(line + strlen(key), " %lf", &kib);
	if (file)
		fclose(file);
	return kib * 1024;
}

static void check_memory(struct doctor *doctor, double device_bytes)
{
	double machine = meminfo("MemAvailable:"), room = machine;
	size_t available = hostmem_available("");
	char text[3][TEXT];

	if (available != SIZE_MAX && (double)available < room)
		room = (double)available;
	bytes_text(machine, text[0], TEXT);
	bytes_text(device_bytes, text[1], TEXT);
	if (machine < device_bytes)
		doctor_note(doctor, WARNING, "host memory",
			"policy host needs as much as it pauses: use discard where "
			"contents "
			"can be made again",
			"%s available, a full device has %s", text[0], text[1]);
	else
		doctor_note(doctor, GOOD, "host memory", NULL, "%s available of %s",
			text[0], bytes_text(meminfo("MemTotal:"), text[2], TEXT));
	bytes_text(room, text[2], TEXT);
	if (room >= machine * 0.99)
		doctor_note(doctor, GOOD, "cgroup", NULL, "leaves what the machine has");
	else if (room < device_bytes)
		doctor_note(doctor, WARNING, "cgroup",
			"raise memory.max of the container or unit: pinned backups count",
			"leaves %s of the %s available, a full device has %s", text[2],
			text[0], text[1]);
	else
		doctor_note(doctor, GOOD, "cgroup", NULL, "leaves %s of the %s available",
			text[2], text[0]);
}

static bool has_rdma_hardware(void)
{
	DIR *dir = opendir("/sys/class/infiniband");
	struct dirent *entry;
	bool found = false;

	while (dir && (entry = readdir(dir)))
		found |= entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return found;
}

static void check_memlock(struct doctor *doctor)
{
	struct rlimit limit;
	char text[TEXT];

	if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
		return;
	if (limit.rlim_cur == RLIM_INFINITY)
		doctor_note(doctor, GOOD, "MEMLOCK limit", NULL, "unlimited");
	else if (has_rdma_hardware())
		doctor_note(doctor, WARNING, "MEMLOCK limit",
			"ulimit -l unlimited: registrations for RDMA count, what the "
			"driver "
			"pins for backups does not",
			"%s", bytes_text((double)limit.rlim_cur, text, TEXT));
	else
		doctor_note(doctor, GOOD, "MEMLOCK limit", NULL,
			"%s, which does not count for what the driver pins",
			bytes_text((double)limit.rlim_cur, text, TEXT));
}

static void check_huge_pages(struct doctor *doctor)
{
	char line[128];

	read_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line);
	if (strstr(line, "[always]") || strstr(line, "[madvise]"))
		doctor_note(doctor, GOOD, "huge pages", NULL, "%s", line);
	else
		doctor_note(doctor, WARNING, "huge pages",
			"echo madvise >/sys/kernel/mm/transparent_hugepage/enabled: the "
			"first "
			"pause gets its host memory several times faster",
			"%s", *line ? line : "this kernel has none");
}

static void check_nodes(struct doctor *doctor)
{
	char online[128];

	read_line("/sys/devices/system/node/online", online, sizeof online);
	doctor_note(
		doctor, GOOD, "NUMA nodes", NULL, "%s", *online ? online : "none told");
}

void doctor_check_host(struct doctor *doctor, double device_bytes)
{
	check_memory(doctor, device_bytes);
	check_memlock(doctor);
	check_huge_pages(doctor);
	check_nodes(doctor);
}
