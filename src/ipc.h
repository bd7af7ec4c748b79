/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region memory between processes: what the two sides agree on. Native CUDA IPC does not
 * take such memory. So the exporter gives out 64 bytes of our own, which name a socket; who
 * opens them connects there and is passed a file descriptor of the memory. The connection
 * stays: it is how the exporter knows what others hold.
 *
 * The socket is in the abstract namespace: it leaves nothing behind when its process is
 * killed, and is reached by processes of the same network namespace. Anybody can connect;
 * SO_PEERCRED says who it is. One message is one packet, so that there are no halves.
 *
 * Functions here take no lock and keep no state.
 */
#ifndef IPC_H
#define IPC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <cuda.h>

#include "stayput.h"

enum { IPC_VERSION = 1, IPC_TOKEN = 16 }; /* goes up when anything below changes */

/* What cudaIpcGetMemHandle() gives out. */
struct ipc_handle {
	char magic[8];
	uint32_t version;
	int32_t pid; /* of the exporter, as it sees itself; for messages only */
	unsigned char token[IPC_TOKEN]; /* names the exporter's socket */
	uint64_t id;                    /* of the allocation; never used twice */
	uint64_t base;                  /* its address at the exporter */
	uint64_t unused[2];
};

_Static_assert(sizeof(struct ipc_handle) == sizeof(CUipcMemHandle), "a handle of CUDA's");

enum ipc_verb { IPC_OPEN = 1, IPC_CLOSE = 2 };

struct ipc_request {
	uint32_t version;
	uint32_t verb;
	uint64_t sequence;
	uint64_t id, base; /* of a handle */
};

enum ipc_answer {
	IPC_GRANTED = 1, /* a descriptor comes along */
	IPC_CLOSED,
	IPC_GONE,       /* no such allocation any more */
	IPC_PAUSED,     /* no memory behind it */
	IPC_PASSING,    /* being paused or resumed: to be asked again */
	IPC_OTHER_USER, /* and not root */
	IPC_FAILED,     /* the driver's `error` */
};

struct ipc_reply {
	uint32_t version;
	uint32_t answer;
	uint64_t sequence; /* of the request */
	int32_t error;
	uint32_t unused;
	uint64_t block_size;   /* of the memory, which is mapped whole */
	uint64_t offset, size; /* of the allocation in it */
	CUuuid uuid;           /* of the device that it is on */
	char tag[STAYPUT_TAG_SIZE];
};

/* The bytes are a handle of ours, of whatever version. */
bool ipc_is_ours(const void *handle);

void ipc_fill_handle(struct ipc_handle *handle, const unsigned char token[IPC_TOKEN]);

/* A listening socket that does not block, under a name made from random bytes, which are
 * put in `token`. -1 with errno. */
int ipc_listen(unsigned char token[IPC_TOKEN]);

/* A socket, -1 with errno; and its connecting to such a name, with a time limit on
 * everything that it waits for. False with errno. */
int ipc_socket(void);
bool ipc_connect(int socket, const unsigned char token[IPC_TOKEN]);

/* Who is at the other end. False when the system does not say. */
bool ipc_peer(int socket, pid_t *pid, uid_t *uid);

/* One reply, with the descriptor unless that is -1; and its arrival, where *fd is then -1 or
 * the caller's to close, within the socket's time limit. False with errno. */
bool ipc_send_reply(int socket, const struct ipc_reply *reply, int fd);
bool ipc_receive_reply(int socket, struct ipc_reply *reply, int *fd);

#endif
