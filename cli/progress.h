/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far pauses and resumes are, on standard error: on a terminal one line that is
 * written over, elsewhere a line at first and after each second of the operation.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

struct progress {
	double bytes, total, seconds; /* as a process has told; all 0 before */
	double told;                  /* the last plain line's seconds */
	bool begun;
};

/* For a terminal: `count` operations as one. `verb` is "pausing", "resuming". */
void progress_draw(const char *verb, const struct progress *list, size_t count);
/* Takes that line away again. */
void progress_clear(void);

/* For files and pipes; says nothing before its time. */
void progress_tell(const char *verb, int pid, struct progress *progress);

/* Standard error is a terminal. */
bool progress_on_terminal(void);

#endif
