/* SPDX-License-Identifier: Apache-2.0 */
#include "control_socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

enum { BACKLOG = 64 };

#define UNCONTROLLED "this process cannot be controlled from outside"

static const char *kind_of(mode_t mode)
{
	if (S_ISREG(mode))
		return "a regular file";
	if (S_ISLNK(mode))
		return "a symbolic link";
	return S_ISDIR(mode) ? "a folder" : "a special file";
}

/* What is wrong with a folder for sockets, or NULL. Others than the user may write to it
 * only where nobody can take away what is somebody else's. */
static const char *folder_fault(const struct stat *st, bool may_be_shared)
{
	bool of_root = may_be_shared && st->st_uid == 0;

	if (!S_ISDIR(st->st_mode))
		return kind_of(st->st_mode);
	if (st->st_uid != geteuid() && !of_root)
		return "another user's";
	if ((st->st_mode & 022) && !(may_be_shared && (st->st_mode & S_ISVTX)))
		return "one that others can write to";
	return NULL;
}

/* $XDG_RUNTIME_DIR, when it can be used. */
static const char *runtime_folder(void)
{
	const char *path = secure_getenv("XDG_RUNTIME_DIR");
	struct stat st;

	if (!path || path[0] != '/' || lstat(path, &st) != 0 || folder_fault(&st, false))
		return NULL;
	return access(path, W_OK | X_OK) == 0 ? path : NULL;
}

/* False after a warning, when it is too long for an address. */
__attribute__((format(printf, 2, 3))) static bool write_path(
	struct sockaddr_un *address, const char *format, ...)
{
	va_list args;
	int len;

	va_start(args, format);
	len = vsnprintf(address->sun_path, sizeof address->sun_path, format, args);
	va_end(args);
	if (len >= 0 && (size_t)len < sizeof address->sun_path)
		return true;
	log_line(LOG_WARN,
		"STAYPUT_CONTROL: the path of the socket, %s..., has %d bytes and "
		"may have %zu; " UNCONTROLLED,
		address->sun_path, len, sizeof address->sun_path - 1);
	return false;
}

/* The user's folder, made if it is not there. */
static bool find_folder(struct sockaddr_un *address)
{
	const char *base = runtime_folder(), *temp = secure_getenv("TMPDIR"), *fault;
	struct stat st;
	bool fits;

	if (base)
		fits = write_path(address, "%s/stayput", base);
	else
		fits = write_path(address, "%s/stayput-%d",
			temp && temp[0] == '/' ? temp : "/tmp", (int)geteuid());
	if (!fits)
		return false;
	if (mkdir(address->sun_path, 0700) != 0 && errno != EEXIST)
		fault = strerror(errno);
	else if (lstat(address->sun_path, &st) != 0)
		fault = strerror(errno);
	else
		fault = folder_fault(&st, false);
	if (fault)
		log_line(LOG_WARN,
			"STAYPUT_CONTROL: %s has to be a folder of user %d that only "
			"they can write to, and is %s; " UNCONTROLLED,
			address->sun_path, (int)geteuid(), fault);
	return !fault;
}

/* The folder of a path that somebody has chosen. */
static bool check_folder(const char *path)
{
	char folder[sizeof((struct sockaddr_un *)0)->sun_path];
	const char *slash = strrchr(path, '/'), *fault;
	struct stat st;

	snprintf(folder, sizeof folder, "%.*s", slash > path ? (int)(slash - path) : 1,
		path);
	fault = stat(folder, &st) == 0 ? folder_fault(&st, true) : strerror(errno);
	if (fault)
		log_line(LOG_WARN,
			"STAYPUT_CONTROL: %s has to be in a folder of user %d or root, "
			"and %s is %s; " UNCONTROLLED,
			path, (int)geteuid(), folder, fault);
	return !fault;
}

/* Whether somebody listens there. errno says more. */
static bool is_listened_at(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool answered;

	if (fd < 0)
		return true;
	answered = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ||
		   (errno != ECONNREFUSED && errno != ENOENT);
	close(fd);
	return answered;
}

bool control_socket_remove_stale(const struct sockaddr_un *address)
{
	struct stat st;

	if (lstat(address->sun_path, &st) != 0)
		return errno == ENOENT;
	if (!S_ISSOCK(st.st_mode) || is_listened_at(address))
		return false;
	return unlink(address->sun_path) == 0 || errno == ENOENT;
}

/* Makes the path free; false after a warning, when it is taken. */
static bool make_way(const struct sockaddr_un *address)
{
	struct stat st;
	const char *what;

	if (control_socket_remove_stale(address))
		return true;
	what = "a socket that another process listens at";
	if (lstat(address->sun_path, &st) == 0 && !S_ISSOCK(st.st_mode))
		what = kind_of(st.st_mode);
	log_line(LOG_WARN,
		"STAYPUT_CONTROL: %s is there already and is %s; " UNCONTROLLED,
		address->sun_path, what);
	return false;
}

/* The mode of the socket's file is that of the socket, and nobody can connect before it
 * listens. */
static int bind_and_listen(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 && fchmod(fd, 0600) == 0 &&
		bind(fd, (const struct sockaddr *)address, sizeof *address) == 0) {
		if (listen(fd, BACKLOG) == 0)
			return fd;
		unlink(address->sun_path);
	}
	log_line(LOG_WARN, "STAYPUT_CONTROL: no socket at %s: %s; " UNCONTROLLED,
		address->sun_path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

int control_socket_listen(const char *path, struct sockaddr_un *address)
{
	struct sockaddr_un folder = {.sun_family = AF_UNIX};
	bool placed;

	*address = folder;
	if (path)
		placed = write_path(address, "%s", path) && check_folder(path);
	else
		placed = find_folder(&folder) && write_path(address, "%s/%d.sock",
							 folder.sun_path, (int)getpid());
	return placed && make_way(address) ? bind_and_listen(address) : -1;
}

int control_socket_accept(int listener, pid_t *pid, uid_t *uid)
{
	struct ucred peer;
	socklen_t size = sizeof peer;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return -1;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
		peer = (struct ucred){.uid = (uid_t)-1};
	*pid = peer.pid;
	*uid = peer.uid;
	return fd;
}

/* The PID of a file's name PID.sock, or 0. */
static pid_t pid_of(const char *name)
{
	char *end;
	long pid = strtol(name, &end, 10);

	return name[0] >= '1' && name[0] <= '9' && strcmp(end, ".sock") == 0 &&
			       pid == (pid_t)pid
		       ? (pid_t)pid
		       : 0;
}

void control_socket_sweep(
	const struct sockaddr_un *own, void (*each)(const struct sockaddr_un *stale))
{
	struct sockaddr_un other = *own;
	char *name = strrchr(other.sun_path, '/') + 1;
	size_t room = sizeof other.sun_path - (name - other.sun_path);
	struct dirent *entry;
	DIR *folder;

	*name = '\0';
	folder = opendir(other.sun_path);
	while (folder && (entry = readdir(folder))) {
		pid_t pid = pid_of(entry->d_name);

		if (pid == 0 || strlen(entry->d_name) >= room)
			continue;
		/* Between another's bind() and listen() its socket looks stale, but the
		 * process is there. */
		if (kill(pid, 0) == 0 || errno != ESRCH)
			continue;
		strcpy(name, entry->d_name);
		each(&other);
	}
	if (folder)
		closedir(folder);
}
