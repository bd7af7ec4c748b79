/* SPDX-License-Identifier: Apache-2.0 */
#include "control_client.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "control_job.h"
#include "control_request.h"
#include "descriptor.h"
#include "error.h"
#include "json.h"
#include "report.h"
#include "snapshot.h"

typedef void write_answer(struct json *j, const void *about);

static bool is_answering(const struct client *c)
{
	return c->out != NULL;
}

static void flush(struct client *c)
{
	while (c->out_at < c->out_len) {
		ssize_t n = send(c->fd, c->out + c->out_at, c->out_len - c->out_at,
			MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			c->broken |= errno != EAGAIN;
			return;
		}
		c->out_at += n;
		c->active = clock_now();
	}
	free(c->out);
	c->out = NULL;
	c->since = c->active;
	c->broken |= c->closing;
}

/* Begins to send an answer, of which there is none yet. */
static void answer(struct client *c, write_answer *write, const void *about)
{
	struct json j = {.len = 0};
	char *text = NULL;

	/* What it is about may have grown since it was measured. */
	do {
		size_t size = j.len + 1024;

		free(text);
		text = malloc(size);
		if (!text) {
			c->broken = true;
			return;
		}
		j = (struct json){.buf = text, .size = size};
		write(&j, about);
		json_add(&j, "\n");
	} while (j.len >= j.size);
	c->out = text;
	c->out_len = j.len;
	c->out_at = 0;
	c->since = c->active = clock_now();
	flush(c);
}

struct failure {
	int code;
	const char *sentence;
};

static void write_failure(struct json *j, const void *about)
{
	const struct failure *f = about;

	json_add(j, "{\"error\":{");
	report_write_code(j, f->code, f->sentence);
	json_add(j, "}}");
}

static void refuse(struct client *c, int code, const char *sentence)
{
	answer(c, write_failure, &(struct failure){code, sentence});
}

static void refuse_and_close(struct client *c, int code, const char *sentence)
{
	c->closing = true;
	refuse(c, code, sentence);
}

static void write_snapshot(struct json *j, const void *unused)
{
	json_add(j, "{\"result\":");
	snapshot_add(j, unused);
	json_add(j, "}");
}

static void operate(struct client *c, const struct request *request, int wake)
{
	int err;

	c->job = job_start(request, c->pid, wake, &err);
	c->progressed = clock_now();
	if (!c->job)
		refuse(c, err, error_text());
}

static void handle(struct client *c, const char *line, size_t len, int wake)
{
	struct request request;
	enum request_result result = request_read(&request, line, len);

	if (result == REQUEST_GARBAGE)
		refuse_and_close(c, STAYPUT_ERR_INVALID, request.why);
	else if (result == REQUEST_BAD)
		refuse(c, STAYPUT_ERR_INVALID, request.why);
	else if (request.what == REQUEST_SHOW)
		answer(c, write_snapshot, NULL);
	else
		operate(c, &request, wake);
}

static void receive(struct client *c)
{
	ssize_t n;

	if (!c->in)
		c->in = malloc(REQUEST_SIZE);
	if (!c->in) {
		c->broken = true;
		return;
	}
	n = recv(c->fd, c->in + c->in_len, REQUEST_SIZE - c->in_len, MSG_DONTWAIT);
	if (n < 0) {
		c->broken |= errno != EAGAIN && errno != EINTR;
		return;
	}
	c->active = clock_now();
	if (c->in_len == 0)
		c->since = c->active;
	c->in_len += n;
	c->eof = n == 0;
}

/* Deals with the line that has come, if it is whole. True when there was one. */
static bool take_line(struct client *c, int wake)
{
	char *end = c->in_len ? memchr(c->in, '\n', c->in_len) : NULL;
	size_t len = end ? (size_t)(end - c->in) : c->in_len;
	size_t used = end ? len + 1 : len;

	if (!end && len == REQUEST_SIZE) {
		refuse_and_close(c, STAYPUT_ERR_INVALID,
			"the request is longer than 65536 bytes with its newline");
		return false;
	}
	if (!end && !c->eof)
		return false;
	if (!end && len == 0) {
		c->broken = true;
		return false;
	}
	handle(c, c->in, len, wake);
	c->in_len -= used;
	memmove(c->in, c->in + used, c->in_len);
	return true;
}

static void tell_of_job(struct client *c)
{
	if (job_has_ended(c->job)) {
		answer(c, job_write_outcome, c->job);
		job_drop(c->job);
		c->job = NULL;
	} else if (clock_now() - c->progressed >= PROGRESS_SECONDS) {
		answer(c, job_write_progress, c->job);
		c->progressed = clock_now();
	}
}

static void check_time(struct client *c)
{
	if (c->job && !is_answering(c))
		return;
	if (clock_now() < client_deadline(c))
		return;
	if (is_answering(c))
		c->broken = true;
	else
		refuse_and_close(c, STAYPUT_ERR_INVALID,
			"the request was not complete 10 s after its first byte");
}

void client_open(struct client *c, int fd, pid_t pid, uid_t uid)
{
	char sentence[128];

	*c = (struct client){.fd = fd,
		.inode = descriptor_inode(fd),
		.pid = pid,
		.active = clock_now()};
	if (uid == geteuid() || uid == 0)
		return;
	snprintf(sentence, sizeof sentence,
		"a process of user %u is not for user %u to look at or to steer",
		(unsigned)geteuid(), (unsigned)uid);
	refuse_and_close(c, STAYPUT_ERR_IO, sentence);
}

bool client_step(struct client *c, bool readable, int wake)
{
	bool took = false;

	if (is_answering(c))
		flush(c);
	if (c->job && !is_answering(c))
		tell_of_job(c);
	if (readable && client_events(c) == POLLIN)
		receive(c);
	if (!c->job && !is_answering(c) && !c->closing && !c->broken)
		took = take_line(c, wake);
	if (c->in_len == 0) {
		free(c->in);
		c->in = NULL;
	}
	if (!c->broken)
		check_time(c);
	return took && !c->broken && !c->job && !is_answering(c);
}

short client_events(const struct client *c)
{
	if (is_answering(c))
		return POLLOUT;
	return c->job || c->eof ? 0 : POLLIN;
}

double client_deadline(const struct client *c)
{
	if (is_answering(c))
		return c->since + CLIENT_SECONDS;
	if (c->job)
		return c->progressed + PROGRESS_SECONDS;
	return c->in_len > 0 ? c->since + CLIENT_SECONDS : INFINITY;
}

void client_close(struct client *c)
{
	if (c->job)
		job_drop(c->job);
	free(c->in);
	free(c->out);
	*c = (struct client){.fd = -1};
}
