/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "descriptor.h"

enum { BACKLOG = 64, ANSWER_SECONDS = 10 };

static const char magic[8] = "stayput";

bool ipc_is_ours(const void *handle)
{
	return memcmp(handle, magic, sizeof magic) == 0;
}

void ipc_fill_handle(struct ipc_handle *handle, const unsigned char token[IPC_TOKEN])
{
	*handle = (struct ipc_handle){.version = IPC_VERSION, .pid = getpid()};
	memcpy(handle->magic, magic, sizeof magic);
	memcpy(handle->token, token, IPC_TOKEN);
}

/* Abstract names begin with a zero byte, and end where the length says. */
static socklen_t name_socket(
	struct sockaddr_un *name, const unsigned char token[IPC_TOKEN])
{
	int len;

	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	len = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "stayput-ipc-");
	for (int i = 0; i < IPC_TOKEN; i++)
		len += snprintf(name->sun_path + 1 + len, sizeof name->sun_path - 1 - len,
			"%02x", token[i]);
	return offsetof(struct sockaddr_un, sun_path) + 1 + len;
}

static int close_failed(int fd)
{
	int saved = errno;

	close(fd);
	errno = saved;
	return -1;
}

int ipc_listen(unsigned char token[IPC_TOKEN])
{
	struct sockaddr_un name;
	socklen_t len;
	int fd;

	if (getrandom(token, IPC_TOKEN, 0) != IPC_TOKEN)
		return -1;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	len = name_socket(&name, token);
	if (bind(fd, (struct sockaddr *)&name, len) != 0 || listen(fd, BACKLOG) != 0)
		return close_failed(fd);
	return fd;
}

int ipc_socket(void)
{
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

bool ipc_connect(int fd, const unsigned char token[IPC_TOKEN])
{
	const struct timeval limit = {.tv_sec = ANSWER_SECONDS};
	struct sockaddr_un name;
	socklen_t len = name_socket(&name, token);

	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
	       setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
	       connect(fd, (struct sockaddr *)&name, len) == 0;
}

bool ipc_peer(int socket, pid_t *pid, uid_t *uid)
{
	struct ucred credentials;
	socklen_t len = sizeof credentials;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &len) != 0)
		return false;
	*pid = credentials.pid;
	*uid = credentials.uid;
	return true;
}

union control {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

bool ipc_send_reply(int socket, const struct ipc_reply *reply, int fd)
{
	struct ipc_reply copy = *reply;
	struct iovec part = {&copy, sizeof copy};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	union control control = {.bytes = {0}};

	if (fd >= 0) {
		struct cmsghdr *c;

		message.msg_control = &control;
		message.msg_controllen = sizeof control;
		c = CMSG_FIRSTHDR(&message);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof *reply;
}

static int passed_descriptor(struct msghdr *message)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(message);
	int fd = -1;

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		c->cmsg_len == CMSG_LEN(sizeof fd))
		memcpy(&fd, CMSG_DATA(c), sizeof fd);
	return fd;
}

static double limit_of(int socket)
{
	struct timeval limit = {0};
	socklen_t len = sizeof limit;

	getsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, &len);
	return limit.tv_sec + limit.tv_usec * 1e-6;
}

/* The socket's own limit begins anew after each signal. */
static bool await_packet(int socket)
{
	struct pollfd packet = {.fd = socket, .events = POLLIN};
	double deadline = clock_now() + limit_of(socket), left;
	int ready;

	do {
		left = deadline - clock_now();
		ready = poll(&packet, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
	} while (ready < 0 && errno == EINTR && left > 0);
	if (ready == 0 || (ready < 0 && errno == EINTR))
		errno = EAGAIN;
	return ready > 0;
}

bool ipc_receive_reply(int socket, struct ipc_reply *reply, int *fd)
{
	ino_t inode = descriptor_inode(socket);
	struct iovec part = {reply, sizeof *reply};
	union control control;
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof control};
	ssize_t n = -1;

	if (await_packet(socket)) {
		errno = EBADF;
		if (descriptor_is(socket, inode))
			n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	}
	*fd = n > 0 ? passed_descriptor(&message) : -1;
	if (n == sizeof *reply && !(message.msg_flags & MSG_TRUNC) &&
		reply->version == IPC_VERSION)
		return true;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	if (n >= 0)
		errno = n == 0 ? ECONNRESET : EPROTO;
	return false;
}
