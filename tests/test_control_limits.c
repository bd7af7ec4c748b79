/* SPDX-License-Identifier: Apache-2.0 */
/* Whom and what the server of STAYPUT_CONTROL keeps out, and where it listens. */
#include "control.h"

#include <sys/resource.h>

enum { NOBODY = 65534, GARBAGE = 1000, LINE = 10 << 20, IDLE = 200 };

static void in_child(void (*run)(const void *), const void *about)
{
	int status;
	pid_t pid = fork_child();

	if (pid == 0) {
		run(about);
		exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

static void check_served(void)
{
	int fd = connect_to(getpid());

	CHECK_HAS(request(fd, SHOW), "{\"result\":{\"version\":");
	close(fd);
}

static _Atomic bool stop;
static _Atomic unsigned rounds;

static void *churn(void *unused)
{
	(void)unused;
	while (!stop) {
		char *p =
			region_malloc("churn", STAYPUT_HOST, 3000 + rounds % 7 * 100000);

		write_pattern(p, 3000, rounds);
		CHECK_EQ(wrong_bytes(p, 3000, rounds), 0);
		CUDA(cudaFree(p));
		rounds++;
	}
	return NULL;
}

static size_t resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	size_t pages;

	CHECK(file && fscanf(file, "%*u %zu", &pages) == 1);
	fclose(file);
	return pages * sysconf(_SC_PAGESIZE);
}

static unsigned random_state = 1;

static unsigned random_number(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 17;
	return random_state ^= random_state << 5;
}

static void send_random_bytes(int n)
{
	unsigned char bytes[2000];
	size_t size = 1 + random_number() % sizeof bytes;
	int fd = connect_to(getpid());

	for (size_t i = 0; i < size; i++)
		bytes[i] = (unsigned char)random_number();
	send_bytes(fd, bytes, size);
	if (n % 2) {
		shutdown(fd, SHUT_WR);
		while (next_line(fd))
			;
	}
	close(fd);
}

static void send_truncated_request(int n)
{
	static const char whole[] =
		"{\"stayput\":1,\"do\":\"pause\",\"tags\":[\"churn\",\"kept\"],"
		"\"policy\":\"discard\",\"block\":true,\"x\":[{\"\\u0061\":-1.5e+3}]}";
	size_t size = 1 + n % (sizeof whole - 2);
	int fd = connect_to(getpid());

	send_bytes(fd, whole, size);
	if (n % 2)
		send_bytes(fd, "\n", 1);
	else
		shutdown(fd, SHUT_WR);
	CHECK_HAS(next_line(fd), "is not one JSON object");
	CHECK(!next_line(fd));
	close(fd);
}

static void send_long_line(int n)
{
	static char line[LINE];
	int fd = connect_to(getpid());

	memset(line, "a {["[n % 4], 100);
	CHECK(send_bytes(fd, line, sizeof line) < sizeof line);
	CHECK_HAS(next_line(fd), "longer than 65536 bytes");
	close(fd);
}

static void connect_and_say_nothing(int n)
{
	static int fds[IDLE];

	if (n < IDLE)
		fds[n] = connect_to(getpid());
	if (n != IDLE - 1)
		return;
	check_served();
	/* The oldest have made room. */
	for (int i = 0; i < IDLE - 64; i++)
		CHECK(!next_line(fds[i]));
	for (int i = 0; i < IDLE; i++)
		close(fds[i]);
}

static void garbage_harms_nothing(void)
{
	static void (*const kinds[])(int n) = {send_random_bytes, send_truncated_request,
		send_long_line, connect_and_say_nothing};
	char *kept;
	pthread_t thread;
	size_t before = 0;

	want_server();
	kept = region_malloc("kept", STAYPUT_HOST, 3 * MIB);
	write_pattern(kept, 3 * MIB, 99);
	CHECK_EQ(pthread_create(&thread, NULL, churn, NULL), 0);
	/* Once more each, to see whether memory is flat. */
	for (int again = 0; again < 2; again++) {
		for (size_t kind = 0; kind < 4; kind++) {
			for (int n = 0; n < GARBAGE; n++)
				kinds[kind](n);
			check_served();
		}
		if (!again)
			before = resident_bytes();
	}
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	CHECK(resident_bytes() < before + 4 * MIB);
#endif
	stop = true;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(rounds > 0 && before > 0);
	CHECK_EQ(wrong_bytes(kept, 3 * MIB, 99), 0);
	CHECK_EQ(region_info("churn").count_active, 0);
	CHECK_EQ(region_info("kept").count_active, 1);
}

/* Sends as much as fits without taking an answer. */
static void send_without_reading(int fd)
{
	for (;;)
		if (send(fd, SHOW "\n", sizeof SHOW, MSG_NOSIGNAL | MSG_DONTWAIT) !=
			sizeof SHOW)
			return;
}

/* No more go than have to. */
static void sixty_four_have_room_and_one_more_takes_one_place(void)
{
	int fds[65];

	want_server();
	region_malloc("kv", STAYPUT_HOST, MIB);
	for (int i = 0; i < 64; i++)
		CHECK_HAS(request(fds[i] = connect_to(getpid()), SHOW), "\"result\"");
	for (int i = 0; i < 64; i++)
		CHECK_HAS(request(fds[i], SHOW), "\"result\"");
	CHECK_HAS(request(fds[64] = connect_to(getpid()), SHOW), "\"result\"");
	CHECK(!next_line(fds[0]));
	for (int i = 1; i < 65; i++)
		CHECK_HAS(request(fds[i], SHOW), "\"result\"");
}

static void serve_with_few_descriptors(int ready)
{
	struct rlimit limit;
	int next;

	region_malloc("kv", STAYPUT_DISCARD, MIB);
	next = dup(ready);
	CHECK(next >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = next + 3;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK_EQ(write(ready, "", 1), 1);
	while (region_info("kv").count_paused == 0)
		sched_yield();
	exit(0);
}

/* Those that hold the last descriptors and say nothing are in the way of one that does. */
static void idle_clients_make_room_where_descriptors_are_few(void)
{
	int ready[2], fds[10], status;
	pid_t pid;
	char c;

	want_server();
	CHECK(pipe(ready) == 0);
	pid = fork_child();
	if (pid == 0)
		serve_with_few_descriptors(ready[1]);
	CHECK_EQ(read(ready[0], &c, 1), 1);
	for (int i = 0; i < 10; i++)
		fds[i] = connect_to(pid);
	ask(fds[9], PAUSE);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

static void who_takes_too_long_is_closed(void)
{
	struct pollfd gone;
	int slow, deaf;

	want_server();
	region_malloc("kv", STAYPUT_HOST, MIB);
	slow = connect_to(getpid());
	deaf = connect_to(getpid());
	send_bytes(slow, "{", 1);
	send_without_reading(deaf);
	check_served();
	CHECK_HAS(next_line(slow), "not complete 10 s after its first byte");
	CHECK(!next_line(slow));
	gone = (struct pollfd){.fd = deaf};
	CHECK_EQ(poll(&gone, 1, -1), 1);
	CHECK(gone.revents & POLLHUP);
	check_served();
}

static void connect_as_nobody(const void *allowed)
{
	int fd;

	CHECK(setuid(NOBODY) == 0);
	fd = try_connect(socket_path(getppid()));
	if (!allowed) {
		CHECK(fd < 0 && errno == EACCES);
		return;
	}
	CHECK(fd >= 0);
	send_bytes(fd, PAUSE "\n", sizeof PAUSE);
	CHECK_HAS(next_line(fd),
		"{\"error\":{\"code\":-7,\"name\":\"IO\",\"message\":\"a "
		"process of user 0 is not for user 65534");
	CHECK(!next_line(fd));
}

static void another_user_is_refused(void)
{
	char folder[64];
	struct stat st;

#ifdef __SANITIZE_ADDRESS__
	SKIP("the sanitizer's log is not the other user's to write");
#endif
	if (geteuid() != 0)
		SKIP("only root can be another user");
	want_server();
	umask(0);
	region_malloc("kv", STAYPUT_HOST, MIB);
	snprintf(folder, sizeof folder, "%s/stayput", runtime_folder);
	CHECK(stat(folder, &st) == 0 && (st.st_mode & 07777) == 0700);
	CHECK(stat(socket_path(getpid()), &st) == 0 && (st.st_mode & 07777) == 0600);
	CHECK(chmod(runtime_folder, 0711) == 0 && chmod(folder, 0711) == 0);
	in_child(connect_as_nobody, NULL);
	CHECK(chmod(socket_path(getpid()), 0666) == 0);
	in_child(connect_as_nobody, "");
	CHECK_EQ(region_info("kv").count_active, 1);
	check_served();
}

static void root_may_steer_anybody(void)
{
	int ready[2], fd, status;
	pid_t pid;
	char c;

	if (geteuid() != 0)
		SKIP("only root can be another user");
	want_server();
	CHECK(chown(runtime_folder, NOBODY, NOBODY) == 0 && pipe(ready) == 0);
	pid = fork_child();
	if (pid == 0) {
		CHECK(setuid(NOBODY) == 0);
		region_malloc("kv", STAYPUT_DISCARD, MIB);
		CHECK_EQ(write(ready[1], "", 1), 1);
		while (region_info("kv").count_paused == 0)
			sched_yield();
		exit(0);
	}
	CHECK_EQ(read(ready[0], &c, 1), 1);
	fd = connect_to(pid);
	send_bytes(fd, PAUSE "\n", sizeof PAUSE);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

static const char *in_folder(const char *name)
{
	static char path[96];

	snprintf(path, sizeof path, "%s/%s", runtime_folder, name);
	return path;
}

/* A process goes on without a server, and says why. */
static void start_refused(const void *why)
{
	catch_stderr();
	region_malloc("kv", STAYPUT_DISCARD, MIB);
	CHECK_HAS(stderr_text(), why);
	CHECK_HAS(stderr_text(), "; this process cannot be controlled from outside\n");
	OK(stayput_pause(NULL));
}

static void a_path_that_is_taken_is_refused_and_left_alone(void)
{
	struct stat st;
	int fd;

	want_server();
	fd = open(in_folder("file"), O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0 && write(fd, "x", 1) == 1);
	setenv("STAYPUT_CONTROL", in_folder("file"), 1);
	in_child(start_refused, "/file is there already and is a regular file");
	CHECK(fstat(fd, &st) == 0 && st.st_nlink == 1 && st.st_size == 1);
	CHECK(symlink("/nowhere/at/all", in_folder("link")) == 0);
	setenv("STAYPUT_CONTROL", in_folder("link"), 1);
	in_child(start_refused, "/link is there already and is a symbolic link");
	CHECK(lstat(in_folder("link"), &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(mkdir(in_folder("folder"), 0700) == 0);
	setenv("STAYPUT_CONTROL", in_folder("folder"), 1);
	in_child(start_refused, "/folder is there already and is a folder");
}

static void a_folder_that_others_have_a_say_in_is_refused(void)
{
	want_server();
	CHECK(mkdir(in_folder("elsewhere"), 0700) == 0);
	CHECK(symlink("elsewhere", in_folder("stayput")) == 0);
	in_child(start_refused, "/stayput has to be a folder of user");
	in_child(start_refused, "and is a symbolic link");
	CHECK(unlink(in_folder("stayput")) == 0 &&
		mkdir(in_folder("stayput"), 0700) == 0);
	CHECK(chmod(in_folder("stayput"), 0770) == 0);
	in_child(start_refused, "and is one that others can write to");
	setenv("STAYPUT_CONTROL", in_folder("stayput/a.sock"), 1);
	in_child(start_refused, "/stayput is one that others can write to");
	if (geteuid() != 0)
		return;
	CHECK(chmod(in_folder("stayput"), 0700) == 0);
	CHECK(chown(in_folder("stayput"), NOBODY, NOBODY) == 0);
	in_child(start_refused, "/stayput is another user's");
	setenv("STAYPUT_CONTROL", "1", 1);
	in_child(start_refused, "and is another user's");
}

static void a_path_that_does_not_fit_is_refused(void)
{
	char path[200] = "/tmp/";

	memset(path + 5, 'x', 150);
	setenv("STAYPUT_CONTROL", path, 1);
	in_child(start_refused, "has 155 bytes and may have 107");
	setenv("STAYPUT_CONTROL", "/nowhere/at/all", 1);
	in_child(start_refused, "and /nowhere/at is No such file or directory");
}

static void start_at_path(const void *path)
{
	int fd;

	region_malloc("kv", STAYPUT_DISCARD, MIB);
	fd = try_connect(path);
	CHECK(fd >= 0);
	CHECK_HAS(request(fd, SHOW), "\"result\"");
}

static void a_path_can_be_chosen_and_is_used_again_when_its_process_is_gone(void)
{
	char path[64];
	struct stat st;

	/* In a folder that everybody may write to, but that is root's and sticky. */
	snprintf(path, sizeof path, "/tmp/test_control-%d.sock", (int)getpid());
	setenv("STAYPUT_CONTROL", path, 1);
	umask(0);
	in_child(start_at_path, path);
	CHECK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600);
	in_child(start_at_path, path);
	CHECK(unlink(path) == 0);
}

static void a_path_that_somebody_listens_at_is_refused(void)
{
	int ready[2], fd;
	char c, path[96];
	pid_t pid;

	want_server();
	strcpy(path, in_folder("a.sock"));
	setenv("STAYPUT_CONTROL", path, 1);
	CHECK(pipe(ready) == 0);
	pid = fork_child();
	if (pid == 0) {
		region_malloc("kv", STAYPUT_DISCARD, MIB);
		CHECK_EQ(write(ready[1], "", 1), 1);
		while (region_info("kv").count_paused == 0)
			sched_yield();
		exit(0);
	}
	CHECK_EQ(read(ready[0], &c, 1), 1);
	in_child(start_refused, "is a socket that another process listens at");
	fd = try_connect(path);
	CHECK(fd >= 0);
	send_bytes(fd, PAUSE "\n", sizeof PAUSE);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

static void start_in_temp(const void *unused)
{
	char path[96];

	(void)unused;
	snprintf(path, sizeof path, "%s/stayput-%d/%d.sock", runtime_folder,
		(int)geteuid(), (int)getpid());
	start_at_path(path);
}

static void without_a_runtime_folder_it_is_under_the_temporary_one(void)
{
	want_server();
	setenv("TMPDIR", runtime_folder, 1);
	unsetenv("XDG_RUNTIME_DIR");
	in_child(start_in_temp, NULL);
	setenv("XDG_RUNTIME_DIR", "relative", 1);
	in_child(start_in_temp, NULL);
	setenv("XDG_RUNTIME_DIR", "/nowhere/at/all", 1);
	in_child(start_in_temp, NULL);
	CHECK(mkdir(in_folder("open"), 0700) == 0 && chmod(in_folder("open"), 0777) == 0);
	setenv("XDG_RUNTIME_DIR", in_folder("open"), 1);
	in_child(start_in_temp, NULL);
}

/* Returns the pid of a process that had a server and is gone. */
static pid_t leave_a_socket(void)
{
	pid_t pid = fork_child();

	if (pid == 0) {
		region_malloc("kv", STAYPUT_DISCARD, MIB);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	return pid;
}

static void sockets_of_dead_processes_are_swept(void)
{
	static const char *const others[] = {"stayput/name.sock", "stayput/0.sock",
		"stayput/99999999.sock", "stayput/1.sockets"};
	int ready[2], end[2];
	char path[96], c;
	struct stat st;
	pid_t alive;

	want_server();
	CHECK(pipe(ready) == 0 && pipe(end) == 0);
	alive = fork_child();
	if (alive == 0) {
		region_malloc("kv", STAYPUT_DISCARD, MIB);
		CHECK_EQ(write(ready[1], "", 1), 1);
		exit(read(end[0], &c, 1) != 1);
	}
	CHECK_EQ(read(ready[0], &c, 1), 1);
	for (size_t i = 0; i < 4; i++)
		close(open(in_folder(others[i]), O_CREAT | O_WRONLY, 0600));
	strcpy(path, socket_path(leave_a_socket()));
	CHECK(stat(path, &st) == 0);
	region_malloc("kv", STAYPUT_DISCARD, MIB);
	check_served();
	CHECK(stat(path, &st) < 0);
	for (size_t i = 0; i < 4; i++)
		CHECK(stat(in_folder(others[i]), &st) == 0);
	CHECK(try_connect(socket_path(alive)) >= 0);
	CHECK_EQ(write(end[1], "", 1), 1);
	CHECK_EQ(waitpid(alive, NULL, 0), alive);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(garbage_harms_nothing),
		TEST(sixty_four_have_room_and_one_more_takes_one_place),
		TEST(idle_clients_make_room_where_descriptors_are_few),
		TEST(who_takes_too_long_is_closed),
		TEST(another_user_is_refused),
		TEST(root_may_steer_anybody),
		TEST(a_path_that_is_taken_is_refused_and_left_alone),
		TEST(a_folder_that_others_have_a_say_in_is_refused),
		TEST(a_path_that_does_not_fit_is_refused),
		TEST(a_path_can_be_chosen_and_is_used_again_when_its_process_is_gone),
		TEST(a_path_that_somebody_listens_at_is_refused),
		TEST(without_a_runtime_folder_it_is_under_the_temporary_one),
		TEST(sockets_of_dead_processes_are_swept),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
