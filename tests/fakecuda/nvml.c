/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of NVML as says who holds a device's memory and what its link is. It reads the ledger that
 * FAKECUDA_SHARE names; without one it asks the fake driver of this process, if there is
 * one. The types are written out here because nvml.h is not part of every toolkit.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fakecuda.h"
#include "ledger.h"

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
};

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

#define API(type, name, ...)                 \
	FAKECUDA_API type name(__VA_ARGS__); \
	FAKECUDA_API type name(__VA_ARGS__)

static atomic_int users;

/* A handle is the index and one, so that the first is not NULL. */
static nvmlDevice_t handle_of(unsigned index)
{
	return (nvmlDevice_t)(uintptr_t)(index + 1);
}

static bool index_of(nvmlDevice_t device, unsigned *index)
{
	*index = (unsigned)(uintptr_t)device - 1;
	return *index < LEDGER_DEVICES;
}

static int environment_devices(void)
{
	const char *text = getenv("FAKECUDA_DEVICES");

	return text && *text ? atoi(text) : 1;
}

static unsigned device_count(void)
{
	return ledger_look() ? ledger_device_count() : environment_devices();
}

API(nvmlReturn_t, nvmlInit_v2, void)
{
	users++;
	return NVML_SUCCESS;
}

API(nvmlReturn_t, nvmlShutdown, void)
{
	if (users <= 0)
		return NVML_ERROR_UNINITIALIZED;
	users--;
	return NVML_SUCCESS;
}

API(nvmlReturn_t, nvmlDeviceGetCount_v2, unsigned int *count)
{
	if (users <= 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = device_count();
	return NVML_SUCCESS;
}

API(nvmlReturn_t, nvmlDeviceGetHandleByIndex_v2, unsigned int index, nvmlDevice_t *device)
{
	if (users <= 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= device_count())
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = handle_of(index);
	return NVML_SUCCESS;
}

/* "GPU-" and the bytes of cuDeviceGetUuid() in groups of 4, 2, 2, 2 and 6. */
static void uuid_text(char text[41], unsigned index)
{
	static const char bytes[16] = "fakecuda-device";
	size_t at = snprintf(text, 41, "GPU-");

	for (unsigned i = 0; i < 16; i++) {
		unsigned byte = i == 15 ? index : (unsigned char)bytes[i];
		bool dash = i == 4 || i == 6 || i == 8 || i == 10;

		at += snprintf(
			text + at, 41 - at, "%s%02x", dash ? "-" : "", byte & 0xff);
	}
}

API(nvmlReturn_t, nvmlDeviceGetHandleByUUID, const char *uuid, nvmlDevice_t *device)
{
	char text[41];

	if (users <= 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < device_count(); i++) {
		uuid_text(text, i);
		if (strcmp(text, uuid) == 0) {
			*device = handle_of(i);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

API(nvmlReturn_t, nvmlDeviceGetUUID, nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[41];
	unsigned index;

	if (!uuid || !index_of(device, &index))
		return NVML_ERROR_INVALID_ARGUMENT;
	uuid_text(text, index);
	if (length < sizeof text)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(uuid, text, sizeof text);
	return NVML_SUCCESS;
}

/* The fake driver loaded in this process, for when no ledger is shared. */
static bool ask_driver(unsigned index, size_t *used, size_t *total)
{
	void *handle = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
	typeof(&fakecuda_report) report_of;
	typeof(&cuDeviceTotalMem) total_of;
	struct fakecuda_report report;

	if (!handle)
		return false;
	report_of = (typeof(report_of))dlsym(handle, "fakecuda_report");
	total_of = (typeof(total_of))dlsym(handle, "cuDeviceTotalMem_v2");
	dlclose(handle);
	if (!report_of || !total_of || total_of(total, index) != CUDA_SUCCESS)
		return false;
	report_of(&report);
	*used = report.bytes_used[index];
	return true;
}

API(nvmlReturn_t, nvmlDeviceGetMemoryInfo, nvmlDevice_t device, nvmlMemory_t *memory)
{
	size_t used = 0, total = 0;
	unsigned index;

	if (users <= 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!memory || !index_of(device, &index))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (ledger_look()) {
		used = ledger_used(index);
		total = ledger_total(index);
	} else if (!ask_driver(index, &used, &total)) {
		return NVML_ERROR_NOT_SUPPORTED;
	}
	memory->total = total;
	memory->used = used;
	memory->free = used < total ? total - used : 0;
	return NVML_SUCCESS;
}

static size_t processes(unsigned index, pid_t *pids, size_t *bytes)
{
	size_t total;

	if (ledger_look())
		return ledger_processes(index, pids, bytes, LEDGER_PROCESSES);
	if (!ask_driver(index, bytes, &total))
		return 0;
	*pids = getpid();
	return 1;
}

/* `infos` has room for *count; how many there are is written there in any case. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *infos, bool is_v1)
{
	pid_t pids[LEDGER_PROCESSES];
	size_t bytes[LEDGER_PROCESSES], n;
	unsigned index, room;

	if (users <= 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!count || !index_of(device, &index) || (*count && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	room = *count;
	n = processes(index, pids, bytes);
	*count = n;
	for (size_t i = 0; i < n && i < room; i++) {
		if (is_v1)
			((nvmlProcessInfo_v1_t *)infos)[i] =
				(nvmlProcessInfo_v1_t){pids[i], bytes[i]};
		else
			((nvmlProcessInfo_v2_t *)infos)[i] = (nvmlProcessInfo_v2_t){
				pids[i], bytes[i], 0xffffffff, 0xffffffff};
	}
	return n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API(nvmlReturn_t, nvmlDeviceGetComputeRunningProcesses, nvmlDevice_t device,
	unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
	return list(device, count, infos, true);
}

API(nvmlReturn_t, nvmlDeviceGetComputeRunningProcesses_v2, nvmlDevice_t device,
	unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
	return list(device, count, infos, false);
}

API(nvmlReturn_t, nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t device,
	unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
	return list(device, count, infos, false);
}

API(nvmlReturn_t, nvmlSystemGetDriverVersion, char *version, unsigned int length)
{
	static const char text[] = "580.00.00";

	if (users <= 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (length < sizeof text)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(version, text, sizeof text);
	return NVML_SUCCESS;
}

/* FAKECUDA_PCIE is generation and lanes, "5x16". */
static nvmlReturn_t link_of(nvmlDevice_t device, unsigned int *answer, bool lanes)
{
	const char *text = getenv("FAKECUDA_PCIE");
	unsigned index, generation = 1, width = 1;

	if (users <= 0)
		return NVML_ERROR_UNINITIALIZED;
	if (!answer || !index_of(device, &index))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (text && *text && sscanf(text, "%ux%u", &generation, &width) != 2)
		return NVML_ERROR_NOT_SUPPORTED;
	*answer = lanes ? width : generation;
	return NVML_SUCCESS;
}

API(nvmlReturn_t, nvmlDeviceGetMaxPcieLinkGeneration, nvmlDevice_t device,
	unsigned int *generation)
{
	return link_of(device, generation, false);
}

API(nvmlReturn_t, nvmlDeviceGetMaxPcieLinkWidth, nvmlDevice_t device, unsigned int *width)
{
	return link_of(device, width, true);
}

API(nvmlReturn_t, nvmlSystemGetProcessName, unsigned int pid, char *name,
	unsigned int length)
{
	char path[64], target[4096];
	ssize_t n;

	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/exe", pid);
	n = readlink(path, target, sizeof target - 1);
	if (n < 0)
		return NVML_ERROR_NOT_FOUND;
	target[n] = 0;
	snprintf(name, length, "%s", target);
	return NVML_SUCCESS;
}

API(const char *, nvmlErrorString, nvmlReturn_t err)
{
	switch (err) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	default:
		return "Unknown Error";
	}
}
