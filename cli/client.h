/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control sockets of processes under stayput: where they are, and one request or answer
 * at a time over each. Sockets are those of the program's own user; root sees everybody's;
 * with STAYPUT_SOCKETS set, only those in the folder that it names.
 * A folder or socket that belongs to another user than its place says is passed over.
 */
#ifndef CLIENT_H
#define CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include <cjson/cJSON.h>

struct process {
	pid_t pid;
	uid_t uid;
	dev_t device; /* of the socket's file, with its number there */
	ino_t inode;
	int fd;   /* connected, never blocks; -1 once it has ended */
	char *in; /* received and not yet taken */
	size_t in_len, in_size;
};

struct processes {
	struct process *list;
	size_t count;
};

/* Adds the processes that listen and are not in the list yet, connected, by ascending pid
 * among themselves. Unlinks the sockets of processes that have ended. */
void client_find(struct processes *found);

/* All words are pids, and there is one at least; else it says so, for `command`. */
bool client_pids(const char *command, char **words, int count);

/* Finds and keeps those that `words` name by pid, or all of the user's when `all`. Says
 * what is missing and sets *missing to how many are; the rest are found nevertheless. */
void client_choose(
	struct processes *found, char **words, size_t count, bool all, size_t *missing);

void client_drop(struct processes *found, size_t index);
void client_free(struct processes *found);

/* A request with only version and verb. */
cJSON *client_request(const char *verb);

/* False when the connection is broken. Requests are small: a full socket counts as that. */
bool client_send(struct process *process, const cJSON *request);

/* Takes in what has arrived. False once the connection is broken or at its end, or a line is
 * too long: fd is -1 then. What came before can be taken still. */
bool client_fill(struct process *process);

/* The next whole answer that has arrived, without control characters, to be freed by the
 * caller, or NULL; after what is no JSON object fd is -1. */
cJSON *client_next(struct process *process);

/* Asks all of the list for their snapshots and waits two seconds at most, for all together.
 * NULL where none came; the caller frees them. */
void client_show(struct process *list, size_t count, cJSON **snapshots);

/* Numbers and words of an object; 0 and "" where it has none. */
double number_of(const cJSON *object, const char *name);
const char *word_of(const cJSON *object, const char *name);

#endif
