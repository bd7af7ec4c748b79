/* SPDX-License-Identifier: Apache-2.0 */
/* NVML's header is not part of every CUDA installation: its functions are declared here, as
 * its documentation gives them. */
#include "gpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

enum { GPUS_MAX = 64, PROCESSES_MAX = 128, UUID_SIZE = 96 };

struct memory {
	unsigned long long total, free, used;
};

struct process_info {
	unsigned pid;
	unsigned long long bytes;
	unsigned gpu_instance, compute_instance;
};

static struct {
	bool asked;
	void *handle;
	unsigned count;
	void *device[GPUS_MAX];
} nvml;

/* Calls below are made with whatever arguments a function has; all return 0 for success. */
static void *function(const char *name)
{
	return nvml.handle ? dlsym(nvml.handle, name) : NULL;
}

static bool load(void)
{
	int (*init)(void);
	int (*count)(unsigned *);
	int (*by_index)(unsigned, void **);

	nvml.handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	*(void **)&init = function("nvmlInit_v2");
	*(void **)&count = function("nvmlDeviceGetCount_v2");
	*(void **)&by_index = function("nvmlDeviceGetHandleByIndex_v2");
	if (!init || !count || !by_index || init() != 0 || count(&nvml.count) != 0) {
		nvml.handle = NULL;
		return false;
	}
	if (nvml.count > GPUS_MAX)
		nvml.count = GPUS_MAX;
	for (unsigned i = 0; i < nvml.count; i++)
		if (by_index(i, &nvml.device[i]) != 0)
			nvml.device[i] = NULL;
	return true;
}

bool gpu_open(void)
{
	if (!nvml.asked)
		load();
	nvml.asked = true;
	return nvml.handle != NULL;
}

unsigned gpu_count(void)
{
	return gpu_open() ? nvml.count : 0;
}

static void *device(unsigned gpu)
{
	return gpu < gpu_count() ? nvml.device[gpu] : NULL;
}

bool gpu_memory(unsigned gpu, double *used, double *total)
{
	int (*get)(void *, struct memory *);
	struct memory memory;

	*(void **)&get = function("nvmlDeviceGetMemoryInfo");
	if (!device(gpu) || !get || get(device(gpu), &memory) != 0)
		return false;
	*used = (double)memory.used;
	*total = (double)memory.total;
	return true;
}

bool gpu_process_memory(unsigned gpu, unsigned pid, double *bytes)
{
	int (*get)(void *, unsigned *, struct process_info *);
	struct process_info list[PROCESSES_MAX];
	unsigned count = PROCESSES_MAX;

	*(void **)&get = function("nvmlDeviceGetComputeRunningProcesses_v3");
	if (!device(gpu) || !get || get(device(gpu), &count, list) != 0)
		return false;
	for (unsigned i = 0; i < count && i < PROCESSES_MAX; i++)
		if (list[i].pid == pid && list[i].bytes != UINT64_MAX) {
			*bytes = (double)list[i].bytes;
			return true;
		}
	return false;
}

bool gpu_driver_version(char *buf, size_t size)
{
	int (*get)(char *, unsigned);

	if (!gpu_open())
		return false;
	*(void **)&get = function("nvmlSystemGetDriverVersion");
	return get && get(buf, (unsigned)size) == 0;
}

bool gpu_by_uuid(const char *uuid, unsigned *gpu)
{
	int (*get)(void *, char *, unsigned);
	char text[UUID_SIZE];

	if (!gpu_open())
		return false;
	*(void **)&get = function("nvmlDeviceGetUUID");
	for (unsigned i = 0; get && i < nvml.count; i++)
		if (nvml.device[i] && get(nvml.device[i], text, sizeof text) == 0 &&
			strcmp(text, uuid) == 0) {
			*gpu = i;
			return true;
		}
	return false;
}

bool gpu_link(unsigned gpu, unsigned *generation, unsigned *width)
{
	int (*get_generation)(void *, unsigned *), (*get_width)(void *, unsigned *);

	*(void **)&get_generation = function("nvmlDeviceGetMaxPcieLinkGeneration");
	*(void **)&get_width = function("nvmlDeviceGetMaxPcieLinkWidth");
	return device(gpu) && get_generation && get_width &&
	       get_generation(device(gpu), generation) == 0 &&
	       get_width(device(gpu), width) == 0;
}

bool gpu_is_mig(unsigned gpu)
{
	int (*get)(void *, unsigned *, unsigned *);
	unsigned current = 0, pending;

	*(void **)&get = function("nvmlDeviceGetMigMode");
	return device(gpu) && get && get(device(gpu), &current, &pending) == 0 &&
	       current == 1;
}
