/* SPDX-License-Identifier: Apache-2.0 */
#include "reserve.h"

#include <stdlib.h>

#include "config.h"
#include "device.h"
#include "digest.h"
#include "error.h"
#include "hostfill.h"
#include "hostpool.h"
#include "lock.h"
#include "stayput.h"
#include "thread.h"

struct reservation {
	struct device *device;
	struct piece **pieces;
	size_t count;
	char *base;
	size_t size;
};

static void end_reservation(struct reservation *r, bool filled)
{
	lock_take();
	for (size_t i = 0; i < r->count && filled; i++)
		hostpool_add_piece_locked(r->device, r->pieces[i]);
	if (filled)
		hostpool_give_locked(r->device, r->base, r->size);
	else
		hostpool_give_bare_locked(r->device, r->base, r->size);
	hostpool_unbook_locked(r->size);
	r->device->pool.filling--;
	r->device->pool.filling_bytes -= r->size;
	r->device->pool.reserved += filled ? r->size : 0;
	lock_notify();
	lock_drop();
	for (size_t i = 0; i < r->count && !filled; i++)
		free(r->pieces[i]);
	free(r->pieces);
	free(r);
}

static void *fill_reservation(void *argument)
{
	struct reservation *r = argument;
	struct hostfill fill;
	bool filled = false;

	if (device_enter(r->device) == CUDA_SUCCESS) {
		digest_load(r->device);
		if (hostfill_start(
			    &fill, r->device, r->pieces, r->count, config()->threads))
			filled = hostfill_finish(&fill);
		if (!filled)
			hostfill_empty(r->device, r->pieces, r->count, 1);
		device_leave();
	}
	end_reservation(r, filled);
	return NULL;
}

/* Takes `r` over; false when it has come to nothing. */
static bool start(struct reservation *r)
{
	bool started;

	lock_take();
	r->device->pool.filling++;
	r->device->pool.filling_bytes += r->size;
	lock_drop();
	r->pieces = calloc(r->size / HOSTPOOL_PIECE + 1, sizeof(struct piece *));
	started = r->pieces && hostpool_divide(r->base, r->size, r->pieces, &r->count);
	started = started && thread_start("stayput-reserve", fill_reservation, r);
	if (!started)
		end_reservation(r, false);
	return started;
}

/* A record and addresses; NULL when there are none. */
static struct reservation *make_reservation(struct device *dev, size_t size)
{
	struct reservation *r = calloc(1, sizeof *r);

	if (!r || !hostpool_open(dev)) {
		free(r);
		return NULL;
	}
	*r = (struct reservation){.device = dev, .size = size};
	lock_take();
	r->base = hostpool_take_bare_locked(dev, size);
	lock_drop();
	if (!r->base) {
		free(r);
		return NULL;
	}
	return r;
}

int reserve_start(struct device *dev, size_t size)
{
	struct reservation *r = make_reservation(dev, size);

	if (r && start(r))
		return STAYPUT_OK;
	if (!r) {
		lock_take();
		hostpool_unbook_locked(size);
		lock_drop();
	}
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"the system refused addresses, records or a thread for %zu bytes of "
		"backups",
		size);
}
