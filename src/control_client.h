/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection to the server: a line in, lines out, and again. What it has not taken of
 * an answer is kept, and nothing is read from it meanwhile, so that what it can make this
 * process keep has an end. The server's thread alone calls these.
 */
#ifndef CONTROL_CLIENT_H
#define CONTROL_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct job;

enum { REQUEST_SIZE = 64 << 10 }; /* of a line, with its end */

/* How long it may take to send a request, and to take an answer. */
#define CLIENT_SECONDS 10.0

/* How often it hears how far its operation is. */
#define PROGRESS_SECONDS 0.1

struct client {
	int fd;
	ino_t inode;
	pid_t pid;
	char *in, *out; /* bytes that have come, and the answer; or NULL */
	size_t in_len, out_len, out_at;
	double since;      /* when the request began to come, or the answer to go */
	double active;     /* when anything came or went last */
	double progressed; /* when it last heard of its operation */
	struct job *job;
	bool eof;     /* it will send no more */
	bool closing; /* once the answer has gone */
	bool broken;  /* to be closed at once */
};

/* Takes over `fd`. Somebody who may not be there only gets an error. */
void client_open(struct client *c, int fd, pid_t pid, uid_t uid);

/* Does what can be done without waiting. `wake` as for job_start(). True when there is
 * more to be done at once. */
bool client_step(struct client *c, bool readable, int wake);

/* What to poll() for, and when client_step() is due at the latest, on clock_now(). */
short client_events(const struct client *c);
double client_deadline(const struct client *c);

/* Everything but the descriptor. */
void client_close(struct client *c);

#endif
