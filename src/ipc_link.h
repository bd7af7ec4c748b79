/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An importer's connection to an exporter: one for each, for as long as something of it is
 * open here. One thread at a time uses it, which has marked it busy under the lock, waiting
 * with lock_wait() while another has; so requests and answers come in turn.
 */
#ifndef IPC_LINK_H
#define IPC_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc.h"

struct ipc_link {
	unsigned char token[IPC_TOKEN];
	int fd;            /* -1: not connected yet */
	ino_t inode;       /* of fd, which the program may have closed */
	uint64_t sequence; /* of the last request; only by who has it busy */
	bool mute;         /* the last request was not answered in time; as sequence */
	bool busy;
	size_t imports; /* what is open over it */
	struct ipc_link *next;
};

/* The link to that exporter, made when it is new, or when the program has closed the other's
 * descriptor; NULL without memory. */
struct ipc_link *ipc_link_find_locked(const unsigned char token[IPC_TOKEN]);

/* It is not busy any more; and it ends when nothing is open over it. */
void ipc_link_leave_locked(struct ipc_link *link);

/* Connects if need be, and asks for the memory: a descriptor, and what it is. On an error
 * the sentence is set and logged, as ipc_import_open() says; but of CUDA_ERROR_NOT_READY
 * nothing is said: the memory is being paused or resumed. */
CUresult ipc_link_fetch(struct ipc_link *link, const struct ipc_handle *handle,
	struct ipc_reply *reply, int *fd);

/* Tells the exporter that the memory is not mapped here any more, and waits until it knows:
 * what it pauses then is free. But one that has not answered lately is not waited for. */
void ipc_link_close(struct ipc_link *link, const struct ipc_handle *handle);

/* Sets the sentence for a handle that could not be opened, and logs it: as a warning when
 * nothing of its kind has been. */
CUresult ipc_link_fail(CUresult err, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* In a forked child: the connections are the parent's. Frees no memory. */
void ipc_link_forget_all_locked(void);

#endif
