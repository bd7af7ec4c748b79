/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From cuInit() to the end of the process. After a fork the child has no driver; once the
 * exit handler has run nobody has.
 */
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

static struct settings values;
static pthread_once_t values_once = PTHREAD_ONCE_INIT;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;

static atomic_bool is_ready, is_forked, is_exiting;
static atomic_ullong ids;

static __thread struct thread *this_thread;
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

static long number(const char *name, long otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtol(text, NULL, 0) : otherwise;
}

/* "4GiB", "512MiB", "65536"; a size that cannot be read is the default. */
static size_t size(const char *name, size_t otherwise)
{
	static const char *const units[] = {"KiB", "MiB", "GiB"};
	const char *text = getenv(name);
	unsigned long long value;
	char *end;

	if (!text || !*text)
		return otherwise;
	value = strtoull(text, &end, 0);
	for (int i = 0; i < 3; i++)
		if (strcmp(end, units[i]) == 0)
			return value << (10 * (i + 1));
	if (!*end && end != text)
		return value;
	fprintf(stderr, "fakecuda: %s=%s is not a size\n", name, text);
	return otherwise;
}

static void read_values(void)
{
	values.devices = number("FAKECUDA_DEVICES", 1);
	if (values.devices < 0 || values.devices > DEVICES_MAX)
		values.devices = DEVICES_MAX;
	values.version = number("FAKECUDA_VERSION", 13000);
	values.memory = size("FAKECUDA_MEMORY", (size_t)4 << 30);
	values.vmm = number("FAKECUDA_VMM", 1);
	values.shareable = number("FAKECUDA_SHAREABLE", 1);
	values.poison = number("FAKECUDA_POISON", 1);
	values.jit = number("FAKECUDA_JIT", 1);
	values.delay_us = number("FAKECUDA_DELAY_US", 0);
}

struct settings *settings(void)
{
	pthread_once(&values_once, read_values);
	return &values;
}

void fakecuda_delay_us(unsigned microseconds)
{
	settings()->delay_us = microseconds;
}

void fake_lock(void)
{
	pthread_mutex_lock(&lock);
}

void fake_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void fake_wait_locked(void)
{
	pthread_cond_wait(&progress, &lock);
}

void fake_progress_locked(void)
{
	pthread_cond_broadcast(&progress);
}

unsigned long long fake_next_id(void)
{
	return ++ids;
}

CUresult fake_phase(void)
{
	if (is_forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (is_exiting)
		return CUDA_ERROR_DEINITIALIZED;
	return is_ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

bool fake_exiting(void)
{
	return is_exiting;
}

bool fake_forked(void)
{
	return is_forked;
}

static void after_fork_in_child(void)
{
	is_forked = true;
}

static void at_exit(void)
{
	if (is_forked)
		return;
	is_exiting = true;
	report_leaks();
	fake_lock();
	ledger_leave();
	fake_unlock();
}

static void thread_ends(void *thread)
{
	if (!is_forked)
		stream_leave_thread(thread);
	free(thread);
	this_thread = NULL;
}

static void make_thread_key(void)
{
	pthread_key_create(&thread_key, thread_ends);
}

struct thread *thread_self(void)
{
	if (!this_thread) {
		pthread_once(&thread_once, make_thread_key);
		this_thread = calloc(1, sizeof *this_thread);
		pthread_setspecific(thread_key, this_thread);
	}
	return this_thread;
}

static CUresult init_locked(void)
{
	if (is_ready)
		return CUDA_SUCCESS;
	if (settings()->devices == 0)
		return CUDA_ERROR_NO_DEVICE;
	if (!ledger_open(settings()->devices, settings()->memory))
		return CUDA_ERROR_OPERATING_SYSTEM;
	pthread_atfork(NULL, NULL, after_fork_in_child);
	atexit(at_exit);
	is_ready = true;
	return CUDA_SUCCESS;
}

API CUresult cuInit(unsigned int flags)
{
	CUresult err = gate_open(__func__);

	if (err == CUDA_SUCCESS && flags != 0)
		err = CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS) {
		fake_lock();
		err = init_locked();
		fake_unlock();
	}
	return done(__func__, err, "%u", flags);
}

API CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = settings()->version;
	return CUDA_SUCCESS;
}
