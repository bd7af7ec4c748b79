/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentences live in one heap buffer per thread, made at the thread's first error: an
 * array in thread-local storage would use up the little that the loader sets aside for
 * libraries that are opened late.
 */
#include "error.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "real.h"
#include "stayput.h"

enum { SENTENCE_SIZE = 1024 };

static __thread char *sentence;
static pthread_key_t sentence_key;
static pthread_once_t sentence_once = PTHREAD_ONCE_INIT;

/* Other destructors may still make errors after this one. */
static void drop_sentence(void *buffer)
{
	sentence = NULL;
	free(buffer);
}

static void make_key(void)
{
	if (pthread_key_create(&sentence_key, drop_sentence) != 0)
		sentence_key = (pthread_key_t)-1;
}

static char *sentence_buffer(void)
{
	if (sentence)
		return sentence;
	pthread_once(&sentence_once, make_key);
	sentence = malloc(SENTENCE_SIZE);
	if (sentence && sentence_key != (pthread_key_t)-1)
		pthread_setspecific(sentence_key, sentence);
	return sentence;
}

int error_set(int code, const char *format, ...)
{
	int saved = errno;
	char *buf = sentence_buffer();
	va_list args;

	if (buf) {
		va_start(args, format);
		vsnprintf(buf, SENTENCE_SIZE, format, args);
		va_end(args);
	}
	errno = saved;
	return code;
}

const char *error_cuda_name(CUresult err)
{
	const char *name = NULL;

	if (driver_loaded())
		driver()->cuGetErrorName(err, &name);
	return name ? name : "an unknown CUDA error";
}

int error_driver(const char *call, CUresult err, const char *what)
{
	return error_set(STAYPUT_ERR_DRIVER, "%s failed with %s (%d) %s", call,
		error_cuda_name(err), (int)err, what);
}

void error_save(char *buf, size_t size)
{
	snprintf(buf, size, "%s", error_text());
}

const char *error_text(void)
{
	return sentence ? sentence : "";
}

const char *error_name(int code)
{
	switch (code) {
	case STAYPUT_OK:
		return "no error";
	case STAYPUT_ERR_INVALID:
		return "invalid argument";
	case STAYPUT_ERR_NOT_FOUND:
		return "not found";
	case STAYPUT_ERR_BUSY:
		return "busy";
	case STAYPUT_ERR_DEVICE_MEMORY:
		return "out of device memory";
	case STAYPUT_ERR_HOST_MEMORY:
		return "out of host memory";
	case STAYPUT_ERR_DRIVER:
		return "CUDA driver error";
	case STAYPUT_ERR_IO:
		return "input or output error";
	case STAYPUT_ERR_UNSUPPORTED:
		return "unsupported";
	case STAYPUT_ERR_CORRUPT:
		return "corrupt contents";
	}
	return "unknown code";
}
