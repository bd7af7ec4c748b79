/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors are opened, noted and closed under `descriptors`, which fork() takes: a child
 * knows all of them, and closes them, so that a client of its parent sees the end of a
 * connection when there is one. Everything else here is the thread's own.
 */
#include "control.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "config.h"
#include "control_client.h"
#include "control_job.h"
#include "control_socket.h"
#include "descriptor.h"
#include "log.h"
#include "thread.h"

enum { CLIENTS_MAX = 64, LET_IN_AT_ONCE = 16 };

/* For so long nobody is let in when there is no descriptor to be had, unless somebody has
 * said nothing for as long. */
#define FULL_SECONDS 1.0

static pthread_mutex_t descriptors = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool started;
static struct sockaddr_un address;
static int listener = -1, wake = -1;
static ino_t listener_inode, wake_inode;
/* The first client_count are open; the last place is for one that others make room for. */
static struct client clients[CLIENTS_MAX + 1];
static int client_count;
static double full_until;

static void close_client(int i)
{
	pthread_mutex_lock(&descriptors);
	close(clients[i].fd);
	client_close(&clients[i]);
	clients[i] = clients[--client_count];
	pthread_mutex_unlock(&descriptors);
}

/* Makes room: operations go on, whoever has sent nothing for longest goes. False when all
 * have since `before`. */
static bool close_idlest(double before)
{
	int idlest = -1;

	for (int i = 0; i < client_count; i++)
		if (!clients[i].job && clients[i].active < before) {
			idlest = i;
			before = clients[i].active;
		}
	if (idlest >= 0)
		close_client(idlest);
	return idlest >= 0;
}

/* False when nobody waits to be let in, or nobody can be. */
static bool let_in(void)
{
	pid_t pid;
	uid_t uid;
	int fd, err;

	pthread_mutex_lock(&descriptors);
	fd = control_socket_accept(listener, &pid, &uid);
	err = errno;
	if (fd >= 0)
		client_open(&clients[client_count++], fd, pid, uid);
	pthread_mutex_unlock(&descriptors);
	if (client_count > CLIENTS_MAX)
		close_idlest(INFINITY);
	if (fd >= 0 || err == EAGAIN || err == EINTR || err == ECONNABORTED)
		return fd >= 0;
	if (close_idlest(clock_now() - FULL_SECONDS))
		return true;
	full_until = clock_now() + FULL_SECONDS;
	return false;
}

static int milliseconds_until(double deadline)
{
	double left = (deadline - clock_now()) * 1e3;

	if (left <= 0)
		return 0;
	return left < 1e6 ? (int)left + 1 : -1;
}

/* Waits until there is something to do; `more`: only looks. */
static void wait_for_events(struct pollfd fds[CLIENTS_MAX + 2], bool more)
{
	bool full = clock_now() < full_until;
	double deadline = full ? full_until : clock_now() + 1e9;

	fds[0] = (struct pollfd){.fd = wake, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = full ? -1 : listener, .events = POLLIN};
	for (int i = 0; i < client_count; i++) {
		double due = client_deadline(&clients[i]);

		fds[2 + i] = (struct pollfd){
			.fd = clients[i].fd, .events = client_events(&clients[i])};
		if (due < deadline)
			deadline = due;
	}
	if (poll(fds, 2 + client_count, more ? 0 : milliseconds_until(deadline)) < 0)
		for (int i = 0; i < client_count + 2; i++)
			fds[i].revents = 0;
}

/* True when there is more to be done at once. */
static bool step(int i, short events)
{
	struct client *c = &clients[i];
	bool more = false;

	/* Gone, as far as can be told: while it is listened to, reading tells. */
	if ((events & (POLLHUP | POLLERR)) && client_events(c) != POLLIN)
		c->broken = true;
	if (!c->broken)
		more = client_step(c, events != 0, wake);
	if (c->broken)
		close_client(i);
	return more;
}

static void remove_stale(const struct sockaddr_un *stale)
{
	pthread_mutex_lock(&descriptors);
	control_socket_remove_stale(stale);
	pthread_mutex_unlock(&descriptors);
}

/* Some programs close every descriptor there is, and open their own under the numbers. */
static bool have_been_closed(void)
{
	if (!descriptor_is(listener, listener_inode) || !descriptor_is(wake, wake_inode))
		return true;
	for (int i = 0; i < client_count; i++)
		if (!descriptor_is(clients[i].fd, clients[i].inode))
			return true;
	return false;
}

static void *stop(void)
{
	log_line(LOG_WARN,
		"STAYPUT_CONTROL: somebody has closed the socket; this process cannot be "
		"controlled from outside any more");
	pthread_mutex_lock(&descriptors);
	while (client_count > 0)
		client_close(&clients[--client_count]);
	listener = wake = -1;
	pthread_mutex_unlock(&descriptors);
	return NULL;
}

static void *serve(void *unused)
{
	struct pollfd fds[CLIENTS_MAX + 2];
	bool more = false;

	(void)unused;
	if (!config()->control_path)
		control_socket_sweep(&address, remove_stale);
	for (;;) {
		uint64_t count;

		wait_for_events(fds, more);
		more = false;
		if (have_been_closed())
			return stop();
		if (fds[0].revents && read(wake, &count, sizeof count) < 0)
			log_line(LOG_DEBUG, "nothing has woken the server");
		/* From the last one, since one that is closed gives its place to it. */
		for (int i = client_count - 1; i >= 0; i--)
			more |= step(i, fds[2 + i].revents);
		/* A few at a time: each is heard before it may have to make room. */
		for (int i = 0; i < LET_IN_AT_ONCE && fds[1].revents && let_in(); i++)
			more = true;
	}
	return NULL;
}

static void open_server(void)
{
	listener = control_socket_listen(config()->control_path, &address);
	if (listener < 0)
		return;
	wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	listener_inode = descriptor_inode(listener);
	wake_inode = descriptor_inode(wake);
	if (wake >= 0 && thread_start("stayput-control", serve, NULL)) {
		log_line(LOG_INFO, "listening at %s", address.sun_path);
		return;
	}
	log_line(LOG_WARN,
		"STAYPUT_CONTROL: no thread or descriptor for the server; this process "
		"cannot be controlled from outside");
	unlink(address.sun_path);
	close(listener);
	if (wake >= 0)
		close(wake);
	listener = wake = -1;
}

void control_start(void)
{
	int saved = errno;

	if (atomic_load_explicit(&started, memory_order_relaxed))
		return;
	if (!atomic_exchange(&started, true) && config()->control) {
		pthread_mutex_lock(&descriptors);
		open_server();
		pthread_mutex_unlock(&descriptors);
	}
	errno = saved;
}

void control_before_fork(void)
{
	pthread_mutex_lock(&descriptors);
}

void control_after_fork(void)
{
	pthread_mutex_unlock(&descriptors);
}

void control_in_child(void)
{
	for (int i = 0; i < client_count; i++)
		descriptor_close(clients[i].fd, clients[i].inode);
	client_count = 0;
	descriptor_close(listener, listener_inode);
	descriptor_close(wake, wake_inode);
	listener = wake = -1;
	full_until = 0;
	job_forget_all();
	atomic_store(&started, false);
	pthread_mutex_unlock(&descriptors);
}
