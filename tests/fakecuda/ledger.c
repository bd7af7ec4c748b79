/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAGIC = 0x66616b65, OBJECTS = 4096 };

struct process {
	pid_t pid;
	size_t used[LEDGER_DEVICES];
};

/* One process's hold on one object. */
struct hold {
	pid_t pid;
	int device;
	uint64_t id;
	size_t size;
};

struct ledger {
	uint32_t magic;
	int devices;
	size_t total[LEDGER_DEVICES];
	struct process processes[LEDGER_PROCESSES];
	struct hold holds[OBJECTS];
	size_t holds_end; /* holds from here on were never used */
};

/* Set once, before any other thread can come here. */
static struct ledger *ledger;
static int ledger_fd = -1;
static struct process *self;

/* The file lock is between processes; callers of this module take turns within one. */
static void enter(void)
{
	while (ledger_fd >= 0 && flock(ledger_fd, LOCK_EX) != 0 && errno == EINTR)
		;
}

static void leave(void)
{
	if (ledger_fd >= 0)
		flock(ledger_fd, LOCK_UN);
}

/* Killed but not yet waited for is dead too, though a signal could still be sent. */
static bool is_alive(pid_t pid)
{
	char path[64], state = 0;
	FILE *file;

	if (pid == getpid())
		return true;
	if (kill(pid, 0) != 0 && errno == ESRCH)
		return false;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return true;
	if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(file);
	return state != 'Z' && state != 'X';
}

static void sweep(void)
{
	for (size_t i = 0; i < LEDGER_PROCESSES; i++) {
		struct process *p = &ledger->processes[i];
		pid_t dead = p->pid;

		if (!dead || is_alive(dead))
			continue;
		memset(p, 0, sizeof *p);
		for (size_t h = 0; h < ledger->holds_end; h++)
			if (ledger->holds[h].pid == dead)
				ledger->holds[h].pid = 0;
	}
}

static bool is_first_hold(size_t h)
{
	for (size_t i = 0; i < h; i++)
		if (ledger->holds[i].pid && ledger->holds[i].id == ledger->holds[h].id)
			return false;
	return true;
}

static size_t used(int device)
{
	size_t sum = 0;

	sweep();
	for (size_t i = 0; i < LEDGER_PROCESSES; i++)
		sum += ledger->processes[i].used[device];
	for (size_t h = 0; h < ledger->holds_end; h++) {
		const struct hold *hold = &ledger->holds[h];

		if (hold->pid && hold->device == device && is_first_hold(h))
			sum += hold->size;
	}
	return sum;
}

static bool map_ledger(bool create)
{
	const char *path = getenv("FAKECUDA_SHARE");
	int flags = MAP_SHARED;
	void *at;

	if (path && *path) {
		ledger_fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
		if (ledger_fd < 0 || ftruncate(ledger_fd, sizeof *ledger) != 0) {
			if (create)
				fprintf(stderr, "fakecuda: FAKECUDA_SHARE=%s: %s\n", path,
					strerror(errno));
			return false;
		}
	} else if (create) {
		flags = MAP_PRIVATE | MAP_ANONYMOUS;
	} else {
		return false;
	}
	at = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, flags, ledger_fd, 0);
	ledger = at == MAP_FAILED ? NULL : at;
	return ledger != NULL;
}

static bool has_processes(void)
{
	for (size_t i = 0; i < LEDGER_PROCESSES; i++)
		if (ledger->processes[i].pid)
			return true;
	return false;
}

bool ledger_open(int devices, size_t memory)
{
	if (!map_ledger(true))
		return false;
	enter();
	sweep();
	if (ledger->magic != MAGIC || !has_processes()) {
		memset(ledger, 0, sizeof *ledger);
		ledger->magic = MAGIC;
		ledger->devices = devices;
		for (int i = 0; i < devices; i++)
			ledger->total[i] = memory;
	}
	for (size_t i = 0; i < LEDGER_PROCESSES && !self; i++)
		if (!ledger->processes[i].pid)
			self = &ledger->processes[i];
	if (self)
		self->pid = getpid();
	leave();
	if (!self)
		fprintf(stderr, "fakecuda: too many processes share the ledger\n");
	return self != NULL;
}

bool ledger_look(void)
{
	/* The file may be there before the first process has filled it in. */
	return (ledger || map_ledger(false)) && ledger->magic == MAGIC;
}

void ledger_leave(void)
{
	if (!self)
		return;
	enter();
	for (size_t h = 0; h < ledger->holds_end; h++)
		if (ledger->holds[h].pid == self->pid)
			ledger->holds[h].pid = 0;
	memset(self, 0, sizeof *self);
	leave();
}

bool ledger_charge(int device, size_t size)
{
	size_t now;
	bool fits;

	enter();
	now = used(device);
	fits = now <= ledger->total[device] && size <= ledger->total[device] - now;
	if (fits)
		self->used[device] += size;
	leave();
	return fits;
}

void ledger_discharge(int device, size_t size)
{
	enter();
	self->used[device] -= size;
	leave();
}

static void hold(int device, size_t size, uint64_t id)
{
	for (size_t h = 0; h < OBJECTS; h++) {
		if (ledger->holds[h].pid)
			continue;
		ledger->holds[h] = (struct hold){self->pid, device, id, size};
		if (h >= ledger->holds_end)
			ledger->holds_end = h + 1;
		return;
	}
	fprintf(stderr, "fakecuda: too much exported memory to count\n");
}

void ledger_hold(int device, size_t size, uint64_t id)
{
	enter();
	hold(device, size, id);
	leave();
}

void ledger_share(int device, size_t size, uint64_t id)
{
	enter();
	self->used[device] -= size;
	hold(device, size, id);
	leave();
}

void ledger_drop(uint64_t id)
{
	enter();
	for (size_t h = 0; h < ledger->holds_end; h++) {
		if (ledger->holds[h].pid == self->pid && ledger->holds[h].id == id) {
			ledger->holds[h].pid = 0;
			break;
		}
	}
	leave();
}

int ledger_device_count(void)
{
	return ledger->devices;
}

size_t ledger_total(int device)
{
	size_t total;

	enter();
	total = ledger->total[device];
	leave();
	return total;
}

void ledger_set_total(int device, size_t bytes)
{
	enter();
	ledger->total[device] = bytes;
	leave();
}

size_t ledger_used(int device)
{
	size_t sum;

	enter();
	sum = used(device);
	leave();
	return sum;
}

static size_t held_by(pid_t pid, int device)
{
	size_t sum = 0;

	for (size_t h = 0; h < ledger->holds_end; h++)
		if (ledger->holds[h].pid == pid && ledger->holds[h].device == device)
			sum += ledger->holds[h].size;
	return sum;
}

size_t ledger_processes(int device, pid_t *pids, size_t *bytes, size_t max)
{
	size_t n = 0;

	enter();
	sweep();
	for (size_t i = 0; i < LEDGER_PROCESSES && n < max; i++) {
		const struct process *p = &ledger->processes[i];

		if (!p->pid)
			continue;
		pids[n] = p->pid;
		bytes[n++] = p->used[device] + held_by(p->pid, device);
	}
	leave();
	return n;
}
