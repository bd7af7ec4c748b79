/* SPDX-License-Identifier: Apache-2.0 */
#include "control_job.h"

#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "clock.h"
#include "control_request.h"
#include "descriptor.h"
#include "error.h"
#include "lifecycle.h"
#include "log.h"
#include "operation.h"
#include "report.h"
#include "thread.h"
#include "work.h"

struct job {
	bool used, dropped; /* the server's */
	_Atomic bool ended; /* what follows is its thread's until then */
	struct request request;
	struct asker asker;
	double start;
	int wake;
	ino_t wake_inode;
	int err;
	char sentence[WORK_SENTENCE];
	struct stayput_report report;
};

static struct job jobs[JOBS_MAX];

bool job_has_ended(const struct job *job)
{
	return atomic_load_explicit(&job->ended, memory_order_acquire);
}

/* As options want it, where 0 is what the environment says. */
static int64_t wait_of(const struct request *r)
{
	if (r->wait_ms < 0)
		return 0;
	return r->wait_ms > 0 ? r->wait_ms : -1;
}

static void operate(struct job *job)
{
	const struct request *r = &job->request;
	const char *tags[REQUEST_TAGS];
	const struct stayput_options options = {.struct_size = sizeof options,
		.policy = r->policy,
		.no_block = r->no_block,
		.only_if_idle = r->check,
		.fail_if_held = r->fail_if_held,
		.wait_ms = wait_of(r)};

	for (size_t i = 0; i < r->tag_count; i++)
		tags[i] = r->tags[i];
	if (r->what == REQUEST_PAUSE)
		job->err = lifecycle_pause(
			tags, r->tag_count, &options, &job->asker, &job->report);
	else
		job->err = lifecycle_resume(
			tags, r->tag_count, &options, &job->asker, &job->report);
	if (job->err != STAYPUT_OK)
		error_save(job->sentence, sizeof job->sentence);
}

static void *run(void *argument)
{
	static const uint64_t one = 1;
	struct job *job = argument;
	int wake = job->wake;
	ino_t wake_inode = job->wake_inode;

	operate(job);
	/* From here the server may give it to the next request. */
	atomic_store_explicit(&job->ended, true, memory_order_release);
	if (!descriptor_is(wake, wake_inode) || write(wake, &one, sizeof one) < 0)
		log_line(LOG_DEBUG, "the server of STAYPUT_CONTROL cannot be woken");
	return NULL;
}

static struct job *find_free(void)
{
	for (size_t i = 0; i < JOBS_MAX; i++)
		if (!jobs[i].used || (jobs[i].dropped && job_has_ended(&jobs[i])))
			return &jobs[i];
	return NULL;
}

struct job *job_start(const struct request *request, pid_t by, int wake, int *err)
{
	struct job *job = find_free();

	if (!job) {
		*err = error_set(STAYPUT_ERR_BUSY,
			"%d pauses and resumes are under way or wait already", JOBS_MAX);
		return NULL;
	}
	*job = (struct job){.used = true,
		.request = *request,
		.asker.pid = by,
		.start = clock_now(),
		.wake = wake,
		.wake_inode = descriptor_inode(wake),
		.report.struct_size = sizeof job->report};
	log_line(LOG_INFO, "process %d asks for a %s", (int)by,
		request->what == REQUEST_PAUSE ? "pause" : "resume");
	if (thread_start("stayput-job", run, job))
		return job;
	job->used = false;
	*err = error_set(
		STAYPUT_ERR_HOST_MEMORY, "no thread could be started for the request");
	return NULL;
}

void job_write_progress(struct json *j, const void *about)
{
	const struct job *job = about;
	unsigned long long done =
		atomic_load_explicit(&job->asker.done, memory_order_relaxed);
	unsigned long long total =
		atomic_load_explicit(&job->asker.total, memory_order_relaxed);

	json_add(j, "{\"progress\":{\"bytes\":%llu,\"total\":%llu,\"seconds\":", done,
		total);
	json_decimal(j, clock_now() - job->start);
	json_add(j, "}}");
}

void job_write_outcome(struct json *j, const void *about)
{
	const struct job *job = about;
	bool failed = job->err != STAYPUT_OK;

	json_add(j, failed ? "{\"error\":{" : "{\"result\":");
	if (failed)
		report_write_code(j, job->err, job->sentence);
	if (failed && job->report.device_count > 0)
		json_add(j, ",\"report\":");
	if (!failed || job->report.device_count > 0)
		report_write(j, &job->report);
	json_add(j, failed ? "}}" : "}");
}

void job_drop(struct job *job)
{
	job->dropped = true;
}

void job_forget_all(void)
{
	for (size_t i = 0; i < JOBS_MAX; i++)
		jobs[i].used = false;
}
