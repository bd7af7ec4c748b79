/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations under way, and what the last one has come to, for whoever looks from
 * outside. Records are under the lock; how far an operation is, is read without it.
 */
#ifndef HISTORY_H
#define HISTORY_H

#include "json.h"

struct operation;
struct stayput_report;

void history_begin_locked(struct operation *op);
void history_end_locked(struct operation *op);

/* In a forked child: the parent's are not its own. */
void history_forget_locked(void);

/* Keeps how the operation ended, in place of the one before; the sentence is
 * error_text(). Before operation_end(). */
void history_note(
	const struct operation *op, int err, const struct stayput_report *report);

/* "running":[...],"last":{...} or null */
void history_write(struct json *j);

#endif
