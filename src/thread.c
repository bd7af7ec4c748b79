/* SPDX-License-Identifier: Apache-2.0 */
#include "thread.h"

#include <signal.h>

bool thread_create(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
	sigset_t all, before;
	bool started;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	started = pthread_create(thread, NULL, run, argument) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}

bool thread_start(const char *name, void *(*run)(void *argument), void *argument)
{
	pthread_t thread;

	if (!thread_create(&thread, run, argument))
		return false;
	pthread_setname_np(thread, name);
	pthread_detach(thread);
	return true;
}
