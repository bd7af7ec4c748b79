/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_SIZE = 1200 };

static _Atomic int max_level = LOG_WARN;
static _Atomic int output = STDERR_FILENO;

static const char *const level_names[] = {"error", "warning", "info", "debug"};

/* Where the reader of a pipe has gone, the program must not end for a line of ours. */
static void write_line(const char *line, size_t len)
{
	const struct timespec at_once = {0};
	sigset_t pipe_signal, before, pending;

	sigemptyset(&pipe_signal);
	sigaddset(&pipe_signal, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
	if (write(atomic_load_explicit(&output, memory_order_relaxed), line, len) < 0 &&
		errno == EPIPE && !sigismember(&pending, SIGPIPE))
		sigtimedwait(&pipe_signal, NULL, &at_once);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void log_line(enum log_level level, const char *format, ...)
{
	char line[LINE_SIZE];
	int saved = errno;
	va_list args;
	int len, rest;

	if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed))
		return;
	len = snprintf(
		line, sizeof line, "stayput[%d] %s: ", (int)getpid(), level_names[level]);
	va_start(args, format);
	rest = vsnprintf(line + len, sizeof line - len - 1, format, args);
	va_end(args);
	len += rest < 0 ? 0 : rest;
	if (len > (int)sizeof line - 2)
		len = sizeof line - 2;
	line[len++] = '\n';
	write_line(line, len);
	errno = saved;
}

void log_setup(enum log_level level, const char *path)
{
	int saved = errno;
	int fd;

	atomic_store(&max_level, level);
	if (path) {
		fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
		if (fd >= 0)
			atomic_store(&output, fd);
		else
			log_line(LOG_WARN,
				"STAYPUT_LOG_FILE: %s cannot be opened (%s); "
				"using standard error",
				path, strerror(errno));
	}
	errno = saved;
}
