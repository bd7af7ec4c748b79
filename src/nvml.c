/* SPDX-License-Identifier: Apache-2.0 */
/* NVML's header is not part of every CUDA installation, so these functions are
 * declared here, as its documentation gives them. */
#include "nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dl.h"

enum { PROCESSES_MAX = 64, TOLD_MAX = 4 };

struct process {
	unsigned pid;
	unsigned long long bytes;
	unsigned gpu_instance, compute_instance;
};

struct nvml {
	int (*init)(void);
	int (*shutdown)(void);
	int (*device_count)(unsigned *count);
	int (*device_by_index)(unsigned index, void **device);
	int (*device_by_uuid)(const char *uuid, void **device);
	int (*processes)(void *device, unsigned *count, struct process *list);
};

static bool open_nvml(struct nvml *n)
{
	void *handle = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);

	if (!handle)
		return false;
	*(void **)&n->init = dl_symbol(handle, "nvmlInit_v2");
	*(void **)&n->shutdown = dl_symbol(handle, "nvmlShutdown");
	*(void **)&n->device_count = dl_symbol(handle, "nvmlDeviceGetCount_v2");
	*(void **)&n->device_by_index =
		dl_symbol(handle, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&n->device_by_uuid = dl_symbol(handle, "nvmlDeviceGetHandleByUUID");
	*(void **)&n->processes =
		dl_symbol(handle, "nvmlDeviceGetComputeRunningProcesses_v3");
	return n->init && n->shutdown && n->device_count && n->device_by_index &&
	       n->device_by_uuid && n->processes;
}

static int most_first(const void *a, const void *b)
{
	const struct process *x = a, *y = b;

	return x->bytes > y->bytes ? -1 : x->bytes < y->bytes;
}

static void read_name(unsigned pid, char *name, size_t size)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof path, "/proc/%u/comm", pid);
	file = fopen(path, "re");
	if (!file || !fgets(name, (int)size, file))
		snprintf(name, size, "?");
	name[strcspn(name, "\n")] = '\0';
	if (file)
		fclose(file);
}

static void write_list(struct process *list, unsigned count, char *buf, size_t size)
{
	size_t len = 0;

	qsort(list, count, sizeof *list, most_first);
	for (unsigned i = 0; i < count && i < TOLD_MAX && len < size; i++) {
		char name[64];
		int n;

		read_name(list[i].pid, name, sizeof name);
		n = snprintf(buf + len, size - len, "%s pid %u (%s) holds %llu bytes",
			i ? "," : ";", list[i].pid, name, list[i].bytes);
		len += n > 0 ? n : 0;
	}
}

void nvml_holders(const char *uuid, char *buf, size_t size)
{
	struct process list[PROCESSES_MAX];
	unsigned count = PROCESSES_MAX;
	void *device = NULL;
	struct nvml n;

	buf[0] = '\0';
	if (!uuid[0] || !open_nvml(&n) || n.init() != 0)
		return;
	if (n.device_by_uuid(uuid, &device) == 0 &&
		n.processes(device, &count, list) == 0)
		write_list(list, count, buf, size);
	n.shutdown();
}

/* Of one device. NVML may list a process more than once. */
static uint64_t own_bytes(const struct nvml *n, unsigned index)
{
	struct process list[PROCESSES_MAX];
	unsigned count = PROCESSES_MAX;
	void *device = NULL;
	uint64_t bytes = 0;

	if (n->device_by_index(index, &device) != 0 ||
		n->processes(device, &count, list) != 0)
		return 0;
	/* All bits set: the driver does not know. */
	for (unsigned i = 0; i < count; i++)
		if (list[i].pid == (unsigned)getpid() && ~list[i].bytes != 0 &&
			list[i].bytes > bytes)
			bytes = list[i].bytes;
	return bytes;
}

uint64_t nvml_own_bytes(void)
{
	uint64_t most = 0;
	unsigned count = 0;
	struct nvml n;

	if (!open_nvml(&n) || n.init() != 0)
		return 0;
	if (n.device_count(&count) != 0)
		count = 0;
	for (unsigned i = 0; i < count; i++) {
		uint64_t bytes = own_bytes(&n, i);

		most = bytes > most ? bytes : most;
	}
	n.shutdown();
	return most;
}
