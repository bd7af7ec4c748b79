/* SPDX-License-Identifier: Apache-2.0 */
#include "lock.h"

#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned waiters; /* under the mutex */

#ifdef STAYPUT_CHECKS
static __thread int held;
#define HELD(change) (held += (change))
#else
#define HELD(change) ((void)0)
#endif

void lock_take(void)
{
	lock_check_free();
	pthread_mutex_lock(&mutex);
	HELD(1);
}

void lock_drop(void)
{
	HELD(-1);
	pthread_mutex_unlock(&mutex);
}

void lock_wait(void)
{
	waiters++;
	pthread_cond_wait(&changed, &mutex);
	waiters--;
}

void lock_notify(void)
{
	if (waiters > 0)
		pthread_cond_broadcast(&changed);
}

void lock_restart(void)
{
	const pthread_cond_t fresh = PTHREAD_COND_INITIALIZER;

	changed = fresh;
	waiters = 0;
	lock_drop();
}

void lock_check_free(void)
{
#ifdef STAYPUT_CHECKS
	if (held)
		__builtin_trap();
#endif
}
