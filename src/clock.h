/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLOCK_H
#define CLOCK_H

#include <time.h>

/* Seconds on a clock that only goes forward. */
static inline double clock_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Adds the seconds since `start` to *total. */
static inline void clock_add(double *total, double start)
{
	*total += clock_now() - start;
}

#endif
