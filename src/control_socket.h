/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the socket is and who may be there. The folder has to be the user's own, and
 * nothing is deleted but sockets that nobody listens at. No lock.
 */
#ifndef CONTROL_SOCKET_H
#define CONTROL_SOCKET_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

/* Listens at `path`, or with NULL at PID.sock in the user's folder, whose address is then
 * in *address. -1 after a warning. */
int control_socket_listen(const char *path, struct sockaddr_un *address);

/* Another connection, with the process at its other end; -1 with errno when there is none. */
int control_socket_accept(int listener, pid_t *pid, uid_t *uid);

/* Calls each(path) for every socket of a process that is gone, in the folder of `own`. */
void control_socket_sweep(
	const struct sockaddr_un *own, void (*each)(const struct sockaddr_un *stale));

/* Deletes the socket if nobody listens at it. True when it is gone. */
bool control_socket_remove_stale(const struct sockaddr_un *address);

#endif
