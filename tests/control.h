/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the server in the library, for its tests. Everything CHECKs. */
#ifndef TEST_CONTROL_H
#define TEST_CONTROL_H

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "support.h"

static char runtime_folder[32] = "/tmp/test_controlXXXXXX";

static pid_t folder_owner;

static inline void remove_folder(void)
{
	char command[64];

	snprintf(command, sizeof command, "rm -rf %s", runtime_folder);
	if (getpid() == folder_owner)
		CHECK_EQ(system(command), 0);
}

/* A server is wanted, in a folder of this test. */
static inline void want_server(void)
{
	CHECK(mkdtemp(runtime_folder));
	folder_owner = getpid();
	atexit(remove_folder);
	setenv("XDG_RUNTIME_DIR", runtime_folder, 1);
	setenv("STAYPUT_CONTROL", "1", 1);
}

/* A child that does not outlive a test that fails. */
static inline pid_t fork_child(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		alarm(TEST_SECONDS);
	return pid;
}

static inline const char *socket_path(pid_t pid)
{
	static char path[96];

	snprintf(path, sizeof path, "%s/stayput/%d.sock", runtime_folder, (int)pid);
	return path;
}

/* -1 with errno when nobody answers. */
static inline int try_connect(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0 && strlen(path) < sizeof address.sun_path);
	strcpy(address.sun_path, path);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
		return fd;
	close(fd);
	return -1;
}

static inline int connect_to(pid_t pid)
{
	int fd = try_connect(socket_path(pid));

	CHECK(fd >= 0);
	return fd;
}

/* What could be sent before the other end was closed. */
static inline size_t send_bytes(int fd, const void *bytes, size_t size)
{
	size_t sent = 0;
	ssize_t n = 1;

	while (sent < size && n > 0) {
		n = send(fd, (const char *)bytes + sent, size - sent, MSG_NOSIGNAL);
		sent += n > 0 ? n : 0;
	}
	return sent;
}

static inline void ask(int fd, const char *line)
{
	CHECK_EQ(send_bytes(fd, line, strlen(line)), strlen(line));
	CHECK_EQ(send_bytes(fd, "\n", 1), 1);
}

/* The next line, without its end; NULL when the connection has been closed. */
static inline const char *next_line(int fd)
{
	static char line[64 << 10];
	size_t len = 0;

	while (len < sizeof line && recv(fd, line + len, 1, 0) == 1) {
		if (line[len] == '\n') {
			line[len] = '\0';
			return line;
		}
		len++;
	}
	CHECK_EQ(len, 0);
	return NULL;
}

/* The line that ends the request. */
static inline const char *outcome(int fd)
{
	const char *line;

	do {
		line = next_line(fd);
		CHECK(line);
	} while (strncmp(line, "{\"progress\":", 12) == 0);
	return line;
}

static inline const char *request(int fd, const char *line)
{
	ask(fd, line);
	return outcome(fd);
}

#define SHOW "{\"stayput\":1,\"do\":\"show\"}"
#define PAUSE "{\"stayput\":1,\"do\":\"pause\"}"
#define RESUME "{\"stayput\":1,\"do\":\"resume\"}"

/* The number that follows `name` in the line. */
static inline long long number_in(const char *line, const char *name)
{
	const char *at = strstr(line, name);

	CHECK_HAS(line, name);
	return strtoll(at + strlen(name), NULL, 10);
}

/* A kernel that runs until the test lets it end. */
static _Atomic int gate;

static inline void wait_at_gate(void **params, unsigned blocks)
{
	(void)params;
	(void)blocks;
	gate = 1;
	while (gate != 2)
		sched_yield();
}

/* From here the device has work in flight, until `gate` is 2. */
static inline void close_gate(void)
{
	CUmodule module;
	CUfunction function;
	cudaStream_t stream;

	gate = 0;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	fakecuda_kernel("gated", wait_at_gate);
	CHECK_EQ(cuModuleLoadData(&module, ""), CUDA_SUCCESS);
	CHECK_EQ(cuModuleGetFunction(&function, module, "gated"), CUDA_SUCCESS);
	CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL),
		CUDA_SUCCESS);
	while (gate != 1)
		sched_yield();
}

static inline void open_gate(void)
{
	gate = 2;
}

/* An operation has marked the allocation, and waits for the kernel. */
static inline void wait_until_pausing(const void *ptr)
{
	while (query(ptr).state != STAYPUT_PAUSING)
		sched_yield();
}

#endif
