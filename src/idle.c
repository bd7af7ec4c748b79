/* SPDX-License-Identifier: Apache-2.0 */
#include "idle.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "capture.h"
#include "clock.h"
#include "device.h"
#include "error.h"
#include "lock.h"
#include "stayput.h"
#include "thread.h"

/* Contexts that have nothing to do answer in under a microsecond. What takes longer than
 * IDLE_SECONDS has waited for work, or for a core: a look during which the thread lost its
 * core is taken again. */
#define IDLE_SECONDS 200e-6
enum { LOOKS = 3, WAIT_MS = 20 };

struct look {
	struct device *device;
	pthread_mutex_t mutex; /* what follows */
	pthread_cond_t changed;
	bool begun, ended;
	bool left; /* nobody waits: the thread cleans up */
	bool busy;
	CUresult err;
};

static unsigned left_behind[DEVICE_MAX]; /* threads that wait for it; under the lock */

static void drop(struct look *l)
{
	pthread_cond_destroy(&l->changed);
	pthread_mutex_destroy(&l->mutex);
	free(l);
}

static struct look *make(struct device *dev)
{
	struct look *l = calloc(1, sizeof *l);
	pthread_condattr_t monotonic;

	if (!l)
		return NULL;
	l->device = dev;
	pthread_mutex_init(&l->mutex, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&l->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return l;
}

/* How often this thread has lost its core. */
static long losses(void)
{
	struct rusage usage;

	return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

static CUresult take_look(struct device *dev, bool *busy)
{
	CUresult err = CUDA_SUCCESS;
	bool again = true;

	for (int i = 0; i < LOOKS && again && err == CUDA_SUCCESS; i++) {
		long before = losses();
		double start = clock_now();

		err = device_synchronize(dev);
		*busy = clock_now() - start > IDLE_SECONDS;
		again = *busy && losses() != before;
	}
	return err;
}

static void *look(void *argument)
{
	struct look *l = argument;
	struct device *dev = l->device;
	bool busy, left;
	CUresult err;

	pthread_mutex_lock(&l->mutex);
	l->begun = true;
	pthread_cond_signal(&l->changed);
	pthread_mutex_unlock(&l->mutex);
	err = take_look(dev, &busy);
	pthread_mutex_lock(&l->mutex);
	l->busy = busy;
	l->err = err;
	l->ended = true;
	left = l->left;
	pthread_cond_signal(&l->changed);
	pthread_mutex_unlock(&l->mutex);
	lock_take();
	capture_unhold_locked();
	left_behind[dev->ordinal] -= left;
	lock_drop();
	if (left)
		drop(l);
	return NULL;
}

/* True when the thread has come back in time; else it has been left behind. */
static bool wait_for(struct look *l)
{
	struct timespec until;
	bool ended;
	int err = 0;

	pthread_mutex_lock(&l->mutex);
	while (!l->begun)
		pthread_cond_wait(&l->changed, &l->mutex);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += WAIT_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	while (!l->ended && err != ETIMEDOUT)
		err = pthread_cond_timedwait(&l->changed, &l->mutex, &until);
	ended = l->ended;
	if (!ended) {
		l->left = true;
		lock_take();
		left_behind[l->device->ordinal]++;
		lock_drop();
	}
	pthread_mutex_unlock(&l->mutex);
	return ended;
}

static int start(struct look *l)
{
	if (l && thread_start("stayput-idle", look, l))
		return STAYPUT_OK;
	lock_take();
	capture_unhold_locked();
	lock_drop();
	if (l)
		drop(l);
	return error_set(STAYPUT_ERR_HOST_MEMORY,
		"no thread could be started to find out whether a device is idle");
}

static int say_busy(const struct device *dev)
{
	return error_set(STAYPUT_ERR_BUSY,
		"device %d has work in flight; nothing was paused", dev->ordinal);
}

int idle_check(struct device *dev)
{
	struct look *l;
	bool waited_for, busy;
	CUresult result;
	int err;

	lock_take();
	waited_for = left_behind[dev->ordinal] > 0;
	if (!waited_for)
		capture_hold_again_locked();
	lock_drop();
	if (waited_for)
		return say_busy(dev);
	l = make(dev);
	err = start(l);
	if (err != STAYPUT_OK)
		return err;
	if (!wait_for(l))
		return say_busy(dev);
	busy = l->busy;
	result = l->err;
	drop(l);
	if (result != CUDA_SUCCESS)
		return error_driver("cuCtxSynchronize", result,
			"while looking for work in flight; nothing was paused");
	return busy ? say_busy(dev) : STAYPUT_OK;
}
