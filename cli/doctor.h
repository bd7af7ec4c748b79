/* SPDX-License-Identifier: Apache-2.0 */
/* Findings of `stayput doctor`, and who looks for them. */
#ifndef DOCTOR_H
#define DOCTOR_H

#include <stdbool.h>

enum level { GOOD, WARNING, BAD };

struct doctor;

/* Notes, and prints unless JSON is wanted, that `what` is so. `advice` NULL: nothing to do. */
void doctor_note(struct doctor *doctor, enum level level, const char *what,
	const char *advice, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

/* The driver, and each device by it; with `link` also how fast copies are. Returns the
 * memory of the largest device, 0 without one. */
double doctor_check_devices(struct doctor *doctor, bool link);

/* Memory, limits and nodes of the host, for a device with that much memory. */
void doctor_check_host(struct doctor *doctor, double device_bytes);

/* This program runs itself under either library with the first as its argument: the child
 * says whether the library is there, by its exit code. */
#define DOCTOR_CHILD "--is-preloaded"
int doctor_child(void);

#endif
