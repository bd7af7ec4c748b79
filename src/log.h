/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line to standard error or a file: formatted on the stack, written by one write(),
 * no allocation, errno kept. Takes no lock; never called with one held.
 */
#ifndef LOG_H
#define LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Until this is called, lines up to LOG_WARN go to standard error. `path` NULL: standard
 * error. A path that cannot be opened is reported there. `path` must stay allocated. */
void log_setup(enum log_level level, const char *path);

void log_line(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
