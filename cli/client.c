/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"
#include "format.h"

enum {
	FOLDER_SIZE = 4096,
	LINE_MAX_BYTES = 16 << 20, /* more than any answer has */
	SHOW_SECONDS = 2,
};

/* By the file: several paths may lead to it, as where TMPDIR ends with a slash. */
static bool known(const struct processes *found, const struct stat *socket)
{
	for (size_t i = 0; i < found->count; i++)
		if (found->list[i].inode == socket->st_ino &&
			found->list[i].device == socket->st_dev)
			return true;
	return false;
}

static bool ended(pid_t pid)
{
	return kill(pid, 0) != 0 && errno == ESRCH;
}

/* A socket connected to `path`, or -1. Nothing waits: a listener whose queue is full does
 * not answer. */
static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd, saved;

	if (strlen(path) >= sizeof address.sun_path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	strcpy(address.sun_path, path);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
		return fd;
	saved = errno;
	close(fd);
	errno = saved;
	return -1;
}

/* `pid` is what the socket's name says. Within a container that shares the folder it is
 * another than here: the kernel knows better, and says 0 for one that is not seen here. */
static void try_socket(struct processes *found, const char *path, pid_t pid, uid_t owner)
{
	struct ucred peer;
	socklen_t len = sizeof peer;
	struct process *grown;
	struct stat st;
	int fd;

	if (lstat(path, &st) != 0 || !S_ISSOCK(st.st_mode) || known(found, &st))
		return;
	fd = connect_to(path);
	if (fd < 0 && errno == ECONNREFUSED && ended(pid))
		unlink(path);
	if (fd < 0)
		return;
	grown = realloc(found->list, (found->count + 1) * sizeof *grown);
	if (grown)
		found->list = grown;
	if (!grown || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 ||
		peer.uid != owner) {
		close(fd);
		return;
	}
	found->list[found->count++] = (struct process){.pid = peer.pid ? peer.pid : pid,
		.uid = owner,
		.device = st.st_dev,
		.inode = st.st_ino,
		.fd = fd};
}

/* Sockets PID.sock in a folder that is the owner's alone to write. */
static void scan_folder(struct processes *found, const char *folder, uid_t owner)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct dirent *entry;
	struct stat st;
	DIR *dir;

	if (fd < 0)
		return;
	if (fstat(fd, &st) != 0 || st.st_uid != owner || (st.st_mode & 022) ||
		!(dir = fdopendir(fd))) {
		close(fd);
		return;
	}
	while ((entry = readdir(dir))) {
		char path[FOLDER_SIZE + 256], *end;
		long pid = strtol(entry->d_name, &end, 10);

		if (pid <= 0 || strcmp(end, ".sock") != 0)
			continue;
		snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
		try_socket(found, path, (pid_t)pid, owner);
	}
	closedir(dir);
}

/* The folders that a process of `uid` with these variables (NULL: unset) may listen in. */
static void scan_places(
	struct processes *found, const char *runtime, const char *temp, uid_t uid)
{
	char folder[FOLDER_SIZE];

	if (runtime && *runtime) {
		snprintf(folder, sizeof folder, "%s/stayput", runtime);
		scan_folder(found, folder, uid);
	}
	snprintf(folder, sizeof folder, "%s/stayput-%u", temp && *temp ? temp : "/tmp",
		(unsigned)uid);
	scan_folder(found, folder, uid);
}

/* Root: "/run/user/1000/stayput" and "/tmp/stayput-1000" of everybody. */
static void scan_everybody(
	struct processes *found, const char *parent, const char *prefix, const char *rest)
{
	DIR *dir = opendir(parent);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		char folder[FOLDER_SIZE + 256];
		size_t len = strlen(prefix);
		long uid;

		if (strncmp(entry->d_name, prefix, len) != 0 ||
			!read_whole(entry->d_name + len, 0, UINT32_MAX - 1L, &uid))
			continue;
		snprintf(folder, sizeof folder, "%s/%s%s", parent, entry->d_name, rest);
		scan_folder(found, folder, (uid_t)uid);
	}
	if (dir)
		closedir(dir);
}

/* The variable's value in what /proc/PID/environ holds, or NULL. */
static const char *variable(const char *environment, size_t size, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = environment; p < environment + size; p += strlen(p) + 1)
		if (strncmp(p, name, len) == 0 && p[len] == '=')
			return p + len + 1;
	return NULL;
}

/* The environment that a process was started with; empty where it may not be read. */
static char *read_environment(int process, size_t *size)
{
	int fd = openat(process, "environ", O_RDONLY | O_CLOEXEC);
	size_t room = 1 << 16;
	char *text = malloc(room + 1);
	ssize_t n = -1;

	*size = 0;
	while (fd >= 0 && text && (n = read(fd, text + *size, room - *size)) > 0) {
		char *grown;

		*size += n;
		if (*size < room)
			continue;
		room *= 2;
		grown = realloc(text, room + 1);
		if (!grown)
			break;
		text = grown;
	}
	if (text)
		text[*size] = '\0';
	if (fd >= 0)
		close(fd);
	return text;
}

/* Sockets in places that only the environment of a process tells. */
static void scan_process(struct processes *found, int proc, const char *name)
{
	int fd = openat(proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const char *control = NULL;
	char *environment = NULL;
	struct stat st;
	size_t size;

	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && (geteuid() == 0 || st.st_uid == geteuid()))
		environment = read_environment(fd, &size);
	if (environment)
		control = variable(environment, size, "STAYPUT_CONTROL");
	if (control && *control == '/')
		try_socket(found, control, (pid_t)strtol(name, NULL, 10), st.st_uid);
	else if (control && strcmp(control, "0") != 0)
		scan_places(found, variable(environment, size, "XDG_RUNTIME_DIR"),
			variable(environment, size, "TMPDIR"), st.st_uid);
	free(environment);
	close(fd);
}

static void scan_processes(struct processes *found)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;

	while (proc && (entry = readdir(proc)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
			scan_process(found, dirfd(proc), entry->d_name);
	if (proc)
		closedir(proc);
}

static int by_pid(const void *a, const void *b)
{
	const struct process *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

/* Only there, and whoever's the folder is when root asks. */
static void scan_given(struct processes *found, const char *folder)
{
	struct stat st;

	if (stat(folder, &st) == 0 && (geteuid() == 0 || st.st_uid == geteuid()))
		scan_folder(found, folder, st.st_uid);
}

static void scan_everything(struct processes *found)
{
	char runtime[64];
	uid_t uid = geteuid();

	snprintf(runtime, sizeof runtime, "/run/user/%u", (unsigned)uid);
	scan_places(found, getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), uid);
	scan_places(found, runtime, NULL, uid);
	if (uid == 0) {
		scan_everybody(found, "/run/user", "", "/stayput");
		scan_everybody(found, "/tmp", "stayput-", "");
	}
	scan_processes(found);
}

void client_find(struct processes *found)
{
	const char *folder = getenv("STAYPUT_SOCKETS");
	size_t before = found->count;

	if (folder && *folder)
		scan_given(found, folder);
	else
		scan_everything(found);
	if (found->count > before)
		qsort(found->list + before, found->count - before, sizeof *found->list,
			by_pid);
}

void client_drop(struct processes *found, size_t index)
{
	struct process *process = &found->list[index];

	if (process->fd >= 0)
		close(process->fd);
	free(process->in);
	memmove(process, process + 1, (--found->count - index) * sizeof *process);
}

void client_free(struct processes *found)
{
	while (found->count)
		client_drop(found, found->count - 1);
	free(found->list);
	found->list = NULL;
}

/* Why a pid is not among those that listen, in one sentence. */
static void say_missing(long pid)
{
	char path[64], line[4096];
	bool loaded = false, deep = false;
	struct stat st;
	FILE *maps;

	snprintf(path, sizeof path, "/proc/%ld", pid);
	if (stat(path, &st) != 0) {
		say(NO_PROCESS, "there is no process %ld", pid);
		return;
	}
	if (geteuid() != 0 && st.st_uid != geteuid()) {
		char user[64];

		say(NO_PROCESS,
			"process %ld belongs to %s: nobody else but root can reach it",
			pid, user_name(st.st_uid, user, sizeof user));
		return;
	}
	snprintf(path, sizeof path, "/proc/%ld/maps", pid);
	maps = fopen(path, "re");
	while (maps && !loaded && fgets(line, sizeof line, maps)) {
		loaded = strstr(line, "/libstayput") != NULL;
		deep = strstr(line, "/libstayput-deep") != NULL;
	}
	if (maps)
		fclose(maps);
	if (loaded)
		say(NO_PROCESS,
			"process %ld has the library but does not listen: it has "
			"allocated nothing in a region so far%s, or STAYPUT_CONTROL was "
			"0 or unset",
			pid,
			deep ? ""
			     : " (a static CUDA runtime, CuPy, Numba and JAX need "
			       "stayput "
			       "run --deep)");
	else
		say(NO_PROCESS,
			"process %ld is not under stayput; start it with stayput run",
			pid);
}

bool client_pids(const char *command, char **words, int count)
{
	long pid;

	if (count < 1) {
		say(USAGE, "%s wants a pid; stayput ps lists them", command);
		return false;
	}
	for (int i = 0; i < count; i++)
		if (!read_whole(words[i], 1, INT_MAX, &pid)) {
			say(USAGE, "\"%s\" is not a pid", words[i]);
			return false;
		}
	return true;
}

void client_choose(
	struct processes *found, char **words, size_t count, bool all, size_t *missing)
{
	*missing = 0;
	client_find(found);
	for (size_t i = found->count; i-- > 0 && !all;) {
		bool wanted = false;

		for (size_t k = 0; k < count && !wanted; k++)
			wanted = strtol(words[k], NULL, 10) == found->list[i].pid;
		if (!wanted)
			client_drop(found, i);
	}
	for (size_t k = 0; k < count; k++) {
		long pid = strtol(words[k], NULL, 10);
		bool there = false;

		for (size_t i = 0; i < found->count && !there; i++)
			there = found->list[i].pid == pid;
		if (!there) {
			say_missing(pid);
			++*missing;
		}
	}
}

cJSON *client_request(const char *verb)
{
	cJSON *request = cJSON_CreateObject();

	cJSON_AddNumberToObject(request, "stayput", 1);
	cJSON_AddStringToObject(request, "do", verb);
	return request;
}

static void end(struct process *process)
{
	if (process->fd >= 0)
		close(process->fd);
	process->fd = -1;
}

bool client_send(struct process *process, const cJSON *request)
{
	char *text = cJSON_PrintUnformatted(request);
	size_t len = text ? strlen(text) : 0;
	bool sent = false;

	if (text) {
		text[len] = '\n'; /* in place of the NUL */
		sent = send(process->fd, text, len + 1, MSG_NOSIGNAL) == (ssize_t)len + 1;
	}
	cJSON_free(text);
	if (!sent)
		end(process);
	return sent;
}

bool client_fill(struct process *process)
{
	ssize_t n;

	if (process->fd < 0)
		return false;
	if (process->in_size - process->in_len < 4096) {
		size_t size = process->in_size ? 2 * process->in_size : 1 << 14;
		char *grown = size <= LINE_MAX_BYTES ? realloc(process->in, size) : NULL;

		if (!grown) {
			end(process);
			return false;
		}
		process->in = grown;
		process->in_size = size;
	}
	n = recv(process->fd, process->in + process->in_len,
		process->in_size - process->in_len, MSG_DONTWAIT);
	if (n > 0)
		process->in_len += n;
	else if (n == 0 || (errno != EAGAIN && errno != EINTR))
		end(process);
	return process->fd >= 0;
}

/* Whoever listens may write anything: what is printed of it is to steer no terminal, and
 * to stay on its line. */
static void clean_all(cJSON *item)
{
	for (; item; item = item->next) {
		if (item->string)
			clean(item->string);
		if (item->valuestring)
			clean(item->valuestring);
		clean_all(item->child);
	}
}

cJSON *client_next(struct process *process)
{
	char *newline =
		process->in_len ? memchr(process->in, '\n', process->in_len) : NULL;
	size_t len = newline ? (size_t)(newline - process->in) : 0;
	cJSON *answer;

	if (!newline)
		return NULL;
	answer = cJSON_ParseWithLength(process->in, len);
	process->in_len -= len + 1;
	memmove(process->in, newline + 1, process->in_len);
	if (!cJSON_IsObject(answer)) {
		cJSON_Delete(answer);
		end(process);
		process->in_len = 0;
		return NULL;
	}
	clean_all(answer);
	return answer;
}

/* Takes in what a process has to say; true when nothing more is to be waited for. */
static bool take_snapshot(struct process *process, cJSON **snapshot)
{
	cJSON *answer;

	client_fill(process);
	answer = client_next(process);
	*snapshot = cJSON_DetachItemFromObjectCaseSensitive(answer, "result");
	cJSON_Delete(answer);
	return answer || process->fd < 0;
}

void client_show(struct process *list, size_t count, cJSON **snapshots)
{
	double until = clock_now() + SHOW_SECONDS, left;
	struct pollfd *polls = calloc(count + 1, sizeof *polls);
	cJSON *request = client_request("show");
	size_t waiting = 0;

	for (size_t i = 0; i < count; i++) {
		bool sent = client_send(&list[i], request);

		snapshots[i] = NULL;
		if (polls)
			polls[i] = (struct pollfd){
				.fd = sent ? list[i].fd : -1, .events = POLLIN};
		waiting += sent;
	}
	cJSON_Delete(request);
	while (polls && waiting && (left = until - clock_now()) > 0) {
		if (poll(polls, count, (int)(left * 1000) + 1) <= 0)
			continue;
		for (size_t i = 0; i < count; i++)
			if (polls[i].fd >= 0 && polls[i].revents &&
				take_snapshot(&list[i], &snapshots[i])) {
				polls[i].fd = -1;
				waiting--;
			}
	}
	free(polls);
}

double number_of(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

const char *word_of(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	return cJSON_IsString(item) ? item->valuestring : "";
}
