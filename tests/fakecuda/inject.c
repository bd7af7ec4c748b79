/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way into and out of every exported function: counts the call, fails it by order
 * (FAKECUDA_FAIL, fakecuda_fail()), refuses it in the wrong state, and writes the call
 * log (FAKECUDA_LOG). Its lock guards the counts and the orders.
 */
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAMES = 1024, ORDERS = 32, NAME_BYTES = 48 };

struct count {
	char name[NAME_BYTES];
	unsigned long calls;
};

struct order {
	char name[NAME_BYTES]; /* "*": any call */
	unsigned long nth;     /* 0: each */
	CUresult err;
	unsigned long seen;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct count counts[NAMES];
static unsigned long all_calls, failed;
static struct order orders[ORDERS];
static size_t order_count;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static char held[NAME_BYTES]; /* calls of it wait */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int log_fd = -1;

static bool ends_with(const char *text, size_t len, const char *end)
{
	size_t n = strlen(end);

	return len > n && strncmp(text + len - n, end, n) == 0;
}

/* Length of a name without its version and its stream flavour. */
static size_t base_length(const char *name, size_t len)
{
	static const char *const ends[] = {"_ptsz", "_ptds", "_v2", "_v3", "_v4"};

	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		if (ends_with(name, len, ends[i]))
			len -= strlen(ends[i]);
	return len < NAME_BYTES ? len : NAME_BYTES - 1;
}

static void copy_base(char base[NAME_BYTES], const char *name, size_t len)
{
	len = base_length(name, len);
	memcpy(base, name, len);
	base[len] = 0;
}

/* NULL when more names came than there are in CUDA. */
static struct count *count_of(const char *base)
{
	unsigned hash = 2166136261u;

	for (const char *c = base; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 16777619u;
	for (size_t i = 0; i < NAMES; i++) {
		struct count *at = &counts[(hash + i) % NAMES];

		if (!at->name[0])
			memcpy(at->name, base, NAME_BYTES);
		if (strcmp(at->name, base) == 0)
			return at;
	}
	return NULL;
}

/* One of "call:nth:error", of length `len`. */
static bool parse_order(const char *text, size_t len, struct order *order)
{
	const char *nth = memchr(text, ':', len);
	const char *err = nth ? memchr(nth + 1, ':', text + len - (nth + 1)) : NULL;
	char *end;

	if (!err)
		return false;
	memset(order, 0, sizeof *order);
	copy_base(order->name, text, nth - text);
	nth++;
	err++;
	if (*nth != '*') {
		order->nth = strtoul(nth, &end, 10);
		if (end != err - 1 || order->nth == 0)
			return false;
	}
	return error_parse(err, text + len - err, &order->err);
}

static void parse_orders_locked(const char *spec)
{
	order_count = 0;
	failed = 0;
	while (spec && *spec) {
		size_t len = strcspn(spec, ";");

		if (order_count < ORDERS && parse_order(spec, len, &orders[order_count]))
			order_count++;
		else if (len)
			fprintf(stderr, "fakecuda: cannot read the failure \"%.*s\"\n",
				(int)len, spec);
		spec += len;
		spec += *spec == ';';
	}
}

static void read_environment(void)
{
	const char *path = getenv("FAKECUDA_LOG");

	if (path && *path)
		log_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	parse_orders_locked(getenv("FAKECUDA_FAIL"));
}

void fakecuda_fail(const char *spec)
{
	pthread_once(&once, read_environment);
	pthread_mutex_lock(&lock);
	parse_orders_locked(spec);
	pthread_mutex_unlock(&lock);
}

unsigned long fakecuda_failed(void)
{
	unsigned long n;

	pthread_mutex_lock(&lock);
	n = failed;
	pthread_mutex_unlock(&lock);
	return n;
}

unsigned long fakecuda_calls(const char *name)
{
	char base[NAME_BYTES];
	struct count *count;
	unsigned long n;

	copy_base(base, name, strlen(name));
	pthread_mutex_lock(&lock);
	count = count_of(base);
	n = count ? count->calls : 0;
	if (strcmp(base, "*") == 0)
		n = all_calls;
	pthread_mutex_unlock(&lock);
	return n;
}

/* What the orders say about a call of `base` that is being made. */
static CUresult obey_locked(const char *base)
{
	CUresult err = CUDA_SUCCESS;

	for (size_t i = 0; i < order_count; i++) {
		struct order *order = &orders[i];

		if (strcmp(order->name, "*") != 0 && strcmp(order->name, base) != 0)
			continue;
		order->seen++;
		if (err == CUDA_SUCCESS && (!order->nth || order->nth == order->seen))
			err = order->err;
	}
	failed += err != CUDA_SUCCESS;
	return err;
}

FAKECUDA_API void fakecuda_hold(const char *name)
{
	pthread_mutex_lock(&lock);
	copy_base(held, name ? name : "", name ? strlen(name) : 0);
	pthread_cond_broadcast(&let_go);
	pthread_mutex_unlock(&lock);
}

static CUresult count_call(const char *name)
{
	char base[NAME_BYTES] = "";
	struct count *count;
	CUresult err;

	pthread_once(&once, read_environment);
	copy_base(base, name, strlen(name));
	pthread_mutex_lock(&lock);
	count = count_of(base);
	if (count)
		count->calls++;
	all_calls++;
	while (strcmp(base, held) == 0)
		pthread_cond_wait(&let_go, &lock);
	err = obey_locked(base);
	pthread_mutex_unlock(&lock);
	return err;
}

CUresult gate_open(const char *name)
{
	CUresult err = fake_phase();
	bool is_early = err == CUDA_ERROR_NOT_INITIALIZED && !fake_forked();

	if (err != CUDA_SUCCESS && !is_early)
		return err;
	return count_call(name);
}

static CUresult check_context(void)
{
	struct CUctx_st *ctx = context_current();
	CUresult err;

	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	fake_lock();
	err = context_check_locked(ctx);
	fake_unlock();
	return err;
}

CUresult gate(const char *name, enum gate need)
{
	CUresult err = fake_phase(), ordered;

	if (err != CUDA_SUCCESS)
		return err;
	if (!thread_self())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (thread_self()->is_worker)
		return CUDA_ERROR_NOT_PERMITTED;
	ordered = count_call(name);
	if (need >= GATE_DRIVER && context_any_lost())
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	if (ordered == CUDA_SUCCESS && need == GATE_CONTEXT)
		return check_context();
	return ordered;
}

const char *fake_log_word(CUresult err)
{
	const char *name = error_short_name(err);

	return name ? name : "an unknown error";
}

CUresult done(const char *name, CUresult err, const char *format, ...)
{
	char line[512];
	size_t at;
	va_list args;

	if (log_fd < 0)
		return err;
	at = snprintf(line, sizeof line, "%s(", name);
	va_start(args, format);
	at += vsnprintf(line + at, sizeof line - at, format, args);
	va_end(args);
	if (at > sizeof line - 64)
		at = sizeof line - 64;
	at += snprintf(line + at, sizeof line - at, ") = %s\n", fake_log_word(err));
	/* One write a line: the file may be shared by processes. */
	if (write(log_fd, line, at) < 0)
		log_fd = -1;
	return err;
}
