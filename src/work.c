/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "device.h"
#include "error.h"
#include "operation.h"
#include "thread.h"

struct run {
	struct work *work;
	int (*step)(struct work *work);
	pthread_t thread;
	bool started;
};

/* Sentences belong to threads, so each is taken along. */
static void *run(void *argument)
{
	struct run *r = argument;

	r->work->err = r->step(r->work);
	if (r->work->err != STAYPUT_OK)
		snprintf(r->work->sentence, WORK_SENTENCE, "%s", error_text());
	return NULL;
}

int work_run_all(struct operation *op, int (*step)(struct work *work))
{
	struct run runs[DEVICE_MAX];

	for (size_t i = 0; i < op->work_count; i++)
		runs[i] = (struct run){.work = &op->works[i], .step = step};
	for (size_t i = 1; i < op->work_count; i++) {
		runs[i].started = thread_create(&runs[i].thread, run, &runs[i]);
		if (!runs[i].started)
			operation_fail(op);
	}
	/* What found no thread is done here, after the first: works that wait for each
	 * other do not, once the operation has failed. */
	for (size_t i = 0; i < op->work_count; i++)
		if (!runs[i].started)
			run(&runs[i]);
	for (size_t i = 0; i < op->work_count; i++)
		if (runs[i].started)
			pthread_join(runs[i].thread, NULL);
	for (size_t i = 0; i < op->work_count; i++)
		if (op->works[i].err != STAYPUT_OK)
			return error_set(op->works[i].err, "%s", op->works[i].sentence);
	return STAYPUT_OK;
}

int work_enter(struct work *work)
{
	CUresult err = device_enter(work->device);

	return err == CUDA_SUCCESS
		       ? STAYPUT_OK
		       : error_driver("cuCtxPushCurrent", err,
				 "for a context that allocations were made in");
}
