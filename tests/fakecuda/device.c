/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <stdio.h>
#include <string.h>

#include "ledger.h"

bool device_is_valid(CUdevice dev)
{
	return dev >= 0 && dev < settings()->devices;
}

static CUresult get(CUdevice *dev, int ordinal)
{
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_is_valid(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*dev = ordinal;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get(dev, ordinal), "%d", ordinal);
}

static CUresult get_count(int *count)
{
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = settings()->devices;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_count(count), " ");
}

static CUresult get_name(char *name, int len, CUdevice dev)
{
	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, len, "Fake GPU %d", dev);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_name(name, len, dev), "%d", dev);
}

static CUresult get_uuid(CUuuid *uuid, CUdevice dev)
{
	static const char bytes[16] = "fakecuda-device";

	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(uuid->bytes, bytes, sizeof bytes);
	uuid->bytes[15] = dev;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_uuid(uuid, dev), "%d", dev);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	return cuDeviceGetUuid(uuid, dev);
}

static CUresult total_memory(size_t *bytes, CUdevice dev)
{
	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	*bytes = ledger_total(dev);
	fake_unlock();
	return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : total_memory(bytes, dev), "%d", dev);
}

static CUresult compute_capability(int *major, int *minor, CUdevice dev)
{
	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = 9;
	*minor = 0;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(
		__func__, err ? err : compute_capability(major, minor, dev), "%d", dev);
}

static CUresult get_pci_bus_id(char *id, int len, CUdevice dev)
{
	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!id || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(id, len, "0000:%02X:00.0", (unsigned)(dev + 1) & 0xffu);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_pci_bus_id(id, len, dev), "%d", dev);
}

/* By number: the names of some changed between CUDA versions. What is not here is 0. */
static const int attributes[][2] = {
	{1, 1024},                           /* threads per block */
	{2, 1024},                           /* block dimensions */
	{3, 1024}, {4, 64}, {5, 2147483647}, /* grid dimensions */
	{6, 65535}, {7, 65535}, {8, 49152},  /* shared memory per block */
	{9, 65536},                          /* constant memory */
	{10, 32},                            /* warp */
	{12, 65536},                         /* registers per block */
	{13, 1980000},                       /* clock, kHz */
	{14, 512},                           /* texture alignment */
	{15, 1},                             /* copies beside kernels */
	{16, 8},                             /* multiprocessors */
	{19, 1},                             /* can map host memory */
	{31, 1},                             /* concurrent kernels */
	{36, 3201000},                       /* memory clock, kHz */
	{37, 6144},                          /* bus width */
	{38, 62914560},                      /* level 2 cache */
	{39, 2048},                          /* threads per multiprocessor */
	{40, 3},                             /* copy engines */
	{41, 1},                             /* unified addressing */
	{51, 32},                            /* texture pitch alignment */
	{75, 9},                             /* compute capability */
	{76, 0}, {78, 1},                    /* stream priorities */
	{81, 233472},                        /* shared memory per multiprocessor */
	{82, 65536},                         /* registers per multiprocessor */
	{83, 1},                             /* managed memory */
	{89, 1},                             /* concurrent managed access */
	{90, 1},                             /* compute preemption */
	{91, 1},                             /* registered host memory has one address */
	{95, 1},                             /* cooperative launch */
	{97, 232448},                        /* shared memory per block, opted in */
	{103, 1},                            /* file descriptors for VMM memory */
	{106, 32},                           /* blocks per multiprocessor */
	{110, 1},                            /* GPUDirect RDMA for VMM memory */
	{115, 1},                            /* memory pools */
	{116, 1},                            /* GPUDirect RDMA */
	{119, 1},                            /* pool handle types */
	{128, 1},                            /* fabric handles for VMM memory */
	{134, 0},                            /* host NUMA node */
};

static CUresult get_attribute(int *value, int which, CUdevice dev)
{
	if (!device_is_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value || which <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*value = 0;
	if (which == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
		*value = dev + 1;
	/* Virtual memory management goes by two names in the headers. */
	if (which == 102)
		*value = settings()->vmm;
	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
		if (attributes[i][0] == which)
			*value = attributes[i][1];
	if (!settings()->vmm && (which == 103 || which == 110 || which == 128))
		*value = 0;
	if (!settings()->shareable && (which == 103 || which == 128))
		*value = 0;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice dev)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : get_attribute(value, which, dev), "%d, %d",
		which, dev);
}

static CUresult can_access_peer(int *can, CUdevice dev, CUdevice peer)
{
	if (!device_is_valid(dev) || !device_is_valid(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = dev != peer;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	CUresult err = gate(__func__, GATE_QUERY);

	return done(__func__, err ? err : can_access_peer(can, dev, peer), "%d, %d", dev,
		peer);
}

void fakecuda_budget(int device, size_t bytes)
{
	if (fake_phase() != CUDA_SUCCESS || !device_is_valid(device)) {
		fprintf(stderr, "fakecuda: a budget needs cuInit() and a valid device\n");
		return;
	}
	fake_lock();
	ledger_set_total(device, bytes);
	fake_unlock();
}
