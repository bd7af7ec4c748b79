/* SPDX-License-Identifier: Apache-2.0 */
/* What pausing needs of driver and devices, by the driver itself, opened at run time. */
#include "doctor.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cuda.h>

#include "clock.h"
#include "format.h"
#include "gpu.h"
#include "hostmem.h"

enum {
	TEXT = 40,
	DRIVER_MIN = 11080,
	COPIES = 3,        /* the best counts */
	LINK_PERCENT = 80, /* of what the link promises */
	LINK_MIB = 1024,   /* that are copied, where there is room */
};

#define FUNCTIONS(F)                    \
	F(cuInit)                       \
	F(cuDriverGetVersion)           \
	F(cuGetErrorName)               \
	F(cuDeviceGetCount)             \
	F(cuDeviceGet)                  \
	F(cuDeviceGetName)              \
	F(cuDeviceGetAttribute)         \
	F(cuDeviceGetUuid_v2)           \
	F(cuDeviceTotalMem_v2)          \
	F(cuDevicePrimaryCtxRetain)     \
	F(cuDevicePrimaryCtxRelease_v2) \
	F(cuCtxSetCurrent)              \
	F(cuMemGetInfo_v2)              \
	F(cuMemAlloc_v2)                \
	F(cuMemFree_v2)                 \
	F(cuMemHostAlloc)               \
	F(cuMemFreeHost)                \
	F(cuMemcpyHtoD_v2)              \
	F(cuMemcpyDtoH_v2)

static struct {
#define FIELD(name) typeof(&name) name;
	FUNCTIONS(FIELD)
#undef FIELD
} cuda;

/* The first function that the driver lacks, or NULL. */
static const char *load(void *handle)
{
	static const struct {
		const char *name;
		void *at;
	} functions[] = {
#define ROW_OF(name) {#name, &cuda.name},
		FUNCTIONS(ROW_OF)
#undef ROW_OF
	};

	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *found = dlsym(handle, functions[i].name);

		if (!found)
			return functions[i].name;
		memcpy(functions[i].at, &found, sizeof found);
	}
	return NULL;
}

static const char *error_name(CUresult err)
{
	const char *name = NULL;

	return cuda.cuGetErrorName(err, &name) == CUDA_SUCCESS && name ? name : "unknown";
}

/* True when there is at least one device to look at. */
static bool check_driver(struct doctor *doctor, int *count)
{
	void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	const char *missing = handle ? load(handle) : NULL;
	int version = 0;
	CUresult err;

	if (!handle || missing) {
		doctor_note(doctor, BAD, "driver",
			"install NVIDIA's driver, 520 or later; in a container, start it "
			"with GPUs (--gpus all)",
			"no GPU can be used here: %s%s",
			handle ? "libcuda.so.1 is too old, it lacks "
			       : "libcuda.so.1 cannot be opened",
			handle ? missing : "");
		return false;
	}
	cuda.cuDriverGetVersion(&version);
	err = cuda.cuInit(0);
	if (err == CUDA_SUCCESS)
		err = cuda.cuDeviceGetCount(count);
	if (err != CUDA_SUCCESS || *count == 0) {
		doctor_note(doctor, BAD, "driver",
			"nvidia-smi should list the GPUs; CUDA_VISIBLE_DEVICES hides "
			"those "
			"that it does not name",
			"no GPU can be used here: %s",
			err != CUDA_SUCCESS ? error_name(err) : "the driver sees none");
		return false;
	}
	doctor_note(doctor, version < DRIVER_MIN ? BAD : GOOD, "driver",
		version < DRIVER_MIN ? "CUDA 11.8 or later is needed: driver 520" : NULL,
		"CUDA %d.%d, devices: %d", version / 1000, version % 1000 / 10, *count);
	return version >= DRIVER_MIN;
}

static bool has(CUdevice device, CUdevice_attribute attribute)
{
	int value = 0;

	return cuda.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS &&
	       value == 1;
}

static void check_attributes(struct doctor *doctor, CUdevice device, const char *name)
{
	static const struct {
		CUdevice_attribute attribute;
		enum level without;
		const char *good, *bad, *advice;
	} wanted[] = {
		{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, BAD,
			"virtual memory management", "no virtual memory management",
			"regions are native memory here and pause answers UNSUPPORTED; "
			"vGPU profiles and WSL may lack it"},
		{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, WARNING,
			"memory can be shared by file descriptor",
			"memory cannot be shared by file descriptor",
			"CUDA IPC of region memory needs it; push native memory for "
			"that"},
		{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, WARNING,
			"GPUDirect RDMA with such memory",
			"no GPUDirect RDMA with such memory",
			"registrations of region memory with RDMA cards will fail"},
	};

	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		bool there = has(device, wanted[i].attribute);

		doctor_note(doctor, there ? GOOD : wanted[i].without, name,
			there ? NULL : wanted[i].advice, "%s",
			there ? wanted[i].good : wanted[i].bad);
	}
}

/* NVML's index of a CUDA device; false where NVML does not know it. */
static bool find_gpu(CUdevice device, unsigned *gpu)
{
	CUuuid uuid;
	char text[64];
	int len = snprintf(text, sizeof text, "GPU-");

	if (cuda.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS)
		return false;
	for (int i = 0; i < 16; i++)
		len += snprintf(text + len, sizeof text - len, "%s%02x",
			i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			(unsigned char)uuid.bytes[i]);
	return gpu_by_uuid(text, gpu);
}

/* Bytes a second of a PCIe lane after its encoding; 0 for generations to come. */
static double lane_speed(unsigned generation)
{
	static const double gigatransfers[] = {0, 2.5, 5, 8, 16, 32, 64};

	if (generation >= sizeof gigatransfers / sizeof *gigatransfers)
		return 0;
	return gigatransfers[generation] * 1e9 / 8 *
	       (generation < 3          ? 8.0 / 10
		       : generation < 6 ? 128.0 / 130
					: 242.0 / 256);
}

/* Bytes a second of the best of some copies of the whole; 0 on an error. */
static double measure(CUdeviceptr device, void *host, size_t size, bool up)
{
	double best = 0;

	for (int i = 0; i < COPIES; i++) {
		double start = clock_now(), seconds;
		CUresult err = up ? cuda.cuMemcpyHtoD_v2(device, host, size)
				  : cuda.cuMemcpyDtoH_v2(host, device, size);

		seconds = clock_now() - start;
		if (err != CUDA_SUCCESS)
			return 0;
		if (seconds > 0 && size / seconds > best)
			best = size / seconds;
	}
	return best;
}

/* As much as the test may take without being in anybody's way. */
static size_t link_bytes(void)
{
	size_t size = (size_t)LINK_MIB << 20, free_bytes = 0, total;
	size_t host = hostmem_available("");

	if (cuda.cuMemGetInfo_v2(&free_bytes, &total) != CUDA_SUCCESS)
		return 0;
	size = size < free_bytes / 4 ? size : free_bytes / 4;
	size = size < host / 8 ? size : host / 8;
	return size >> 20 << 20;
}

static void judge_link(struct doctor *doctor, CUdevice device, const char *name,
	double up, double down, size_t size)
{
	double least = up < down ? up : down, promise;
	unsigned gpu, generation, width;

	if (!find_gpu(device, &gpu) || !gpu_link(gpu, &generation, &width) ||
		lane_speed(generation) == 0) {
		doctor_note(doctor, GOOD, name, NULL,
			"copies %.1f GB/s to the device, %.1f GB/s back (%zu MiB); NVML "
			"does "
			"not say what the link promises",
			up / 1e9, down / 1e9, size >> 20);
		return;
	}
	promise = lane_speed(generation) * width;
	doctor_note(doctor, least * 100 >= promise * LINK_PERCENT ? GOOD : WARNING, name,
		least * 100 >= promise * LINK_PERCENT
			? NULL
			: "slower than 80%: other traffic on the link, a slot with fewer "
			  "lanes "
			  "(nvidia-smi -q -d PERFORMANCE,CLOCK), host memory on another "
			  "node "
			  "(numactl), or a virtual machine without huge pages",
		"copies %.1f GB/s to the device, %.1f GB/s back (%zu MiB); PCIe %u x%u "
		"promises %.1f GB/s",
		up / 1e9, down / 1e9, size >> 20, generation, width, promise / 1e9);
}

/* With a context on the device. */
static void check_copies(struct doctor *doctor, CUdevice device, const char *name)
{
	size_t size = link_bytes();
	CUdeviceptr memory = 0;
	void *host = NULL;
	double up = 0, down = 0;

	if (size && cuda.cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS &&
		cuda.cuMemHostAlloc(&host, size, 0) == CUDA_SUCCESS) {
		memset(host, 1, size);
		measure(memory, host, size, true); /* wakes the link up */
		up = measure(memory, host, size, true);
		down = measure(memory, host, size, false);
	}
	if (up > 0 && down > 0)
		judge_link(doctor, device, name, up, down, size);
	else
		doctor_note(doctor, WARNING, name,
			"run it again when device and host have 1 GiB to spare",
			"no copies were made: %zu MiB could not be had or not be copied",
			size >> 20);
	if (host)
		cuda.cuMemFreeHost(host);
	if (memory)
		cuda.cuMemFree_v2(memory);
}

static void check_link(struct doctor *doctor, CUdevice device, const char *name)
{
	CUcontext ctx;
	CUresult err = cuda.cuDevicePrimaryCtxRetain(&ctx, device);

	if (err != CUDA_SUCCESS) {
		doctor_note(doctor, WARNING, name,
			"run it again when nobody has the device for himself",
			"no context can be made: %s", error_name(err));
		return;
	}
	if (cuda.cuCtxSetCurrent(ctx) == CUDA_SUCCESS)
		check_copies(doctor, device, name);
	cuda.cuCtxSetCurrent(NULL);
	cuda.cuDevicePrimaryCtxRelease_v2(device);
}

static double check_device(struct doctor *doctor, int ordinal, bool link)
{
	char name[TEXT], model[128] = "?", memory[TEXT];
	size_t bytes = 0;
	unsigned gpu;
	CUdevice device;

	if (cuda.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS)
		return 0;
	cuda.cuDeviceGetName(model, sizeof model, device);
	cuda.cuDeviceTotalMem_v2(&bytes, device);
	snprintf(name, sizeof name, "device %d", ordinal);
	doctor_note(doctor, GOOD, name, NULL, "%s, %s", model,
		bytes_text((double)bytes, memory, sizeof memory));
	check_attributes(doctor, device, name);
	if (find_gpu(device, &gpu) && gpu_is_mig(gpu))
		doctor_note(doctor, WARNING, name,
			"nobody has tried a pause under MIG; tell how it went",
			"is in MIG mode");
	if (link)
		check_link(doctor, device, name);
	return (double)bytes;
}

double doctor_check_devices(struct doctor *doctor, bool link)
{
	double largest = 0;
	int count = 0;

	if (!check_driver(doctor, &count))
		return 0;
	for (int i = 0; i < count; i++) {
		double bytes = check_device(doctor, i, link);

		if (bytes > largest)
			largest = bytes;
	}
	return largest;
}
