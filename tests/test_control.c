/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked for through the socket of STAYPUT_CONTROL. */
#include "control.h"

#include <dirent.h>

static int count_threads(void)
{
	DIR *folder = opendir("/proc/self/task");
	int n = -2;

	CHECK(folder);
	while (readdir(folder))
		n++;
	closedir(folder);
	return n;
}

static void nothing_listens_unless_asked_for(void)
{
	static const char *const values[] = {NULL, "0"};

	for (size_t i = 0; i < 2; i++) {
		pid_t pid = fork_child();
		int status;

		if (pid > 0) {
			CHECK_EQ(waitpid(pid, &status, 0), pid);
			CHECK_EQ(status, 0);
			continue;
		}
		want_server();
		unsetenv("STAYPUT_CONTROL");
		if (values[i])
			setenv("STAYPUT_CONTROL", values[i], 1);
		region_malloc("kv", STAYPUT_HOST, MIB);
		CHECK(rmdir(runtime_folder) == 0);
		exit(0);
	}
}

static void make_mapping_memory(const char *tag, int policy)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemGenericAllocationHandle handle;

	CUDA(cudaFree(NULL));
	OK(stayput_region_push(tag, policy));
	CHECK_EQ(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_SUCCESS);
	OK(stayput_region_pop());
}

/* As JAX's, which may be all that the process has. */
static void memory_that_the_program_maps_itself_makes_it_listen(void)
{
	want_server();
	make_mapping_memory("pool", STAYPUT_HOST);
	CHECK_EQ(number_in(request(connect_to(getpid()), SHOW), "\"bytes_device\":"),
		2 * MIB);
}

static void memory_that_was_meant_for_a_region_makes_it_listen(void)
{
	want_server();
	make_mapping_memory("pool", STAYPUT_KEEP);
	CHECK_EQ(number_in(request(connect_to(getpid()), SHOW), "\"bytes_foreign_vmm\":"),
		2 * MIB);
}

/* Writes what is given to it into a JSON reader that is not ours. */
static void check_json(const char *text)
{
	FILE *python = popen("python3 -c 'import json,sys; json.load(sys.stdin)'", "w");

	CHECK(python);
	CHECK(fputs(text, python) >= 0);
	CHECK_EQ(pclose(python), 0);
}

static void show_tells_of_process_devices_and_regions(void)
{
	const char *shown;
	char part[64];
	int fd;

	want_server();
	region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);
	region_malloc("kept", STAYPUT_KEEP, 1000);
	OK(stayput_pause("kv"));
	fd = connect_to(getpid());
	shown = request(fd, SHOW);
	check_json(shown);
	snprintf(part, sizeof part,
		"{\"result\":{\"version\":\"%s\",\"pid\":%d,\"uid\":%d,", STAYPUT_VERSION,
		(int)getpid(), (int)geteuid());
	CHECK_HAS(shown, part);
	CHECK_HAS(shown, "test_control");
	CHECK_HAS(shown, "\"devices\":[{\"device\":0,\"uuid\":\"GPU-");
	CHECK_HAS(shown, "\"bytes_active\":0,\"bytes_paused\":3145728,"
			 "\"bytes_kept\":1000,\"bytes_device\":0,\"bytes_backup\":0}]");
	CHECK_HAS(shown, "{\"tag\":\"kv\",\"state\":\"paused\",");
	CHECK_HAS(shown, "\"running\":[],\"last\":{\"do\":\"pause\",\"tags\":[\"kv\"],"
			 "\"by\":0,\"code\":0,\"name\":\"OK\",\"message\":\"\",\"at\":");
	CHECK_EQ(number_in(shown, "\"bytes_released\":"), 4 * MIB);
	CHECK(number_in(shown, "\"uptime_seconds\":") <= TEST_SECONDS);
}

static void pause_and_resume_do_what_the_calls_do(void)
{
	const char *answer;
	char *p, *q;
	int fd;

	want_server();
	p = region_malloc("weights", STAYPUT_HOST, 5 * MIB);
	q = region_malloc("kv", STAYPUT_DISCARD, 5 * MIB);
	write_pattern(p, 5 * MIB, 7);
	fd = connect_to(getpid());
	answer = request(fd, "{\"stayput\":1,\"do\":\"pause\",\"tags\":[\"weights\"]}");
	check_json(answer);
	CHECK_HAS(answer, "{\"result\":{\"seconds\":");
	CHECK_EQ(number_in(answer, "\"allocations\":"), 1);
	CHECK_EQ(number_in(answer, "\"bytes_released\":"), 6 * MIB);
	CHECK_EQ(number_in(answer, "\"devices\":[{\"device\":"), 0);
	CHECK_EQ(query(p).state, STAYPUT_PAUSED);
	CHECK_EQ(query(q).state, STAYPUT_ACTIVE);
	CHECK_EQ(number_in(request(fd, PAUSE), "\"allocations\":"), 1);
	CHECK_EQ(query(q).state, STAYPUT_PAUSED);
	CHECK_EQ(device_used(0), 0);
	CHECK_EQ(number_in(request(fd, RESUME), "\"bytes_restored\":"), 12 * MIB);
	CHECK_EQ(wrong_bytes(p, 5 * MIB, 7), 0);
	CHECK_EQ(query(q).state, STAYPUT_ACTIVE);
}

static void a_policy_can_be_asked_for(void)
{
	char *p;
	int fd;

	want_server();
	p = region_malloc("kv", STAYPUT_HOST, 3 * MIB);
	write_pattern(p, 3 * MIB, 7);
	fd = connect_to(getpid());
	request(fd, "{\"stayput\":1,\"do\":\"pause\",\"policy\":\"zero\"}");
	CHECK_HAS(request(fd, RESUME), "\"result\"");
	CHECK_EQ(bytes_other_than(p, 3 * MIB, 0), 0);
}

static void errors_have_code_name_sentence_and_report(void)
{
	const char *answer;
	int fd;

	want_server();
	region_malloc("kv", STAYPUT_HOST, 3 * MIB);
	fd = connect_to(getpid());
	answer = request(fd, "{\"stayput\":1,\"do\":\"pause\",\"tags\":[\"nope\"]}");
	CHECK_EQ(strcmp(answer, "{\"error\":{\"code\":-2,\"name\":\"NOT_FOUND\","
				"\"message\":\"no region is tagged nope\"}}"),
		0);
	request(fd, PAUSE);
	fakecuda_budget(0, 0);
	answer = request(fd, "{\"stayput\":1,\"do\":\"resume\",\"wait_ms\":0}");
	check_json(answer);
	CHECK_HAS(answer, "{\"error\":{\"code\":-4,\"name\":\"DEVICE_MEMORY\","
			  "\"message\":\"resuming region kv needs 4194304 bytes");
	CHECK_HAS(answer, ",\"report\":{\"seconds\":");
	CHECK_EQ(number_in(answer, "\"failed\":"), 1);
	answer = request(fd, SHOW);
	CHECK_HAS(answer, "\"last\":{\"do\":\"resume\"");
	CHECK_HAS(answer, "\"name\":\"DEVICE_MEMORY\",\"message\":\"resuming region kv");
}

static void a_resume_waits_as_long_as_it_is_asked_to(void)
{
	int fd;

	want_server();
	region_malloc("kv", STAYPUT_HOST, 3 * MIB);
	OK(stayput_pause("kv"));
	fakecuda_budget(0, 0);
	fd = connect_to(getpid());
	ask(fd, "{\"stayput\":1,\"do\":\"resume\",\"wait_ms\":86400000}");
	CHECK_HAS(next_line(fd), "{\"progress\":{\"bytes\":0,\"total\":4194304,");
	fakecuda_budget(0, 64 * MIB);
	CHECK_HAS(outcome(fd), "\"result\"");
	CHECK_EQ(region_info("kv").count_active, 1);
}

static void a_request_that_cannot_be_used_does_not_end_the_connection(void)
{
	static const char *const bad[][2] = {
		{"{\"do\":\"show\"}", "has no member stayput"},
		{"{\"stayput\":2,\"do\":\"show\"}", "version 1 of the protocol"},
		{"{\"stayput\":1}", "has no member do"},
		{"{\"stayput\":1,\"do\":\"stop\"}", "do is stop"},
		{"{\"stayput\":1,\"do\":\"pause\",\"tags\":[\"a b\"]}", "is none"},
		{"{\"stayput\":1,\"do\":\"pause\",\"block\":1}", "block is not"},
	};
	int fd;

	want_server();
	region_malloc("kv", STAYPUT_HOST, 3 * MIB);
	fd = connect_to(getpid());
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const char *answer = request(fd, bad[i][0]);

		CHECK_HAS(answer, "{\"error\":{\"code\":-1,\"name\":\"INVALID\"");
		CHECK_HAS(answer, bad[i][1]);
	}
	CHECK_EQ(region_info("kv").count_active, 1);
	CHECK_HAS(request(fd, SHOW), "\"result\"");
}

static void a_line_without_end_counts_once_no_more_can_come(void)
{
	int fd;

	want_server();
	region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);
	fd = connect_to(getpid());
	send_bytes(fd, PAUSE, strlen(PAUSE));
	shutdown(fd, SHUT_WR);
	CHECK_HAS(outcome(fd), "\"result\"");
	CHECK(!next_line(fd));
	CHECK_EQ(region_info("kv").count_paused, 1);
}

static void requests_sent_at_once_are_answered_in_turn(void)
{
	int fd;

	want_server();
	region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);
	fd = connect_to(getpid());
	ask(fd, PAUSE "\n" SHOW "\n" RESUME "\n" SHOW);
	CHECK_HAS(outcome(fd), "\"bytes_released\":4194304");
	CHECK_HAS(outcome(fd), "\"state\":\"paused\"");
	CHECK_HAS(outcome(fd), "\"bytes_restored\":4194304");
	CHECK_HAS(outcome(fd), "\"state\":\"active\"");
}

static void progress_is_told_while_an_operation_runs(void)
{
	static const char *const steps[] = {PAUSE, RESUME};
	enum { SIZE = 320 << 20 };
	int fd;

	want_server();
	region_malloc("kv", STAYPUT_HOST, SIZE);
	fd = connect_to(getpid());
	/* Each copy of 64 MiB takes longer than the time between two lines. */
	fakecuda_delay_us(200000);
	for (int i = 0; i < 2; i++) {
		const char *line;
		long long bytes, before = 0;
		int between = 0;

		ask(fd, steps[i]);
		while ((line = next_line(fd)) && strstr(line, "{\"progress\":")) {
			bytes = number_in(line, "\"bytes\":");
			CHECK(bytes >= before && bytes <= SIZE);
			CHECK(bytes == 0 || number_in(line, "\"total\":") == SIZE);
			between += bytes > 0 && bytes < SIZE;
			before = bytes;
		}
		CHECK_HAS(line, "\"result\"");
		CHECK(between > 0);
	}
}

static void what_runs_is_shown_and_others_are_busy_or_wait_as_they_ask(void)
{
	int pauser, other, waiter;
	const char *shown;
	char *p, by[32];

	want_server();
	p = region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);
	close_gate();
	pauser = connect_to(getpid());
	other = connect_to(getpid());
	waiter = connect_to(getpid());
	ask(pauser, PAUSE);
	wait_until_pausing(p);
	shown = request(other, SHOW);
	CHECK_HAS(shown, "\"running\":[{\"do\":\"pause\",\"tags\":[\"kv\"],");
	snprintf(by, sizeof by, "\"by\":%d,", (int)getpid());
	CHECK_HAS(shown, by);
	CHECK_HAS(shown, "\"bytes\":0,\"total\":4194304,");
	shown = request(other, "{\"stayput\":1,\"do\":\"resume\",\"block\":false}");
	CHECK_HAS(shown, "{\"error\":{\"code\":-3,\"name\":\"BUSY\","
			 "\"message\":\"another operation on region kv is under way\"}}");
	ask(waiter, RESUME);
	CHECK_HAS(next_line(waiter), "{\"progress\":{\"bytes\":0,\"total\":0,");
	open_gate();
	CHECK_HAS(outcome(pauser), "\"bytes_released\":4194304");
	CHECK_HAS(outcome(waiter), "\"bytes_restored\":4194304");
}

static void more_operations_than_there_are_threads_for_are_busy(void)
{
	int fds[9];
	char *p;

	want_server();
	p = region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);
	close_gate();
	for (int i = 0; i < 9; i++) {
		fds[i] = connect_to(getpid());
		ask(fds[i], PAUSE);
		if (i < 8)
			CHECK_HAS(next_line(fds[i]), "\"progress\"");
	}
	wait_until_pausing(p);
	CHECK_HAS(next_line(fds[8]), "\"name\":\"BUSY\"");
	CHECK_HAS(request(fds[8], SHOW), "\"running\":[{");
	open_gate();
	for (int i = 0; i < 8; i++)
		CHECK_HAS(outcome(fds[i]), "\"result\"");
	CHECK_HAS(request(fds[8], PAUSE), "\"result\"");
}

static void an_operation_ends_without_its_client(void)
{
	int fd;
	char *p;

	want_server();
	p = region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);
	close_gate();
	fd = connect_to(getpid());
	ask(fd, PAUSE);
	close(fd);
	wait_until_pausing(p);
	open_gate();
	fd = connect_to(getpid());
	while (strstr(request(fd, SHOW), "\"last\":null"))
		sched_yield();
	CHECK_EQ(query(p).state, STAYPUT_PAUSED);
	for (int i = 0; i < 20; i++)
		CHECK_HAS(request(fd, i % 2 ? PAUSE : RESUME), "\"result\"");
}

static int told;

static void count_calls(int change, const char *tag, const struct stayput_range *ranges,
	size_t count, void *user)
{
	(void)change;
	(void)tag;
	(void)ranges;
	(void)count;
	(void)user;
	told++;
}

static void a_checked_pause_is_refused_while_a_device_has_work_in_flight(void)
{
	static const char checked[] = "{\"stayput\":1,\"do\":\"pause\",\"check\":true}";
	struct stayput_options options = {
		.struct_size = sizeof options, .only_if_idle = 1};
	const char *answer;
	cudaStream_t stream;
	cudaGraph_t graph;
	int fd, threads;

	want_server();
	region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);
	OK(stayput_on_change(count_calls, NULL));
	close_gate();
	fd = connect_to(getpid());
	answer = request(fd, checked);
	CHECK_HAS(answer, "\"name\":\"BUSY\",\"message\":\"device 0 has work in flight");
	threads = count_threads();
	for (int i = 0; i < 5; i++)
		CHECK_EQ(stayput_pause_ex(NULL, 0, &options, NULL), STAYPUT_ERR_BUSY);
	CHECK_HAS(stayput_last_error(), "device 0 has work in flight");
	CHECK(count_threads() <= threads);
	CHECK_EQ(told, 0);
	CHECK_EQ(region_info("kv").count_active, 1);
	open_gate();
	CUDA(cudaDeviceSynchronize());
	/* Waits for the thread that was left behind: it held captures off. */
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	CHECK_HAS(request(fd, checked), "a stream capture is in progress");
	CUDA(cudaStreamEndCapture(stream, &graph));
	CHECK_HAS(request(fd, checked), "\"result\"");
	CHECK_EQ(told, 1);
	OK(stayput_resume(NULL));
	OK(stayput_pause_ex(NULL, 0, &options, NULL));
}

static void short_work_is_work_too(void)
{
	struct stayput_options options = {
		.struct_size = sizeof options, .only_if_idle = 1};
	char *p;
	int busy = 0;

	region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);
	CUDA(cudaMalloc((void **)&p, 4096));
	fakecuda_delay_us(5000);
	/* On a busy machine it may have ended before anybody looks, but not every time. */
	for (int i = 0; i < 20; i++) {
		OK(stayput_resume(NULL));
		CUDA(cudaMemsetAsync(p, 0, 4096, NULL));
		busy += stayput_pause_ex(NULL, 0, &options, NULL) == STAYPUT_ERR_BUSY;
		CUDA(cudaDeviceSynchronize());
	}
	CHECK(busy > 0);
}

/* Asks the process that `pid` is, which has a server. */
static void check_it_answers(pid_t pid)
{
	char part[32];
	int fd = connect_to(pid);

	snprintf(part, sizeof part, "\"pid\":%d,", (int)pid);
	CHECK_HAS(request(fd, SHOW), part);
	close(fd);
}

static void wait_for_byte(int fd)
{
	char c;

	CHECK_EQ(read(fd, &c, 1), 1);
}

static void a_child_from_before_the_first_allocation_has_its_own_server(void)
{
	int ready[2], done[2];
	pid_t pid;

	want_server();
	CHECK(pipe(ready) == 0 && pipe(done) == 0);
	pid = fork_child();
	if (pid == 0) {
		region_malloc("child", STAYPUT_HOST, MIB);
		CHECK_EQ(write(ready[1], "", 1), 1);
		wait_for_byte(done[0]);
		exit(0);
	}
	region_malloc("parent", STAYPUT_HOST, MIB);
	wait_for_byte(ready[0]);
	check_it_answers(pid);
	check_it_answers(getpid());
	CHECK_EQ(write(done[1], "", 1), 1);
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

/* A process with a server and a client: forks, and exits before its child does. */
static void exit_before_child(int ready, int forked, int child_may_end)
{
	region_malloc("kv", STAYPUT_HOST, MIB);
	CHECK_EQ(write(ready, "", 1), 1);
	wait_for_byte(forked);
	if (fork_child() == 0) {
		CHECK_EQ(stayput_pause("kv"), STAYPUT_ERR_UNSUPPORTED);
		CHECK(stayput_snapshot_json(NULL, 0) > 0);
		CHECK_EQ(write(ready, "", 1), 1);
		wait_for_byte(child_may_end);
		_exit(0);
	}
	exit(0);
}

static void a_child_keeps_nothing_of_its_parents_server(void)
{
	int ready[2], forked[2], done[2], fd, status;
	pid_t pid;

	want_server();
	CHECK(pipe(ready) == 0 && pipe(forked) == 0 && pipe(done) == 0);
	pid = fork_child();
	if (pid == 0)
		exit_before_child(ready[1], forked[0], done[0]);
	wait_for_byte(ready[0]);
	fd = connect_to(pid);
	CHECK_HAS(request(fd, SHOW), "\"result\"");
	CHECK_EQ(write(forked[1], "", 1), 1);
	wait_for_byte(ready[0]);
	CHECK(!next_line(fd));
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(try_connect(socket_path(pid)), -1);
	CHECK_EQ(errno, ECONNREFUSED);
	CHECK_EQ(write(done[1], "", 1), 1);
}

static void *pause_all(void *unused)
{
	(void)unused;
	OK(stayput_pause(NULL));
	return NULL;
}

static void operations_of_a_parent_are_not_its_childs(void)
{
	char json[4096];
	pthread_t thread;
	int status;
	pid_t pid;
	char *p = region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);

	close_gate();
	CHECK_EQ(pthread_create(&thread, NULL, pause_all, NULL), 0);
	wait_until_pausing(p);
	CHECK(stayput_snapshot_json(json, sizeof json) < sizeof json);
	CHECK_HAS(json, "\"running\":[{\"do\":\"pause\"");
	pid = fork_child();
	if (pid == 0) {
		CHECK(stayput_snapshot_json(json, sizeof json) < sizeof json);
		CHECK_HAS(json, "\"running\":[],");
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	open_gate();
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static bool server_runs(void)
{
	DIR *folder = opendir("/proc/self/task");
	struct dirent *entry;
	bool found = false;

	CHECK(folder);
	while ((entry = readdir(folder))) {
		char path[300], name[32] = "";
		FILE *file;

		snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "re");
		found |= file && fgets(name, sizeof name, file) &&
			 strcmp(name, "stayput-control\n") == 0;
		if (file)
			fclose(file);
	}
	closedir(folder);
	return found;
}

/* Closes all but its ends of two pipes, as some daemons do. */
static void close_everything(int ready, int end)
{
	region_malloc("kv", STAYPUT_HOST, MIB);
	CHECK(dup2(ready, 1) == 1 && dup2(end, 0) == 0);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	CHECK_EQ(write(1, "", 1), 1);
	wait_for_byte(0);
	while (server_runs())
		sched_yield();
	_exit(0);
}

static void a_program_that_closes_every_descriptor_is_left_alone(void)
{
	int ready[2], end[2], fd, status;
	pid_t pid;

	want_server();
	CHECK(pipe(ready) == 0 && pipe(end) == 0);
	pid = fork_child();
	if (pid == 0)
		close_everything(ready[1], end[0]);
	wait_for_byte(ready[0]);
	/* While the server waits, the socket is there still. */
	fd = try_connect(socket_path(pid));
	CHECK(fd < 0 || !next_line(fd));
	CHECK_EQ(try_connect(socket_path(pid)), -1);
	CHECK_EQ(errno, ECONNREFUSED);
	CHECK_EQ(write(end[1], "", 1), 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

/* From 3 on: two ends of a socket pair in turn, with something to read at both. */
static void take_numbers(void)
{
	int pair[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == 3);
	for (int fd = 5; fd < 64; fd++)
		CHECK_EQ(dup(pair[fd % 2]), fd);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(write(pair[i], "ours too", 8), 8);
}

static void check_numbers(void)
{
	char text[9] = "";

	for (int fd = 3; fd < 64; fd++)
		CHECK(fcntl(fd, F_GETFD) == 0);
	for (int fd = 3; fd < 5; fd++) {
		CHECK_EQ(recv(fd, text, 8, MSG_PEEK | MSG_DONTWAIT), 8);
		CHECK(strcmp(text, "ours too") == 0);
	}
}

static void close_everything_and_go_on(int ready, int end)
{
	int status, client;
	pid_t pid;

	region_malloc("kv", STAYPUT_HOST, MIB);
	/* Its start, when it looks for old sockets, is over. */
	client = connect_to(getpid());
	ask(client, SHOW);
	CHECK_HAS(next_line(client), "\"result\"");
	CHECK(dup2(ready, 1) == 1 && dup2(end, 0) == 0);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	take_numbers();
	pid = fork_child();
	if (pid == 0) {
		check_numbers();
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(write(1, "", 1), 1);
	wait_for_byte(0);
	while (server_runs())
		sched_yield();
	check_numbers();
	_exit(0);
}

static void what_is_opened_under_old_numbers_is_the_programs(void)
{
	int ready[2], end[2], status;
	pid_t pid;

#ifdef __SANITIZE_THREAD__
	SKIP("the program and the server race for the numbers, which is what it is "
	     "about");
#endif
	want_server();
	CHECK(pipe(ready) == 0 && pipe(end) == 0);
	pid = fork_child();
	if (pid == 0)
		close_everything_and_go_on(ready[1], end[0]);
	wait_for_byte(ready[0]);
	try_connect(socket_path(pid));
	CHECK_EQ(write(end[1], "", 1), 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

static void exit_during_pause(int ready, int may_exit)
{
	char *p = region_malloc("kv", STAYPUT_DISCARD, 3 * MIB);

	close_gate();
	CHECK_EQ(write(ready, "", 1), 1);
	wait_until_pausing(p);
	wait_for_byte(may_exit);
	exit(7);
}

static void the_program_exits_whatever_clients_and_operations_there_are(void)
{
	int ready[2], may_exit[2], fd, status;
	pid_t pid;

	want_server();
	CHECK(pipe(ready) == 0 && pipe(may_exit) == 0);
	pid = fork_child();
	if (pid == 0)
		exit_during_pause(ready[1], may_exit[0]);
	wait_for_byte(ready[0]);
	fd = connect_to(pid);
	ask(fd, PAUSE);
	CHECK_HAS(next_line(fd), "\"progress\"");
	CHECK_EQ(write(may_exit[1], "", 1), 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 7);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(nothing_listens_unless_asked_for),
		TEST(memory_that_the_program_maps_itself_makes_it_listen),
		TEST(memory_that_was_meant_for_a_region_makes_it_listen),
		TEST(show_tells_of_process_devices_and_regions),
		TEST(pause_and_resume_do_what_the_calls_do),
		TEST(a_policy_can_be_asked_for),
		TEST(errors_have_code_name_sentence_and_report),
		TEST(a_resume_waits_as_long_as_it_is_asked_to),
		TEST(a_request_that_cannot_be_used_does_not_end_the_connection),
		TEST(a_line_without_end_counts_once_no_more_can_come),
		TEST(requests_sent_at_once_are_answered_in_turn),
		TEST(progress_is_told_while_an_operation_runs),
		TEST(what_runs_is_shown_and_others_are_busy_or_wait_as_they_ask),
		TEST(more_operations_than_there_are_threads_for_are_busy),
		TEST(an_operation_ends_without_its_client),
		TEST(a_checked_pause_is_refused_while_a_device_has_work_in_flight),
		TEST(short_work_is_work_too),
		TEST(operations_of_a_parent_are_not_its_childs),
		TEST(a_child_from_before_the_first_allocation_has_its_own_server),
		TEST(a_child_keeps_nothing_of_its_parents_server),
		TEST(a_program_that_closes_every_descriptor_is_left_alone),
		TEST(what_is_opened_under_old_numbers_is_the_programs),
		TEST(the_program_exits_whatever_clients_and_operations_there_are),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
