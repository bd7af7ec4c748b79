/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread alone adds and removes clients, under the lock; so it may go through them
 * without. It never waits for a client: what cannot be sent at once ends the connection.
 * Descriptors are made and noted under the lock, so that a fork sees all of them. Of those
 * that the program has closed each ends by itself: without the listener nobody is let in,
 * and who has been is served as long as its own is open.
 */
#include "ipc_export.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "block.h"
#include "clock.h"
#include "descriptor.h"
#include "device.h"
#include "error.h"
#include "fork.h"
#include "lock.h"
#include "log.h"
#include "real.h"
#include "region.h"
#include "span.h"
#include "table.h"
#include "thread.h"

enum {
	CLIENTS_MAX = 1024,
	STRANGERS_MAX = 16,   /* of other users, who only wait to be told no */
	SILENCE_SECONDS = 10, /* of a client that holds nothing */
	TICK_MS = 1000,
	REQUESTS_AT_ONCE = 16, /* of one client, before others are heard */
};

struct lease {
	struct block *block; /* NULL: freed meanwhile */
	uint64_t id;
	struct lease *next;
};

struct client {
	int fd;
	ino_t inode;
	pid_t pid;
	bool stranger;
	double heard; /* when it said something last */
	struct lease *leases;
	struct client *next;
};

static struct {
	bool open;
	int listener, wake[2];
	ino_t listener_inode, wake_inode[2];
	unsigned char token[IPC_TOKEN];
	struct client *clients;
	size_t client_count, stranger_count;
	uint64_t settle_wanted, settled;
	uint64_t last_id;
} server;

static const char lost_sentence[] =
	"somebody has closed the socket for CUDA IPC; memory of this process cannot be "
	"shared any more";

static _Atomic bool exiting;

/* Before the driver's own exit handler, since it was registered later. */
static void note_exit(void)
{
	atomic_store(&exiting, true);
}

static void register_exit(void)
{
	atexit(note_exit);
}

/* By the program, which has the numbers now. */
static bool is_lost(void)
{
	return !descriptor_is(server.listener, server.listener_inode) ||
	       !descriptor_is(server.wake[0], server.wake_inode[0]) ||
	       !descriptor_is(server.wake[1], server.wake_inode[1]);
}

static void remove_lease_locked(struct lease **at)
{
	struct lease *lease = *at;

	*at = lease->next;
	if (lease->block)
		lease->block->leases--;
	free(lease);
}

static void drop_client(struct client *c)
{
	struct client **at = &server.clients;

	lock_take();
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	while (c->leases)
		remove_lease_locked(&c->leases);
	server.client_count--;
	server.stranger_count -= c->stranger;
	descriptor_close(c->fd, c->inode);
	lock_notify();
	lock_drop();
	free(c);
}

/* What a request is answered with, and what that needs. */
struct answer {
	struct ipc_reply reply;
	struct block *block;
	int fd;
};

static enum ipc_answer state_answer(const struct allocation *a)
{
	switch (a->block->state) {
	case STAYPUT_ACTIVE:
		return IPC_GRANTED;
	case STAYPUT_PAUSED:
		return IPC_PAUSED;
	}
	return IPC_PASSING;
}

/* From here the block stays where it is: the lease keeps it from being paused, and
 * `exporting` from being freed. */
static void lease_locked(struct client *c, const struct ipc_request *q, struct answer *a)
{
	const struct allocation *found = table_find_locked(q->base);
	struct lease *lease;

	a->reply.answer = IPC_GONE;
	if (!found || !found->block || found->export_id != q->id || atomic_load(&exiting))
		return;
	a->reply.answer = state_answer(found);
	strcpy(a->reply.tag, found->space->region->tag);
	if (a->reply.answer != IPC_GRANTED)
		return;
	lease = malloc(sizeof *lease);
	if (!lease) {
		a->reply.answer = IPC_FAILED;
		a->reply.error = CUDA_ERROR_OUT_OF_MEMORY;
		return;
	}
	*lease = (struct lease){.block = found->block, .id = q->id, .next = c->leases};
	c->leases = lease;
	a->block = found->block;
	a->block->leases++;
	a->block->exporting++;
	a->reply.block_size = a->block->size;
	a->reply.offset = found->base - a->block->base;
	a->reply.size = found->size;
}

static CUresult export_block(struct answer *a)
{
	struct device *dev = a->block->span->device;
	CUresult err = device_enter(dev);

	if (err != CUDA_SUCCESS)
		return err;
	err = driver()->cuDeviceGetUuid_v2(&a->reply.uuid, dev->ordinal);
	if (err == CUDA_SUCCESS)
		err = driver()->cuMemExportToShareableHandle(&a->fd, a->block->handle,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	device_leave();
	return err;
}

static void grant(struct client *c, const struct ipc_request *q, struct answer *a)
{
	CUresult err;

	lock_take();
	lease_locked(c, q, a);
	lock_drop();
	if (!a->block)
		return;
	err = export_block(a);
	lock_take();
	a->block->exporting--;
	if (err != CUDA_SUCCESS)
		remove_lease_locked(&c->leases);
	lock_notify();
	lock_drop();
	if (err != CUDA_SUCCESS) {
		a->fd = -1;
		a->reply.answer = IPC_FAILED;
		a->reply.error = err;
	}
}

static void end_lease(struct client *c, const struct ipc_request *q, struct answer *a)
{
	struct lease **at = &c->leases;

	lock_take();
	while (*at && (*at)->id != q->id)
		at = &(*at)->next;
	if (*at)
		remove_lease_locked(at);
	lock_drop();
	a->reply.answer = IPC_CLOSED;
}

/* False: the client is not to be talked to any more. One that has closed may not listen: it
 * was kept waiting too long, and what else it has open stays leased. */
static bool answer(struct client *c, const struct ipc_request *q)
{
	struct answer a = {
		.reply = {.version = IPC_VERSION, .sequence = q->sequence}, .fd = -1};
	bool sent;

	if (q->version != IPC_VERSION)
		return false;
	if (c->stranger)
		a.reply.answer = IPC_OTHER_USER;
	else if (q->verb == IPC_OPEN)
		grant(c, q, &a);
	else if (q->verb == IPC_CLOSE)
		end_lease(c, q, &a);
	else
		return false;
	sent = ipc_send_reply(c->fd, &a.reply, a.fd);
	if (a.fd >= 0)
		close(a.fd);
	return (sent || q->verb == IPC_CLOSE) && !c->stranger;
}

/* Requests are of one length: anything else is somebody else's protocol. */
static bool hear(struct client *c)
{
	struct ipc_request q;

	for (int i = 0; i < REQUESTS_AT_ONCE; i++) {
		ssize_t n;

		if (!descriptor_is(c->fd, c->inode))
			return false;
		n = recv(c->fd, &q, sizeof q, MSG_DONTWAIT | MSG_TRUNC);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		if (n != sizeof q || !answer(c, &q))
			return false;
		c->heard = clock_now();
	}
	return true;
}

static bool is_overdue(const struct client *c)
{
	return !c->leases && clock_now() - c->heard > SILENCE_SECONDS;
}

static void hear_all(const struct pollfd *polls, size_t count)
{
	struct client *c = server.clients, *next;

	for (size_t i = 0; i < count; i++, c = next) {
		short events = polls[i].revents;

		next = c->next;
		if (!descriptor_is(c->fd, c->inode) || events & (POLLHUP | POLLERR) ||
			(events & POLLIN && !hear(c)) || is_overdue(c))
			drop_client(c);
	}
}

static bool add_client_locked(int fd)
{
	struct client *c = malloc(sizeof *c);
	pid_t pid;
	uid_t uid;
	bool stranger;

	if (!c || !ipc_peer(fd, &pid, &uid))
		goto refuse;
	stranger = uid != geteuid() && uid != 0;
	if (server.client_count >= CLIENTS_MAX ||
		(stranger && server.stranger_count >= STRANGERS_MAX))
		goto refuse;
	*c = (struct client){.fd = fd,
		.inode = descriptor_inode(fd),
		.pid = pid,
		.stranger = stranger,
		.heard = clock_now(),
		.next = server.clients};
	server.clients = c;
	server.client_count++;
	server.stranger_count += stranger;
	return true;

refuse:
	free(c);
	return false;
}

/* False when the system has no descriptor left: to be tried again later. */
static bool admit_all(void)
{
	int fd;

	for (;;) {
		int err;

		if (is_lost())
			return true;
		lock_take();
		fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		err = errno;
		if (fd >= 0 && !add_client_locked(fd))
			close(fd);
		lock_drop();
		if (fd < 0)
			return err == EAGAIN || err == EINTR || err == ECONNABORTED;
	}
}

/* The listener, the wake-up, and all clients in their order; NULL without memory. */
static struct pollfd *list_polls(bool listen, size_t *count, uint64_t *settling)
{
	bool lost = is_lost();
	struct pollfd *polls;
	size_t n = 2;

	lock_take();
	polls = calloc(2 + server.client_count, sizeof *polls);
	*settling = server.settle_wanted;
	*count = server.client_count;
	lock_drop();
	if (!polls)
		return NULL;
	polls[0] = (struct pollfd){
		.fd = listen && !lost ? server.listener : -1, .events = POLLIN};
	polls[1] = (struct pollfd){.fd = lost ? -1 : server.wake[0], .events = POLLIN};
	for (const struct client *c = server.clients; c; c = c->next)
		polls[n++] = (struct pollfd){.fd = c->fd, .events = POLLIN};
	return polls;
}

/* Who settles waits for a pass that began after it asked. Silent clients are looked for now
 * and then, and whether there is a way still to be woken; with none, the thread sleeps. */
static int patience(bool listen, bool settle)
{
	if (settle)
		return 0;
	return listen && !server.clients ? -1 : TICK_MS;
}

/* Hears everybody once. False when the system is short of something. */
static bool go_round(bool *listen, uint64_t *settling)
{
	char wakes[64];
	size_t count;
	struct pollfd *polls = list_polls(*listen, &count, settling);
	bool settle = *settling != server.settled;
	bool polled = polls && poll(polls, 2 + count, patience(*listen, settle)) >= 0;

	if (polled) {
		hear_all(polls + 2, count);
		if (polls[1].revents && !is_lost())
			(void)!read(server.wake[0], wakes, sizeof wakes);
		*listen = admit_all();
	}
	free(polls);
	return polled;
}

static void *serve(void *unused)
{
	bool listen = true, lost = false;
	uint64_t settling;

	(void)unused;
	while (!lost || server.clients) {
		if (!go_round(&listen, &settling))
			poll(NULL, 0, TICK_MS);
		if (!lost && is_lost()) {
			lost = true;
			log_line(LOG_WARN, "%s", lost_sentence);
		}
		lock_take();
		server.settled = settling;
		lock_notify();
		lock_drop();
	}
	return NULL;
}

static bool open_locked(void)
{
	int wake[2] = {-1, -1}, listener;

	if (server.open)
		return true;
	listener = ipc_listen(server.token);
	if (listener < 0 ||
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
			wake) != 0)
		goto fail;
	server.listener = listener;
	server.listener_inode = descriptor_inode(listener);
	memcpy(server.wake, wake, sizeof wake);
	for (int i = 0; i < 2; i++)
		server.wake_inode[i] = descriptor_inode(wake[i]);
	server.open = thread_start("stayput-ipc", serve, NULL);
	if (server.open)
		return true;
	close(wake[0]);
	close(wake[1]);
fail:
	if (listener >= 0)
		close(listener);
	return false;
}

static CUresult fill_locked(struct ipc_handle *handle, CUdeviceptr ptr)
{
	struct allocation *a = table_find_inside_locked(ptr);

	if (!a || !a->block)
		return CUDA_ERROR_NOT_FOUND;
	if (!(a->space->device->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!open_locked())
		return CUDA_ERROR_OPERATING_SYSTEM;
	errno = EBADF;
	if (is_lost())
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!a->export_id)
		a->export_id = ++server.last_id;
	ipc_fill_handle(handle, server.token);
	handle->id = a->export_id;
	handle->base = a->base;
	return CUDA_SUCCESS;
}

static void tell(CUresult err, CUdeviceptr ptr, int os_error)
{
	if (err == CUDA_ERROR_NOT_SUPPORTED)
		error_set(STAYPUT_ERR_UNSUPPORTED,
			"0x%llx is region memory, which its device cannot share by file "
			"descriptor",
			(unsigned long long)ptr);
	else if (os_error == EBADF)
		error_set(STAYPUT_ERR_IO, "%s", lost_sentence);
	else
		error_set(STAYPUT_ERR_IO,
			"no socket or thread for sharing 0x%llx with other processes: %s",
			(unsigned long long)ptr, strerror(os_error));
	log_line(LOG_WARN, "cudaIpcGetMemHandle: %s", error_text());
}

CUresult ipc_export(struct ipc_handle *handle, CUdeviceptr ptr)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int saved = errno, os_error;
	CUresult err;

	if (!span_owns(ptr))
		return CUDA_ERROR_NOT_FOUND;
	if (fork_is_child())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_once(&once, register_exit);
	lock_take();
	err = fill_locked(handle, ptr);
	os_error = errno;
	lock_drop();
	if (err != CUDA_SUCCESS && err != CUDA_ERROR_NOT_FOUND)
		tell(err, ptr, os_error);
	errno = saved;
	return err;
}

bool ipc_export_is_own(const struct ipc_handle *handle)
{
	bool own;

	lock_take();
	own = server.open && memcmp(handle->token, server.token, IPC_TOKEN) == 0;
	lock_drop();
	return own;
}

void ipc_export_settle(void)
{
	uint64_t wanted;

	lock_take();
	if (server.clients) {
		wanted = ++server.settle_wanted;
		if (!is_lost())
			send(server.wake[1], "", 1, MSG_NOSIGNAL);
		while (server.clients && server.settled < wanted)
			lock_wait();
	}
	lock_drop();
}

pid_t ipc_export_holder_locked(const struct block *block)
{
	for (const struct client *c = server.clients; c; c = c->next)
		for (const struct lease *l = c->leases; l; l = l->next)
			if (l->block == block)
				return c->pid;
	return 0;
}

void ipc_export_forget_block_locked(struct block *block)
{
	if (block->leases == 0)
		return;
	for (struct client *c = server.clients; c; c = c->next)
		for (struct lease *l = c->leases; l; l = l->next)
			if (l->block == block)
				l->block = NULL;
	block->leases = 0;
}

void ipc_export_forget_all_locked(void)
{
	if (!server.open)
		return;
	descriptor_close(server.listener, server.listener_inode);
	for (int i = 0; i < 2; i++)
		descriptor_close(server.wake[i], server.wake_inode[i]);
	for (const struct client *c = server.clients; c; c = c->next)
		descriptor_close(c->fd, c->inode);
	server.clients = NULL;
	server.client_count = server.stranger_count = 0;
	server.open = false;
}
