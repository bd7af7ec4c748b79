/* SPDX-License-Identifier: Apache-2.0 */
#include "thread.h"

#include <pthread.h>
#include <signal.h>

bool thread_start(const char *name, void *(*run)(void *argument), void *argument)
{
	pthread_attr_t detached;
	sigset_t all, before;
	pthread_t thread;
	bool started;

	if (pthread_attr_init(&detached) != 0)
		return false;
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	started = pthread_create(&thread, &detached, run, argument) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&detached);
	if (started)
		pthread_setname_np(thread, name);
	return started;
}
