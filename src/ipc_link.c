/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc_link.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "descriptor.h"
#include "error.h"
#include "lock.h"
#include "log.h"

enum { FAILURES = 32 }; /* more than there are */

static struct ipc_link *links; /* under the lock */

/* A program may try until it goes: each kind of failure, as its format says, is news once. */
static bool is_news(const char *format)
{
	static const char *_Atomic told[FAILURES];

	for (int i = 0; i < FAILURES; i++) {
		const char *known = NULL;

		if (atomic_compare_exchange_strong(&told[i], &known, format))
			return true;
		if (known == format)
			return false;
	}
	return false;
}

CUresult ipc_link_fail(CUresult err, const char *format, ...)
{
	char sentence[512];
	va_list args;

	va_start(args, format);
	vsnprintf(sentence, sizeof sentence, format, args);
	va_end(args);
	error_set(STAYPUT_ERR_IO, "%s", sentence);
	log_line(is_news(format) ? LOG_WARN : LOG_INFO, "cudaIpcOpenMemHandle: %s",
		sentence);
	return err;
}

/* While it is busy, whoever has it finds out. */
static bool is_lost(const struct ipc_link *link)
{
	return !link->busy && link->fd >= 0 && !descriptor_is(link->fd, link->inode);
}

struct ipc_link *ipc_link_find_locked(const unsigned char token[IPC_TOKEN])
{
	struct ipc_link *link = links;

	while (link && (memcmp(link->token, token, IPC_TOKEN) != 0 || is_lost(link)))
		link = link->next;
	if (link)
		return link;
	link = calloc(1, sizeof *link);
	if (!link)
		return NULL;
	memcpy(link->token, token, IPC_TOKEN);
	link->fd = -1;
	link->next = links;
	links = link;
	return link;
}

void ipc_link_leave_locked(struct ipc_link *link)
{
	struct ipc_link **at = &links;

	link->busy = false;
	lock_notify();
	if (link->imports > 0)
		return;
	while (*at != link)
		at = &(*at)->next;
	*at = link->next;
	descriptor_close(link->fd, link->inode);
	free(link);
}

/* Made and noted under the lock, so that a fork sees it. */
static bool open_socket(struct ipc_link *link)
{
	lock_take();
	link->fd = ipc_socket();
	link->inode = descriptor_inode(link->fd);
	lock_drop();
	return link->fd >= 0;
}

static void close_socket(struct ipc_link *link)
{
	lock_take();
	descriptor_close(link->fd, link->inode);
	link->fd = -1;
	lock_drop();
}

static CUresult reach(struct ipc_link *link, const struct ipc_handle *handle)
{
	uid_t uid, own = geteuid();
	pid_t pid;

	if (!ipc_connect(link->fd, handle->token))
		return ipc_link_fail(errno == ECONNREFUSED ? CUDA_ERROR_MAP_FAILED
							   : CUDA_ERROR_OPERATING_SYSTEM,
			"process %d, whose handle this is, cannot be reached (%s): it is "
			"gone, or in another network namespace",
			handle->pid, strerror(errno));
	if (!ipc_peer(link->fd, &pid, &uid) || (uid != own && uid != 0 && own != 0))
		return ipc_link_fail(CUDA_ERROR_NOT_PERMITTED,
			"process %d, whose handle this is, is of another user",
			handle->pid);
	return CUDA_SUCCESS;
}

static CUresult connect_to_exporter(
	struct ipc_link *link, const struct ipc_handle *handle)
{
	CUresult err;

	if (link->fd >= 0)
		return CUDA_SUCCESS;
	if (!open_socket(link))
		return ipc_link_fail(CUDA_ERROR_OPERATING_SYSTEM,
			"no socket for opening a handle of process %d: %s", handle->pid,
			strerror(errno));
	err = reach(link, handle);
	if (err != CUDA_SUCCESS)
		close_socket(link);
	return err;
}

static bool send_request(
	struct ipc_link *link, enum ipc_verb verb, const struct ipc_handle *handle)
{
	const struct ipc_request q = {
		IPC_VERSION, verb, ++link->sequence, handle->id, handle->base};

	errno = EBADF;
	return descriptor_is(link->fd, link->inode) &&
	       send(link->fd, &q, sizeof q,
		       MSG_NOSIGNAL | (link->mute ? MSG_DONTWAIT : 0)) == sizeof q;
}

/* Answers that were not waited for come before the one that is. */
static bool ask(struct ipc_link *link, enum ipc_verb verb,
	const struct ipc_handle *handle, struct ipc_reply *reply, int *fd)
{
	*fd = -1;
	if (!send_request(link, verb, handle))
		return false;
	while (ipc_receive_reply(link->fd, reply, fd)) {
		link->mute = false;
		if (reply->sequence == link->sequence)
			return true;
		if (*fd >= 0)
			close(*fd);
	}
	link->mute = errno == EAGAIN;
	return false;
}

/* Takes what has come since, which nobody waits for any more. */
static bool speaks_again(const struct ipc_link *link)
{
	struct ipc_reply late;
	bool any = false;

	while (descriptor_is(link->fd, link->inode) &&
		recv(link->fd, &late, sizeof late, MSG_DONTWAIT) > 0)
		any = true;
	return any;
}

static CUresult say_no(const struct ipc_handle *handle, const struct ipc_reply *reply)
{
	switch (reply->answer) {
	case IPC_GONE:
		return ipc_link_fail(CUDA_ERROR_INVALID_VALUE,
			"process %d has freed what this handle named", handle->pid);
	case IPC_PAUSED:
		return ipc_link_fail(CUDA_ERROR_ILLEGAL_STATE,
			"region %.63s is paused in process %d: resume it there first",
			reply->tag, handle->pid);
	case IPC_OTHER_USER:
		return ipc_link_fail(CUDA_ERROR_NOT_PERMITTED,
			"process %d, whose handle this is, is of another user",
			handle->pid);
	case IPC_FAILED:
		return ipc_link_fail((CUresult)reply->error,
			"process %d could not export the memory of this handle: %s (%d)",
			handle->pid, error_cuda_name((CUresult)reply->error),
			reply->error);
	}
	return ipc_link_fail(
		CUDA_ERROR_OPERATING_SYSTEM, "process %d answered nonsense", handle->pid);
}

/* What may be granted yet is not wanted any more. */
static CUresult give_up(
	struct ipc_link *link, const struct ipc_handle *handle, int os_error)
{
	bool alive = os_error == EAGAIN || os_error == EPROTO || os_error == EBADF;

	send_request(link, IPC_CLOSE, handle);
	return ipc_link_fail(alive ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_MAP_FAILED,
		"process %d, whose handle this is, has ended or does not answer (%s)",
		handle->pid, strerror(os_error));
}

/* The system drops a descriptor that there is no room for. */
static CUresult refuse_lost(struct ipc_link *link, const struct ipc_handle *handle)
{
	ipc_link_close(link, handle);
	return ipc_link_fail(CUDA_ERROR_OPERATING_SYSTEM,
		"no file descriptor is free here for the memory of process %d",
		handle->pid);
}

CUresult ipc_link_fetch(struct ipc_link *link, const struct ipc_handle *handle,
	struct ipc_reply *reply, int *fd)
{
	CUresult err = connect_to_exporter(link, handle);

	if (err != CUDA_SUCCESS)
		return err;
	if (!ask(link, IPC_OPEN, handle, reply, fd))
		return give_up(link, handle, errno);
	if (reply->answer == IPC_GRANTED)
		return *fd >= 0 ? CUDA_SUCCESS : refuse_lost(link, handle);
	if (*fd >= 0)
		close(*fd);
	return reply->answer == IPC_PASSING ? CUDA_ERROR_NOT_READY
					    : say_no(handle, reply);
}

void ipc_link_close(struct ipc_link *link, const struct ipc_handle *handle)
{
	struct ipc_reply reply;
	int fd;

	if (link->mute && !speaks_again(link)) {
		send_request(link, IPC_CLOSE, handle);
		return;
	}
	ask(link, IPC_CLOSE, handle, &reply, &fd);
	if (fd >= 0)
		close(fd);
}

void ipc_link_forget_all_locked(void)
{
	for (const struct ipc_link *link = links; link; link = link->next)
		descriptor_close(link->fd, link->inode);
	links = NULL;
}
