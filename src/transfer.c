/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer.h"

#include <string.h>

#include "device.h"
#include "real.h"

enum {
	STAGING_SIZE = 8 << 20, /* of one of the two */
	PACE_BYTES = 32 << 20,
};

CUresult transfer_open(struct transfer *t)
{
	CUresult err;

	*t = (struct transfer){.stream = NULL};
	err = driver()->cuStreamCreate(&t->stream, CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < TRANSFER_WINDOW && err == CUDA_SUCCESS; i++) {
		err = driver()->cuEventCreate(&t->marks[i], CU_EVENT_DISABLE_TIMING);
		if (err == CUDA_SUCCESS)
			err = driver()->cuEventCreate(
				&t->paces[i], CU_EVENT_DISABLE_TIMING);
	}
	if (err != CUDA_SUCCESS)
		transfer_close(t);
	return err;
}

static void destroy_events(CUevent *events, int count)
{
	for (int i = 0; i < count; i++)
		if (events[i])
			driver()->cuEventDestroy_v2(events[i]);
}

CUresult transfer_close(struct transfer *t)
{
	CUresult err;

	if (!t->stream)
		return CUDA_SUCCESS;
	err = device_wait_stream(t->stream);
	destroy_events(t->marks, TRANSFER_WINDOW);
	destroy_events(t->paces, TRANSFER_WINDOW);
	destroy_events(t->staged, 2);
	if (t->staging && err == CUDA_SUCCESS)
		driver()->cuMemFreeHost(t->staging);
	driver()->cuStreamDestroy_v2(t->stream);
	*t = (struct transfer){.stream = NULL};
	return err;
}

CUresult transfer_mark(struct transfer *t)
{
	CUresult err =
		driver()->cuEventRecord(t->marks[t->begun % TRANSFER_WINDOW], t->stream);

	if (err != CUDA_SUCCESS)
		return err;
	t->begun++;
	if (t->begun - t->ended < TRANSFER_WINDOW)
		return CUDA_SUCCESS;
	err = driver()->cuEventSynchronize(t->marks[t->ended % TRANSFER_WINDOW]);
	t->ended += err == CUDA_SUCCESS;
	return err;
}

CUresult transfer_pace(struct transfer *t, size_t bytes)
{
	CUevent event = t->paces[t->paced % TRANSFER_WINDOW];
	CUresult err = CUDA_SUCCESS;

	t->unpaced += bytes;
	if (t->unpaced < PACE_BYTES)
		return CUDA_SUCCESS;
	if (t->paced >= TRANSFER_WINDOW)
		err = driver()->cuEventSynchronize(event);
	if (err == CUDA_SUCCESS)
		err = driver()->cuEventRecord(event, t->stream);
	t->unpaced = 0;
	t->paced++;
	return err;
}

CUresult transfer_drain(struct transfer *t)
{
	CUresult err = device_wait_stream(t->stream);

	if (err == CUDA_SUCCESS)
		t->ended = t->begun;
	return err;
}

/* Without pinned memory even for the buffers, the driver stages copies by itself. */
static bool open_staging(struct transfer *t)
{
	if (t->staging)
		return true;
	for (int i = 0; i < 2; i++)
		if (!t->staged[i] && driver()->cuEventCreate(&t->staged[i],
					     CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
			return false;
	return driver()->cuMemHostAlloc((void **)&t->staging, 2 * STAGING_SIZE,
		       CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS;
}

static size_t part_size(size_t size, size_t at)
{
	return size - at < STAGING_SIZE ? size - at : STAGING_SIZE;
}

/* While one buffer is emptied by the CPU, the other is filled by the device. */
static CUresult save_staged(
	struct transfer *t, char *host, CUdeviceptr device, size_t size)
{
	size_t parts = (size + STAGING_SIZE - 1) / STAGING_SIZE;
	CUresult err = CUDA_SUCCESS;

	for (size_t i = 0; i <= parts && err == CUDA_SUCCESS; i++) {
		size_t at = i * STAGING_SIZE;

		if (i < parts)
			err = driver()->cuMemcpyDtoHAsync_v2(
				t->staging + i % 2 * STAGING_SIZE, device + at,
				part_size(size, at), t->stream);
		if (i < parts && err == CUDA_SUCCESS)
			err = driver()->cuEventRecord(t->staged[i % 2], t->stream);
		if (i == 0 || err != CUDA_SUCCESS)
			continue;
		at -= STAGING_SIZE;
		err = driver()->cuEventSynchronize(t->staged[(i - 1) % 2]);
		if (err == CUDA_SUCCESS)
			memcpy(host + at, t->staging + (i - 1) % 2 * STAGING_SIZE,
				part_size(size, at));
	}
	return err;
}

static CUresult restore_staged(
	struct transfer *t, CUdeviceptr device, const char *host, size_t size)
{
	CUresult err = CUDA_SUCCESS;

	for (size_t at = 0, i = 0; at < size && err == CUDA_SUCCESS;
		at += STAGING_SIZE, i++) {
		char *buffer = t->staging + i % 2 * STAGING_SIZE;

		err = driver()->cuEventSynchronize(t->staged[i % 2]);
		if (err != CUDA_SUCCESS)
			break;
		memcpy(buffer, host + at, part_size(size, at));
		err = driver()->cuMemcpyHtoDAsync_v2(
			device + at, buffer, part_size(size, at), t->stream);
		if (err == CUDA_SUCCESS)
			err = driver()->cuEventRecord(t->staged[i % 2], t->stream);
	}
	return err;
}

CUresult transfer_save(
	struct transfer *t, char *host, CUdeviceptr device, size_t size, bool pinned)
{
	if (!pinned && open_staging(t))
		return save_staged(t, host, device, size);
	return driver()->cuMemcpyDtoHAsync_v2(host, device, size, t->stream);
}

CUresult transfer_restore(
	struct transfer *t, CUdeviceptr device, char *host, size_t size, bool pinned)
{
	if (!pinned && open_staging(t))
		return restore_staged(t, device, host, size);
	return driver()->cuMemcpyHtoDAsync_v2(device, host, size, t->stream);
}
