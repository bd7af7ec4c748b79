/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pauses and resumes that somebody outside asked for, a thread each. The server's thread
 * alone calls these; an operation goes on to its end, whether anybody waits for it or not.
 */
#ifndef CONTROL_JOB_H
#define CONTROL_JOB_H

#include <stdbool.h>
#include <sys/types.h>

#include "json.h"

struct job;
struct request;

enum { JOBS_MAX = 8 };

/* Begins what was asked for. When it ends, `wake`, an eventfd, can be read. NULL, with the
 * sentence set, and in *err STAYPUT_ERR_BUSY when JOBS_MAX are under way. */
struct job *job_start(const struct request *request, pid_t by, int wake, int *err);

bool job_has_ended(const struct job *job);

/* {"progress":...}; and once it has ended, {"result":...} or {"error":...}. */
void job_write_progress(struct json *j, const void *job);
void job_write_outcome(struct json *j, const void *job);

/* Nobody waits for it any more. */
void job_drop(struct job *job);

/* In a forked child: none of them is its own. */
void job_forget_all(void);

#endif
