/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region memory in two processes. A test is the first; the other is forked before either
 * uses CUDA, and does there what it is told: a function of this program with its arguments.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "ipc.h"
#include "support.h"

/* In a second process, one call after the other; results come back in the same place. */
struct call {
	void (*run)(struct call *call);
	char *ptr;
	size_t size;
	unsigned number;
	int code;
	cudaIpcMemHandle_t handle;
	struct stayput_report report;
	char text[512];
};

struct other {
	pid_t pid;
	int socket;
};

static int obeyed; /* the socket, in the other process */

static void obey(int socket)
{
	struct call call;

	obeyed = socket;
	while (read(socket, &call, sizeof call) == sizeof call) {
		call.run(&call);
		CHECK_EQ(write(socket, &call, sizeof call), sizeof call);
	}
}

static const char *shared_path(void)
{
	static char path[32];

	if (!*path) {
		int fd;

		strcpy(path, "/tmp/stayput-test-XXXXXX");
		fd = mkstemp(path);
		CHECK(fd >= 0);
		close(fd);
	}
	return path;
}

static void remove_shared(void)
{
	unlink(shared_path());
}

static struct other start_other(void)
{
	struct other other;
	int sockets[2];

	setenv("FAKECUDA_SHARE", shared_path(), 1);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	other.pid = fork();
	CHECK(other.pid >= 0);
	if (other.pid == 0) {
		alarm(TEST_SECONDS);
		close(sockets[0]);
		obey(sockets[1]);
		_exit(0);
	}
	atexit(remove_shared);
	close(sockets[1]);
	other.socket = sockets[0];
	return other;
}

static void tell(const struct other *other, const struct call *call)
{
	CHECK_EQ(write(other->socket, call, sizeof *call), sizeof *call);
}

static struct call hear(const struct other *other)
{
	struct call call;

	CHECK_EQ(recv(other->socket, &call, sizeof call, MSG_WAITALL), sizeof call);
	return call;
}

static struct call in_other(const struct other *other, struct call call)
{
	tell(other, &call);
	return hear(other);
}

static void kill_other(const struct other *other)
{
	int status;

	CHECK_EQ(kill(other->pid, SIGKILL), 0);
	CHECK_EQ(waitpid(other->pid, &status, 0), other->pid);
}

/* What the other process can be told. */

static void do_open(struct call *c)
{
	c->code = cudaIpcOpenMemHandle(
		(void **)&c->ptr, c->handle, cudaIpcMemLazyEnablePeerAccess);
	snprintf(c->text, sizeof c->text, "%s", stayput_last_error());
	cudaGetLastError();
}

static void do_close(struct call *c)
{
	c->code = cudaIpcCloseMemHandle(c->ptr);
	cudaGetLastError();
}

static void do_free(struct call *c)
{
	c->code = cudaFree(c->ptr);
	cudaGetLastError();
}

static void do_write(struct call *c)
{
	write_pattern(c->ptr, c->size, c->number);
}

static void do_set(struct call *c)
{
	CUDA(cudaMemset(c->ptr, (int)c->number, c->size));
	CUDA(cudaDeviceSynchronize());
}

/* Begun, not waited for. */
static void do_clear(struct call *c)
{
	CUDA(cudaMemsetAsync(c->ptr, 0, c->size, NULL));
}

static void do_count_wrong(struct call *c)
{
	c->size = wrong_bytes(c->ptr, c->size, c->number);
}

static void do_range(struct call *c)
{
	CUdeviceptr base;

	c->code = cuMemGetAddressRange(&base, &c->size, (CUdeviceptr)c->ptr);
	c->ptr = (char *)base;
}

static void do_malloc(struct call *c)
{
	c->ptr = region_malloc("theirs", STAYPUT_HOST, c->size);
	CUDA(cudaIpcGetMemHandle(&c->handle, c->ptr));
}

static void do_pause(struct call *c)
{
	c->report.struct_size = sizeof c->report;
	c->code = stayput_pause_ex(NULL, 0, NULL, &c->report);
	snprintf(c->text, sizeof c->text, "%s", stayput_last_error());
}

/* Bytes that others hold, found out by a pause that does nothing then. */
static void do_held(struct call *c)
{
	const struct stayput_options options = {
		.struct_size = sizeof options, .fail_if_held = 1};

	c->report.struct_size = sizeof c->report;
	c->code = stayput_pause_ex(NULL, 0, &options, &c->report);
	c->size = c->report.total.bytes_held;
	OK(stayput_resume(NULL));
}

static void do_set_device(struct call *c)
{
	CUDA(cudaSetDevice(c->number));
}

/* Once all that was begun has run. */
static void do_faults(struct call *c)
{
	c->code = cudaDeviceSynchronize();
	c->size = faults();
}

static struct call open_in(const struct other *other, cudaIpcMemHandle_t handle)
{
	return in_other(other, (struct call){.run = do_open, .handle = handle});
}

static char *opened_in(const struct other *other, cudaIpcMemHandle_t handle)
{
	struct call c = open_in(other, handle);

	CHECK_EQ(c.code, cudaSuccess);
	return c.ptr;
}

static void close_in(const struct other *other, char *ptr)
{
	CUDA(in_other(other, (struct call){.run = do_close, .ptr = ptr}).code);
}

static void write_in(const struct other *other, char *ptr, size_t size, unsigned seed)
{
	in_other(other,
		(struct call){.run = do_write, .ptr = ptr, .size = size, .number = seed});
}

static size_t wrong_in(const struct other *other, char *ptr, size_t size, unsigned seed)
{
	return in_other(other,
		(struct call){
			.run = do_count_wrong, .ptr = ptr, .size = size, .number = seed})
		.size;
}

static cudaIpcMemHandle_t handle_of(void *ptr)
{
	cudaIpcMemHandle_t handle;

	CUDA(cudaIpcGetMemHandle(&handle, ptr));
	return handle;
}

static struct stayput_report pause_reported(int want, bool fail_if_held)
{
	struct stayput_report report = {.struct_size = sizeof report};
	struct stayput_options options = {
		.struct_size = sizeof options, .fail_if_held = fail_if_held};

	CHECK_EQ(stayput_pause_ex(NULL, 0, &options, &report), want);
	return report;
}

/* Contents. */

static void both_processes_see_one_memory(void)
{
	struct other other = start_other();
	size_t size = 5 * MIB + 300;
	char *mine = region_malloc("shared", STAYPUT_HOST, size), *theirs;

	write_pattern(mine, size, 1);
	theirs = opened_in(&other, handle_of(mine));
	CHECK_EQ(wrong_in(&other, theirs, size, 1), 0);
	write_in(&other, theirs, size, 2);
	CHECK_EQ(wrong_bytes(mine, size, 2), 0);
	close_in(&other, theirs);
	CUDA(cudaFree(mine));
	CHECK_EQ(device_used(0), 0);
}

static void small_allocations_are_found_in_their_block(void)
{
	struct other other = start_other();
	char *first = region_malloc("shared", STAYPUT_HOST, 3000);
	char *second = region_malloc("shared", STAYPUT_HOST, 5000);
	char *theirs;

	write_pattern(first, 3000, 1);
	write_pattern(second, 5000, 2);
	theirs = opened_in(&other, handle_of(second));
	CHECK_EQ(wrong_in(&other, theirs, 5000, 2), 0);
	write_in(&other, theirs, 5000, 3);
	CHECK_EQ(wrong_bytes(second, 5000, 3), 0);
	CHECK_EQ(wrong_bytes(first, 3000, 1), 0);
	CHECK(opened_in(&other, handle_of(first)) != theirs);
}

/* PyTorch sends the handle of a segment's base and the tensor's offset in it. */
static void a_handle_from_inside_is_that_of_the_whole(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 6 * MIB), *theirs;
	cudaIpcMemHandle_t base = handle_of(mine), inside = handle_of(mine + 3 * MIB + 7);

	CHECK(memcmp(&base, &inside, sizeof base) == 0);
	write_pattern(mine + 4 * MIB, MIB, 1);
	theirs = opened_in(&other, inside);
	CHECK_EQ(wrong_in(&other, theirs + 4 * MIB, MIB, 1), 0);
}

static void ranges_are_the_exporters(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 5 * MIB + 300);
	char *small = region_malloc("shared", STAYPUT_HOST, 3000), *theirs;
	struct call c;

	region_malloc("shared", STAYPUT_HOST, 3000);
	theirs = opened_in(&other, handle_of(mine));
	c = in_other(&other, (struct call){.run = do_range, .ptr = theirs + MIB});
	CHECK_EQ(c.code, CUDA_SUCCESS);
	CHECK(c.ptr == theirs);
	CHECK_EQ(c.size, 5 * MIB + 300);
	theirs = opened_in(&other, handle_of(small));
	c = in_other(&other, (struct call){.run = do_range, .ptr = theirs + 2999});
	CHECK(c.ptr == theirs);
	CHECK_EQ(c.size, 3000);
}

static void an_importer_may_be_on_another_device(void)
{
	struct other other;
	char *mine, *theirs;

	setenv("FAKECUDA_DEVICES", "2", 1);
	other = start_other();
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	write_pattern(mine, 3 * MIB, 1);
	in_other(&other, (struct call){.run = do_set_device, .number = 1});
	theirs = opened_in(&other, handle_of(mine));
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
	write_in(&other, theirs, 3 * MIB, 2);
	CHECK_EQ(wrong_bytes(mine, 3 * MIB, 2), 0);
	in_other(&other, (struct call){.run = do_set_device, .number = 0});
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 2), 0);
	close_in(&other, theirs);
}

/* Counting. */

static void what_is_opened_twice_is_closed_twice(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB), *theirs;
	cudaIpcMemHandle_t handle = handle_of(mine);

	write_pattern(mine, 3 * MIB, 1);
	theirs = opened_in(&other, handle);
	CHECK(opened_in(&other, handle) == theirs);
	close_in(&other, theirs);
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
	CHECK_EQ(pause_reported(STAYPUT_OK, false).total.bytes_held, 4 * MIB);
	close_in(&other, theirs);
	CHECK_EQ(in_other(&other, (struct call){.run = do_close, .ptr = theirs}).code,
		cudaErrorInvalidValue);
	CHECK_EQ(pause_reported(STAYPUT_OK, false).total.bytes_held, 0);
	CHECK_EQ(device_used(0), 0);
}

static void one_of_two_can_be_closed(void)
{
	struct other other = start_other();
	char *first = region_malloc("shared", STAYPUT_HOST, 3 * MIB), *theirs;
	char *second = region_malloc("shared", STAYPUT_HOST, 6 * MIB);

	opened_in(&other, handle_of(first));
	theirs = opened_in(&other, handle_of(second));
	CHECK_EQ(pause_reported(STAYPUT_ERR_BUSY, true).total.bytes_held, 10 * MIB);
	close_in(&other, theirs);
	CHECK_EQ(pause_reported(STAYPUT_ERR_BUSY, true).total.bytes_held, 4 * MIB);
}

enum { OPENERS = 4, HANDLES = 3 };

static cudaIpcMemHandle_t many[HANDLES];

/* Each handle's memory begins with its number. */
static void *open_and_close(void *unused)
{
	(void)unused;
	for (int i = 0; i < 60; i++) {
		char byte;
		void *ptr;

		CUDA(cudaIpcOpenMemHandle(
			&ptr, many[i % HANDLES], cudaIpcMemLazyEnablePeerAccess));
		CUDA(cudaMemcpy(&byte, ptr, 1, cudaMemcpyDeviceToHost));
		CHECK_EQ(byte, i % HANDLES);
		CUDA(cudaIpcCloseMemHandle(ptr));
	}
	return NULL;
}

static void threads_may_open_at_once(void)
{
	struct other other = start_other();
	pthread_t threads[OPENERS];

	for (int i = 0; i < HANDLES; i++) {
		struct call c = in_other(
			&other, (struct call){.run = do_malloc, .size = 3 * MIB});

		many[i] = c.handle;
		c.run = do_set;
		c.number = i;
		in_other(&other, c);
	}
	CUDA(cudaFree(NULL));
	for (int i = 0; i < OPENERS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, open_and_close, NULL), 0);
	for (int i = 0; i < OPENERS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 0);
}

static void closing_waits_for_the_work(void)
{
	struct other other;
	struct call c;
	char *mine, *theirs;

	setenv("FAKECUDA_DELAY_US", "20000", 1);
	other = start_other();
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	theirs = opened_in(&other, handle_of(mine));
	in_other(&other, (struct call){.run = do_clear, .ptr = theirs, .size = 3 * MIB});
	close_in(&other, theirs);
	c = in_other(&other, (struct call){.run = do_faults});
	CHECK_EQ(c.code, cudaSuccess);
	CHECK_EQ(c.size, 0);
}

/* Pauses. */

static void a_pause_leaves_active_what_is_held(void)
{
	struct other other = start_other();
	char *held = region_malloc("held", STAYPUT_HOST, 3 * MIB);
	char *idle = region_malloc("idle", STAYPUT_HOST, 6 * MIB), *theirs;
	struct stayput_report report;
	char pid[32];

	catch_stderr();
	write_pattern(held, 3 * MIB, 1);
	write_pattern(idle, 6 * MIB, 2);
	theirs = opened_in(&other, handle_of(held));
	report = pause_reported(STAYPUT_OK, false);
	CHECK_EQ(report.total.bytes_held, 4 * MIB);
	CHECK_EQ(report.device[0].bytes_held, 4 * MIB);
	CHECK_EQ(report.total.bytes_released, 6 * MIB);
	CHECK_EQ(report.allocations, 1);
	CHECK_EQ(report.failed, 0);
	CHECK_EQ(query(held).state, STAYPUT_ACTIVE);
	CHECK_EQ(query(idle).state, STAYPUT_PAUSED);
	snprintf(pid, sizeof pid, "process %d", other.pid);
	CHECK_HAS(stayput_last_error(), "4194304 bytes of region held");
	CHECK_HAS(stayput_last_error(), pid);
	CHECK_HAS(stderr_text(), pid);
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
	close_in(&other, theirs);
	CHECK_EQ(pause_reported(STAYPUT_OK, false).total.bytes_held, 0);
	CHECK_EQ(device_used(0), 0);
	OK(stayput_resume(NULL));
	CHECK_EQ(wrong_bytes(held, 3 * MIB, 1), 0);
	CHECK_EQ(wrong_bytes(idle, 6 * MIB, 2), 0);
	theirs = opened_in(&other, handle_of(held));
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
}

/* An exporter in a container does not see processes outside of it. */
static void a_holder_that_cannot_be_seen_is_not_given_a_number(void)
{
	struct other other;
	struct call c;
	void *ptr;

#ifdef __SANITIZE_ADDRESS__
	SKIP("the sanitizer waits for a thread that this process cannot have any more");
#endif
	if (unshare(CLONE_NEWPID) != 0)
		SKIP("no process namespace of its own");
	setenv("STAYPUT_LOG", "error", 1);
	other = start_other();
	c = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	c = in_other(&other, (struct call){.run = do_pause});
	CHECK_EQ(c.report.total.bytes_held, 4 * MIB);
	CHECK_HAS(c.text, "one of them in another process namespace; they stay");
}

static void a_pause_may_refuse_when_something_is_held(void)
{
	struct other other = start_other();
	char *held = region_malloc("held", STAYPUT_HOST, 3 * MIB);
	char *idle = region_malloc("idle", STAYPUT_HOST, 6 * MIB), *theirs;
	char pid[32];

	theirs = opened_in(&other, handle_of(held));
	CHECK_EQ(pause_reported(STAYPUT_ERR_BUSY, true).total.bytes_held, 4 * MIB);
	snprintf(pid, sizeof pid, "process %d", other.pid);
	CHECK_HAS(stayput_last_error(), "4194304 bytes of region held");
	CHECK_HAS(stayput_last_error(), pid);
	CHECK_HAS(stayput_last_error(), "nothing was paused");
	CHECK_EQ(query(held).state, STAYPUT_ACTIVE);
	CHECK_EQ(query(idle).state, STAYPUT_ACTIVE);
	close_in(&other, theirs);
	pause_reported(STAYPUT_OK, true);
	CHECK_EQ(device_used(0), 0);
}

static void a_dead_importer_holds_nothing(void)
{
	struct other other = start_other();
	char *mine = region_malloc("held", STAYPUT_HOST, 3 * MIB);

	opened_in(&other, handle_of(mine));
	kill_other(&other);
	CHECK_EQ(pause_reported(STAYPUT_OK, true).total.bytes_released, 4 * MIB);
	CHECK_EQ(device_used(0), 0);
}

static void what_is_paused_cannot_be_opened(void)
{
	struct other other;
	char *mine, *theirs;
	cudaIpcMemHandle_t handle;
	struct call c;

	setenv("STAYPUT_LOG", "error", 1);
	other = start_other();
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	write_pattern(mine, 3 * MIB, 1);
	handle = handle_of(mine);
	OK(stayput_pause(NULL));
	c = open_in(&other, handle);
	CHECK_EQ(c.code, cudaErrorIllegalState);
	CHECK_HAS(c.text, "is paused in process");
	OK(stayput_resume(NULL));
	theirs = opened_in(&other, handle);
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
}

/* Whoever comes first has it: open and active, or paused and not open. */
static void opening_and_pausing_have_one_winner(void)
{
	struct other other;
	char *mine;
	cudaIpcMemHandle_t handle;

	setenv("STAYPUT_LOG", "error", 1);
	other = start_other();
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	write_pattern(mine, 3 * MIB, 1);
	handle = handle_of(mine);
	for (int i = 0; i < 50; i++) {
		struct call c = {.run = do_open, .handle = handle};
		bool is_paused;

		tell(&other, &c);
		OK(stayput_pause(NULL));
		c = hear(&other);
		is_paused = query(mine).state == STAYPUT_PAUSED;
		CHECK_EQ(c.code, is_paused ? cudaErrorIllegalState : cudaSuccess);
		if (!is_paused) {
			CHECK_EQ(wrong_in(&other, c.ptr, 3 * MIB, 1), 0);
			close_in(&other, c.ptr);
		}
		OK(stayput_resume(NULL));
		CHECK_EQ(wrong_bytes(mine, 3 * MIB, 1), 0);
	}
}

static _Atomic bool kernel_may_end;

static void wait_for_leave(void **params, unsigned grid_blocks)
{
	(void)params;
	(void)grid_blocks;
	while (!kernel_may_end)
		sched_yield();
}

static void *fail_to_pause(void *unused)
{
	(void)unused;
	fakecuda_fail("cuMemUnmap:*:UNKNOWN");
	CHECK_EQ(stayput_pause(NULL), STAYPUT_ERR_DRIVER);
	fakecuda_fail(NULL);
	return NULL;
}

static void await_state(const void *ptr, int state)
{
	while (query(ptr).state != state)
		sched_yield();
}

static void launch_waiting_kernel(void)
{
	CUfunction function;
	CUmodule module;

	fakecuda_kernel("wait_for_leave", wait_for_leave);
	CHECK_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
	CHECK_EQ(cuModuleGetFunction(&function, module, "wait_for_leave"), CUDA_SUCCESS);
	CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
		CUDA_SUCCESS);
}

/* A pause that takes long, and fails: who opens meanwhile waits for its end. */
static void opening_waits_for_a_pause_to_end(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_DISCARD, 3 * MIB);
	struct call c = {.run = do_open, .handle = handle_of(mine)};
	pthread_t thread;

	launch_waiting_kernel();
	CHECK_EQ(pthread_create(&thread, NULL, fail_to_pause, NULL), 0);
	await_state(mine, STAYPUT_PAUSING);
	tell(&other, &c);
	kernel_may_end = true;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(hear(&other).code, cudaSuccess);
}

/* Ends. */

static void freeing_leaves_the_memory_to_the_importer(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB), *theirs;

	write_pattern(mine, 3 * MIB, 1);
	theirs = opened_in(&other, handle_of(mine));
	CUDA(cudaFree(mine));
	CHECK_EQ(device_used(0), 4 * MIB);
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	CHECK_EQ(pause_reported(STAYPUT_OK, true).total.bytes_released, 4 * MIB);
	close_in(&other, theirs);
	CHECK_EQ(device_used(0), 0);
	OK(stayput_resume(NULL));
	pause_reported(STAYPUT_OK, true);
}

static void a_reset_of_the_exporter_leaves_the_memory_to_the_importer(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB), *theirs;

	write_pattern(mine, 3 * MIB, 1);
	theirs = opened_in(&other, handle_of(mine));
	CUDA(cudaDeviceReset());
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	pause_reported(STAYPUT_OK, true);
	close_in(&other, theirs);
	CHECK_EQ(device_used(0), 0);
	OK(stayput_resume(NULL));
	CHECK_EQ(query(mine).state, STAYPUT_ACTIVE);
	theirs = opened_in(&other, handle_of(mine));
	pause_reported(STAYPUT_ERR_BUSY, true);
}

static void what_was_freed_cannot_be_opened(void)
{
	struct other other;
	cudaIpcMemHandle_t handle;
	struct call c;
	char *mine;

	setenv("STAYPUT_LOG", "error", 1);
	other = start_other();
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	handle = handle_of(mine);
	CUDA(cudaFree(mine));
	CHECK(region_malloc("shared", STAYPUT_HOST, 3 * MIB) == (void *)mine);
	c = open_in(&other, handle);
	CHECK_EQ(c.code, cudaErrorInvalidValue);
	CHECK_HAS(c.text, "has freed what this handle named");
}

static void opening_and_freeing_have_one_winner(void)
{
	struct other other;

	setenv("STAYPUT_LOG", "error", 1);
	other = start_other();
	for (unsigned i = 0; i < 400; i++) {
		char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
		struct call c = {.run = do_open, .handle = handle_of(mine)};

		write_pattern(mine, 1000, i);
		tell(&other, &c);
		for (unsigned late = 0; late < i % 100; late++)
			sched_yield();
		CUDA(cudaFree(mine));
		c = hear(&other);
		if (c.code != cudaErrorInvalidValue) {
			CHECK_EQ(c.code, cudaSuccess);
			CHECK_EQ(wrong_in(&other, c.ptr, 1000, i), 0);
			close_in(&other, c.ptr);
		}
		CHECK_EQ(device_used(0), 0);
	}
}

static void memory_outlives_its_exporter(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	void *ptr;

	write_in(&other, c.ptr, 3 * MIB, 1);
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	kill_other(&other);
	CHECK_EQ(wrong_bytes(ptr, 3 * MIB, 1), 0);
	CUDA(cudaIpcCloseMemHandle(ptr));
	CHECK_EQ(device_used(0), 0);
}

static void a_dead_exporter_is_said_so(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	struct call later =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	void *ptr;

	catch_stderr();
	CUDA(cudaIpcOpenMemHandle(&ptr, later.handle, cudaIpcMemLazyEnablePeerAccess));
	kill_other(&other);
	CHECK_EQ(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess),
		cudaErrorMapBufferObjectFailed);
	CHECK_HAS(stayput_last_error(), "has ended");
	CUDA(cudaIpcCloseMemHandle(ptr));
	CHECK_EQ(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess),
		cudaErrorMapBufferObjectFailed);
	CHECK_HAS(stayput_last_error(), "cannot be reached");
	CHECK_HAS(stderr_text(), "cannot be reached");
}

static void a_reset_ends_what_was_opened(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	void *ptr;

	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	CUDA(cudaDeviceReset());
	c = in_other(&other, (struct call){.run = do_pause});
	CHECK_EQ(c.report.total.bytes_held, 0);
	CHECK_EQ(device_used(0), 0);
	CHECK_EQ(cudaIpcCloseMemHandle(ptr), cudaErrorInvalidValue);
}

static CUcontext create_context(void)
{
	CUcontext ctx;

#if CUDA_VERSION >= 13000
	CHECK_EQ(cuCtxCreate(&ctx, NULL, 0, 0), CUDA_SUCCESS);
#else
	CHECK_EQ(cuCtxCreate(&ctx, 0, 0), CUDA_SUCCESS);
#endif
	return ctx;
}

static void a_destroyed_context_ends_what_was_opened_in_it(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	CUcontext primary, own;
	void *first, *second;

	CUDA(cudaFree(NULL));
	CHECK_EQ(cuCtxGetCurrent(&primary), CUDA_SUCCESS);
	CUDA(cudaIpcOpenMemHandle(&first, c.handle, cudaIpcMemLazyEnablePeerAccess));
	own = create_context();
	CUDA(cudaIpcOpenMemHandle(&second, c.handle, cudaIpcMemLazyEnablePeerAccess));
	CHECK(second != first);
	CUDA(cudaIpcCloseMemHandle(first));
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 4 * MIB);
	CHECK_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 0);
	CHECK_EQ(cuCtxSetCurrent(primary), CUDA_SUCCESS);
	CHECK_EQ(cudaIpcCloseMemHandle(second), cudaErrorInvalidValue);
}

static void closing_in_a_capture_is_put_off(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	cudaStream_t stream;
	cudaGraph_t graph;
	void *ptr, *mine;

	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	mine = region_malloc("shared", STAYPUT_HOST, MIB);
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	CUDA(cudaMemsetAsync(mine, 1, MIB, stream));
	CUDA(cudaIpcCloseMemHandle(ptr));
	CHECK_EQ(cudaIpcCloseMemHandle(ptr), cudaErrorInvalidValue);
	c = in_other(&other, (struct call){.run = do_pause});
	CHECK_EQ(c.report.total.bytes_held, 4 * MIB);
	CUDA(cudaStreamEndCapture(stream, &graph));
	c = in_other(&other, (struct call){.run = do_pause});
	CHECK_EQ(c.report.total.bytes_held, 0);
}

/* Failures. */

static void fail_nth(int n)
{
	char spec[64];

	snprintf(spec, sizeof spec, "*:%d:UNKNOWN", n);
	fakecuda_fail(spec);
}

/* Something else stays open, so that the connection does not end with what fails. */
static void *open_another(const struct other *other)
{
	struct call c = in_other(other, (struct call){.run = do_malloc, .size = 3 * MIB});
	void *ptr;

	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	return ptr;
}

static void opening_fails_clean_at_every_call(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	struct fakecuda_report before, after;
	bool failed = true;
	void *ptr = open_another(&other);

	catch_stderr();
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	CUDA(cudaIpcCloseMemHandle(ptr));
	fakecuda_report(&before);
	for (int n = 1; failed; n++) {
		cudaError_t err;

		ptr = &other;
		fail_nth(n);
		err = cudaIpcOpenMemHandle(
			&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess);
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		cudaGetLastError();
		CHECK(err == cudaSuccess || ptr == &other);
		if (err == cudaSuccess)
			CUDA(cudaIpcCloseMemHandle(ptr));
		fakecuda_report(&after);
		CHECK_EQ(after.handles, before.handles);
		CHECK_EQ(after.mappings, before.mappings);
		CHECK_EQ(after.reservations, before.reservations);
		CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 4 * MIB);
		CHECK(n < 1000);
	}
}

/* What could not be unmapped is open still; a closing that failed can be repeated. */
static void closing_fails_clean_at_every_call(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	struct fakecuda_report before, after;
	bool failed = true;
	void *ptr;

	CUDA(cudaFree(NULL));
	for (int n = 1; failed; n++) {
		cudaError_t err;

		fakecuda_report(&before);
		CUDA(cudaIpcOpenMemHandle(
			&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
		fail_nth(n);
		err = cudaIpcCloseMemHandle(ptr);
		failed = fakecuda_failed() > 0;
		fakecuda_fail(NULL);
		if (err != cudaSuccess && cudaIpcCloseMemHandle(ptr) != cudaSuccess)
			cudaGetLastError();
		CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 0);
		fakecuda_report(&after);
		CHECK_EQ(after.handles, before.handles);
		CHECK_EQ(after.mappings, before.mappings);
		CHECK(n < 1000);
	}
}

static void do_fail(struct call *c)
{
	fakecuda_fail(c->text);
}

static void an_export_that_fails_is_said_so(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	void *ptr;

	catch_stderr();
	open_another(&other);
	in_other(&other, (struct call){.run = do_fail,
				 .text = "cuMemExportToShareableHandle:1:OUT_OF_MEMORY"});
	CHECK_EQ(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess),
		cudaErrorMemoryAllocation);
	CHECK_HAS(stayput_last_error(), "could not export");
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 4 * MIB);
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
}

/* From here no descriptor can be opened; what is put back ends that. */
static struct rlimit use_up_descriptors(void)
{
	struct rlimit before, used_up;
	int lowest = dup(STDERR_FILENO);

	CHECK(lowest >= 0);
	close(lowest);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
	used_up = (struct rlimit){.rlim_cur = lowest, .rlim_max = before.rlim_max};
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &used_up), 0);
	return before;
}

static void what_cannot_be_received_is_not_held(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	struct rlimit before;
	void *ptr;

	catch_stderr();
	open_another(&other);
	before = use_up_descriptors();
	CHECK_EQ(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess),
		cudaErrorOperatingSystem);
	CHECK_HAS(stayput_last_error(), "no file descriptor is free");
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 4 * MIB);
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
}

static _Atomic bool has_given_up;

static void *interrupt(void *thread)
{
	while (!has_given_up)
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
	return NULL;
}

static void ignore(int signal)
{
	(void)signal;
}

static void signals_do_not_make_it_wait_longer(void)
{
	const struct sigaction action = {.sa_handler = ignore};
	const struct timeval limit = {.tv_usec = 200000};
	pthread_t self = pthread_self(), thread;
	struct ipc_reply reply;
	int ends[2], fd;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	CHECK_EQ(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(pthread_create(&thread, NULL, interrupt, &self), 0);
	CHECK(!ipc_receive_reply(ends[0], &reply, &fd));
	CHECK_EQ(errno, EAGAIN);
	has_given_up = true;
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

enum { CLOSINGS = 8 }; /* of which each would wait for ten seconds */

static void an_exporter_that_is_stopped_is_waited_for_once(void)
{
	struct other other = start_other();
	void *ptr[CLOSINGS];

	for (int i = 0; i < CLOSINGS; i++)
		ptr[i] = open_another(&other);
	CHECK_EQ(kill(other.pid, SIGSTOP), 0);
	for (int i = 0; i < CLOSINGS - 1; i++)
		CUDA(cudaIpcCloseMemHandle(ptr[i]));
	CHECK_EQ(kill(other.pid, SIGCONT), 0);
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 4 * MIB);
	CUDA(cudaIpcCloseMemHandle(ptr[CLOSINGS - 1]));
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 0);
}

static void without_a_socket_there_is_no_handle(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	struct rlimit before;
	cudaIpcMemHandle_t handle;

	catch_stderr();
	before = use_up_descriptors();
	CHECK_EQ(cudaIpcGetMemHandle(&handle, mine), cudaErrorOperatingSystem);
	CHECK_HAS(stayput_last_error(), "no socket or thread");
	CHECK_HAS(stderr_text(), "Too many open files");
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
	opened_in(&other, handle_of(mine));
}

/* Access for peers. */

static void where_it_was_opened_it_stays_usable(void)
{
	struct other other;
	struct call c;
	void *ptr;

	setenv("FAKECUDA_DEVICES", "2", 1);
	other = start_other();
	c = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	CUDA(cudaSetDevice(1));
	CUDA(cudaDeviceEnablePeerAccess(0, 0));
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	CUDA(cudaDeviceDisablePeerAccess(0));
	CUDA(cudaMemset(ptr, 1, 3 * MIB));
}

static void peers_may_use_what_was_opened(void)
{
	struct other other;
	struct call c;
	void *ptr;

	setenv("FAKECUDA_DEVICES", "2", 1);
	other = start_other();
	c = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	CUDA(cudaSetDevice(0));
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	CUDA(cudaSetDevice(1));
	CHECK_EQ(cudaMemset(ptr, 1, 3 * MIB), cudaErrorInvalidValue);
	CUDA(cudaDeviceEnablePeerAccess(0, 0));
	CUDA(cudaMemset(ptr, 1, 3 * MIB));
	CUDA(cudaSetDevice(0));
	CUDA(cudaIpcCloseMemHandle(ptr));
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	CUDA(cudaSetDevice(1));
	CUDA(cudaMemset(ptr, 2, 3 * MIB));
	CUDA(cudaDeviceDisablePeerAccess(0));
	CHECK_EQ(cudaMemset(ptr, 3, 3 * MIB), cudaErrorInvalidValue);
}

enum { OPENED = 8, CHANGES = 300 };

static void *many_open[OPENED];
static _Atomic bool closing;

/* The newer half, newest first. */
static void *close_half(void *unused)
{
	(void)unused;
	CUDA(cudaSetDevice(0));
	closing = true;
	for (int i = OPENED - 1; i >= OPENED / 2; i--)
		CUDA(cudaIpcCloseMemHandle(many_open[i]));
	return NULL;
}

/* What is closed meanwhile must not hide what stays open. */
static void peers_may_use_what_stays_open(void)
{
	struct other other;
	struct call c[OPENED];
	pthread_t thread;

	setenv("FAKECUDA_DEVICES", "2", 1);
	other = start_other();
	for (int i = 0; i < OPENED; i++)
		c[i] = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	for (int n = 0; n < CHANGES; n++) {
		CUDA(cudaSetDevice(0));
		for (int i = 0; i < OPENED; i++)
			CUDA(cudaIpcOpenMemHandle(&many_open[i], c[i].handle,
				cudaIpcMemLazyEnablePeerAccess));
		CUDA(cudaSetDevice(1));
		closing = false;
		CHECK_EQ(pthread_create(&thread, NULL, close_half, NULL), 0);
		while (!closing)
			sched_yield();
		for (int late = 0; late < n % 50; late++)
			sched_yield();
		CUDA(cudaDeviceEnablePeerAccess(0, 0));
		CHECK_EQ(pthread_join(thread, NULL), 0);
		for (int i = 0; i < OPENED / 2; i++) {
			CUDA(cudaMemset(many_open[i], 1, 3 * MIB));
			CUDA(cudaIpcCloseMemHandle(many_open[i]));
		}
		CUDA(cudaDeviceDisablePeerAccess(0));
	}
}

/* Who asks. */

static int connect_to(cudaIpcMemHandle_t handle)
{
	struct ipc_handle ours;
	int fd;

	memcpy(&ours, &handle, sizeof ours);
	fd = ipc_socket();
	CHECK(ipc_connect(fd, ours.token));
	return fd;
}

/* The exporter has hung up. */
static void check_dropped(int fd)
{
	char byte;

	CHECK_EQ(recv(fd, &byte, 1, 0), 0);
}

static void send_garbage(int fd, size_t size)
{
	char *bytes = malloc(size);

	CHECK(bytes);
	memset(bytes, 0xee, size);
	CHECK_EQ(send(fd, bytes, size, MSG_NOSIGNAL), size);
	check_dropped(fd);
	free(bytes);
}

static void garbage_is_hung_up_on(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB), *theirs;
	struct ipc_request two[2] = {{.version = IPC_VERSION, .verb = IPC_CLOSE}};
	const struct ipc_request request = {.version = IPC_VERSION, .verb = 77};
	cudaIpcMemHandle_t handle = handle_of(mine);
	int silent = connect_to(handle), wrong = connect_to(handle);
	int longer = connect_to(handle);

	write_pattern(mine, 3 * MIB, 1);
	send_garbage(connect_to(handle), 1);
	send_garbage(connect_to(handle), sizeof request);
	send_garbage(connect_to(handle), 100000);
	CHECK_EQ(send(wrong, &request, sizeof request, 0), sizeof request);
	check_dropped(wrong);
	CHECK_EQ(send(longer, two, sizeof two, 0), sizeof two);
	check_dropped(longer);
	theirs = opened_in(&other, handle);
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
	CHECK_EQ(pause_reported(STAYPUT_ERR_BUSY, true).total.bytes_held, 4 * MIB);
	close(silent);
}

/* Asks, and never reads what it is sent. */
static void an_importer_that_does_not_listen_is_hung_up_on(void)
{
	struct ipc_request request = {.version = IPC_VERSION, .verb = IPC_OPEN};
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	cudaIpcMemHandle_t handle = handle_of(mine);
	struct ipc_handle ours;
	int deaf = connect_to(handle);

	memcpy(&ours, &handle, sizeof ours);
	request.id = ours.id;
	request.base = ours.base;
	while (send(deaf, &request, sizeof request, MSG_NOSIGNAL) == sizeof request)
		continue;
	pause_reported(STAYPUT_OK, true);
	CHECK_EQ(query(mine).state, STAYPUT_PAUSED);
	close(deaf);
}

enum { NOBODY = 65534 };

static void do_become_nobody(struct call *c)
{
	c->code = setuid(NOBODY);
}

static void another_user_is_refused(void)
{
	struct other other;
	char *mine;
	struct call c;

	if (geteuid() != 0)
		SKIP("only root can become another user");
	catch_stderr();
	other = start_other();
	CHECK_EQ(chmod(shared_path(), 0666), 0);
	CHECK_EQ(in_other(&other, (struct call){.run = do_become_nobody}).code, 0);
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	c = open_in(&other, handle_of(mine));
	CHECK_EQ(c.code, cudaErrorNotPermitted);
	CHECK_HAS(c.text, "is of another user");
	CHECK_HAS(stderr_text(), "is of another user");
	CHECK_EQ(pause_reported(STAYPUT_OK, true).total.bytes_held, 0);
}

static void root_may_open_what_is_anothers(void)
{
	struct other other;
	struct call c;
	void *ptr;

	if (geteuid() != 0)
		SKIP("only root can become another user");
	other = start_other();
	CHECK_EQ(chmod(shared_path(), 0666), 0);
	CHECK_EQ(in_other(&other, (struct call){.run = do_become_nobody}).code, 0);
	c = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
}

/* Forks: the child has nothing of what its parent shared. */

static void do_fork(struct call *c)
{
	int ends[2];
	char byte;

	CHECK_EQ(pipe(ends), 0);
	c->number = fork();
	if (c->number == 0) {
		alarm(TEST_SECONDS);
		CHECK_EQ(write(ends[1], "", 1), 1);
		for (;;)
			pause();
	}
	CHECK_EQ(read(ends[0], &byte, 1), 1);
}

static void a_child_of_the_importer_holds_nothing(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	pid_t child;

	opened_in(&other, handle_of(mine));
	child = in_other(&other, (struct call){.run = do_fork}).number;
	kill_other(&other);
	pause_reported(STAYPUT_OK, true);
	CHECK_EQ(query(mine).state, STAYPUT_PAUSED);
	kill(child, SIGKILL);
}

static void a_child_of_the_exporter_answers_for_nobody(void)
{
	struct other other;
	struct call c;
	pid_t child;
	void *ptr;

	catch_stderr();
	other = start_other();
	c = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	child = in_other(&other, (struct call){.run = do_fork}).number;
	kill_other(&other);
	CHECK_EQ(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess),
		cudaErrorMapBufferObjectFailed);
	CHECK_HAS(stayput_last_error(), "cannot be reached");
	kill(child, SIGKILL);
}

/* Native memory, and what native memory does. */

enum { STEPS = 16 };

static void *allocate(bool in_region)
{
	void *ptr;

	if (in_region)
		return region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	CUDA(cudaMalloc(&ptr, 3 * MIB));
	return ptr;
}

static int code_of_opening(cudaIpcMemHandle_t handle, unsigned flags)
{
	void *ptr;
	int code = cudaIpcOpenMemHandle(&ptr, handle, flags);

	cudaGetLastError();
	return code;
}

/* The same calls; what each answered. */
static void run_sequence(const struct other *other, bool in_region, int codes[STEPS])
{
	char *mine = allocate(in_region), *theirs;
	cudaIpcMemHandle_t handle = handle_of(mine);
	struct call c;
	int n = 0;

	codes[n++] = cudaIpcGetMemHandle(NULL, mine);
	codes[n++] = cudaIpcGetMemHandle(&handle, mine + MIB);
	codes[n++] = code_of_opening(handle, cudaIpcMemLazyEnablePeerAccess);
	codes[n++] = code_of_opening(handle, 0);
	codes[n++] = cudaIpcOpenMemHandle(NULL, handle, cudaIpcMemLazyEnablePeerAccess);
	codes[n++] = cudaIpcCloseMemHandle(mine);
	codes[n++] = cudaIpcCloseMemHandle(NULL);
	c = open_in(other, handle);
	theirs = c.ptr;
	codes[n++] = c.code;
	c = in_other(other, (struct call){.run = do_free, .ptr = theirs});
	codes[n++] = c.code;
	c = in_other(other, (struct call){.run = do_close, .ptr = theirs + MIB});
	codes[n++] = c.code;
	c = in_other(other, (struct call){.run = do_close, .ptr = theirs});
	codes[n++] = c.code;
	c = in_other(other, (struct call){.run = do_close, .ptr = theirs});
	codes[n++] = c.code;
	codes[n++] = cudaFree(mine);
	codes[n++] = cudaIpcGetMemHandle(&handle, mine);
	codes[n++] = open_in(other, handle).code;
	CHECK(n <= STEPS);
	cudaGetLastError();
}

static void codes_are_those_of_native_memory(void)
{
	int native[STEPS] = {0}, ours[STEPS] = {0};

	struct other first = start_other(), second = start_other();

	catch_stderr();
	run_sequence(&first, false, native);
	run_sequence(&second, true, ours);
	for (int i = 0; i < STEPS; i++) {
		if (ours[i] != native[i])
			dprintf(test_log, "step %d:\n", i);
		CHECK_EQ(ours[i], native[i]);
	}
}

static void native_handles_pass_through(void)
{
	struct other other = start_other();
	char *region = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	unsigned long opened = fakecuda_calls("cuIpcOpenMemHandle");
	cudaIpcMemHandle_t handle;
	char *native, *theirs;

	CUDA(cudaMalloc((void **)&native, 3 * MIB));
	handle = handle_of(native);
	CHECK(!ipc_is_ours(&handle));
	write_pattern(native, 3 * MIB, 1);
	theirs = opened_in(&other, handle);
	CHECK_EQ(wrong_in(&other, theirs, 3 * MIB, 1), 0);
	close_in(&other, theirs);
	CHECK_EQ(code_of_opening(handle, cudaIpcMemLazyEnablePeerAccess),
		cudaErrorDeviceUninitialized);
	CHECK_EQ(fakecuda_calls("cuIpcOpenMemHandle"), opened + 1);
	CHECK_EQ(code_of_opening(handle_of(region), cudaIpcMemLazyEnablePeerAccess),
		cudaErrorDeviceUninitialized);
	CHECK_EQ(fakecuda_calls("cuIpcOpenMemHandle"), opened + 1);
}

static void handles_of_another_version_are_refused(void)
{
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	cudaIpcMemHandle_t handle = handle_of(mine);
	struct ipc_handle ours;

	catch_stderr();
	memcpy(&ours, &handle, sizeof ours);
	ours.version++;
	memcpy(&handle, &ours, sizeof ours);
	CHECK_EQ(code_of_opening(handle, cudaIpcMemLazyEnablePeerAccess),
		cudaErrorNotSupported);
	CHECK_HAS(stayput_last_error(), "of version 2");
}

static size_t count_of(const char *text, const char *part)
{
	size_t n = 0;

	while ((text = strstr(text, part))) {
		text++;
		n++;
	}
	return n;
}

/* Some programs try until it goes. */
static void what_fails_again_is_no_news(void)
{
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	cudaIpcMemHandle_t own = handle_of(mine), newer;
	struct ipc_handle ours;

	catch_stderr();
	memcpy(&ours, &own, sizeof ours);
	ours.version++;
	memcpy(&newer, &ours, sizeof ours);
	for (int i = 0; i < 3; i++) {
		code_of_opening(newer, cudaIpcMemLazyEnablePeerAccess);
		code_of_opening(own, cudaIpcMemLazyEnablePeerAccess);
		CHECK_HAS(stayput_last_error(), "of this process");
	}
	CHECK_EQ(count_of(stderr_text(), "of version 2"), 1);
	CHECK_EQ(count_of(stderr_text(), "of this process"), 1);
}

static void what_fails_again_is_said_to_who_wants_all(void)
{
	cudaIpcMemHandle_t own;

	setenv("STAYPUT_LOG", "info", 1);
	own = handle_of(region_malloc("shared", STAYPUT_HOST, MIB));
	catch_stderr();
	for (int i = 0; i < 3; i++)
		code_of_opening(own, cudaIpcMemLazyEnablePeerAccess);
	CHECK_EQ(count_of(stderr_text(), "warning: cudaIpcOpenMemHandle"), 1);
	CHECK_EQ(count_of(stderr_text(), "info: cudaIpcOpenMemHandle"), 2);
}

static void do_open_by_driver(struct call *c)
{
	CUipcMemHandle handle;
	CUdeviceptr ptr, again;

	CUDA(cudaFree(NULL));
	memcpy(&handle, &c->handle, sizeof handle);
	CHECK_EQ(cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
		CUDA_SUCCESS);
	CHECK_EQ(
		cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
		CUDA_SUCCESS);
	CHECK_EQ(again, ptr);
	CHECK_EQ(wrong_bytes((void *)ptr, c->size, c->number), 0);
	CHECK_EQ(cuIpcCloseMemHandle(ptr), CUDA_SUCCESS);
	CHECK_EQ(cuIpcCloseMemHandle(ptr), CUDA_SUCCESS);
	CHECK_EQ(cuIpcCloseMemHandle(ptr), CUDA_ERROR_INVALID_VALUE);
}

static void the_drivers_calls_do_the_same(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	struct call c = {.run = do_open_by_driver, .size = 3 * MIB, .number = 1};
	CUipcMemHandle handle;

	write_pattern(mine, 3 * MIB, 1);
	CHECK_EQ(cuIpcGetMemHandle(&handle, (CUdeviceptr)mine + 5), CUDA_SUCCESS);
	memcpy(&c.handle, &handle, sizeof handle);
	in_other(&other, c);
	CHECK_EQ(pause_reported(STAYPUT_OK, true).total.bytes_held, 0);
}

/* Of the size of a block, and exported, so that a pause cannot release it. */
static void make_exported(const char *tag)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
	};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	int fd;

	OK(stayput_region_push(tag, STAYPUT_HOST));
	CHECK_EQ(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0), CUDA_SUCCESS);
	CHECK_EQ(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_SUCCESS);
	CHECK_EQ(cuMemMap(at, 2 * MIB, 0, handle, 0), CUDA_SUCCESS);
	OK(stayput_region_pop());
	CHECK_EQ(cuMemExportToShareableHandle(
			 &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_SUCCESS);
}

static void what_others_hold_and_what_the_program_holds_are_both_said(void)
{
	struct other other = start_other();
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);

	catch_stderr();
	opened_in(&other, handle_of(mine));
	make_exported("own");
	CHECK_EQ(pause_reported(STAYPUT_ERR_BUSY, true).total.bytes_held, 6 * MIB);
	CHECK_HAS(stayput_last_error(), "4194304 bytes of region shared are open");
	CHECK_HAS(stayput_last_error(), "1 mappings of the program's own, 2097152 bytes");
	CHECK_HAS(stayput_last_error(), "nothing was paused");
	CHECK_EQ(pause_reported(STAYPUT_OK, false).total.bytes_held, 6 * MIB);
	CHECK_HAS(stayput_last_error(), "4194304 bytes of region shared are open");
	CHECK_HAS(stayput_last_error(), "1 mappings of the program's own, 2097152 bytes");
	CHECK_HAS(stayput_last_error(), "they stay active");
	CHECK_EQ(count_of(stderr_text(), "region shared are open"), 1);
	CHECK_EQ(count_of(stderr_text(), "mappings of the program's own"), 1);
}

/* Programs that close every descriptor, and open their own under the numbers. The fake
 * driver's files stay, so that there is memory to look at. */

enum { NUMBERS = 64 };

static bool is_taken[NUMBERS];

static bool is_connection(int fd)
{
	struct sockaddr_un name;
	socklen_t len = sizeof name, size = sizeof(int);
	int type = 0;

	getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
	return type == SOCK_SEQPACKET &&
	       getpeername(fd, (struct sockaddr *)&name, &len) == 0;
}

static bool may_be_taken(int fd)
{
	struct stat st;

	return fd != test_log && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode);
}

/* Two ends of a socket pair in turn, with something to read at both. */
static void take_numbers(int kept, bool leave_connections)
{
	int pair[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(write(pair[i], "ours too", 8), 8);
		CHECK(pair[i] < NUMBERS);
		is_taken[pair[i]] = true;
	}
	for (int fd = 3; fd < NUMBERS; fd++)
		if (fd != kept && !is_taken[fd] && may_be_taken(fd) &&
			!(leave_connections && is_connection(fd))) {
			CHECK_EQ(dup2(pair[fd % 2], fd), fd);
			is_taken[fd] = true;
		}
}

static void check_taken(void)
{
	for (int fd = 3; fd < NUMBERS; fd++) {
		char text[9] = "";
		int size;

		if (!is_taken[fd])
			continue;
		CHECK_EQ(ioctl(fd, FIONREAD, &size), 0);
		CHECK_EQ(size, 8);
		CHECK_EQ(recv(fd, text, 8, MSG_PEEK | MSG_DONTWAIT), 8);
		CHECK(strcmp(text, "ours too") == 0);
	}
}

static void check_taken_in_child(void)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		check_taken();
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

static void do_take_numbers(struct call *c)
{
	take_numbers(obeyed, c->number);
	check_taken_in_child();
}

static void do_check_taken(struct call *c)
{
	(void)c;
	check_taken();
}

static void do_get_handle(struct call *c)
{
	c->code = cudaIpcGetMemHandle(&c->handle, c->ptr);
	snprintf(c->text, sizeof c->text, "%s", stayput_last_error());
	cudaGetLastError();
}

static void an_exporter_keeps_off_what_took_its_numbers(void)
{
	struct other other;
	struct call c, later;
	void *ptr;

	catch_stderr();
	other = start_other();
	c = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	later = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	write_in(&other, c.ptr, 3 * MIB, 1);
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 4 * MIB);
	in_other(&other, (struct call){.run = do_take_numbers});
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(code_of_opening(later.handle, cudaIpcMemLazyEnablePeerAccess),
			cudaErrorMapBufferObjectFailed);
	later.run = do_get_handle;
	later = in_other(&other, later);
	CHECK_EQ(later.code, cudaErrorOperatingSystem);
	CHECK_HAS(later.text, "somebody has closed");
	in_other(&other, (struct call){.run = do_check_taken});
	CHECK_EQ(wrong_bytes(ptr, 3 * MIB, 1), 0);
	CUDA(cudaIpcCloseMemHandle(ptr));
	CHECK_HAS(stderr_text(), "cannot be shared any more");
}

static void who_is_connected_still_is_heard(void)
{
	struct other other;
	struct call c;
	void *ptr;

	catch_stderr();
	other = start_other();
	c = in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 4 * MIB);
	in_other(&other, (struct call){.run = do_take_numbers, .number = true});
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 4 * MIB);
	in_other(&other, (struct call){.run = do_check_taken});
	CUDA(cudaIpcCloseMemHandle(ptr));
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 0);
	in_other(&other, (struct call){.run = do_check_taken});
}

static void an_importer_keeps_off_what_took_its_numbers(void)
{
	struct other other = start_other();
	struct call c =
		in_other(&other, (struct call){.run = do_malloc, .size = 3 * MIB});
	struct call later =
		in_other(&other, (struct call){.run = do_malloc, .size = 6 * MIB});
	void *ptr, *again;

	write_in(&other, c.ptr, 3 * MIB, 1);
	CUDA(cudaIpcOpenMemHandle(&ptr, c.handle, cudaIpcMemLazyEnablePeerAccess));
	take_numbers(other.socket, false);
	check_taken_in_child();
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 0);
	CHECK_EQ(wrong_bytes(ptr, 3 * MIB, 1), 0);
	CUDA(cudaIpcOpenMemHandle(&again, later.handle, cudaIpcMemLazyEnablePeerAccess));
	CUDA(cudaIpcCloseMemHandle(ptr));
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 6 * MIB);
	CUDA(cudaIpcCloseMemHandle(again));
	CHECK_EQ(in_other(&other, (struct call){.run = do_held}).size, 0);
	check_taken();
}

/* Libraries that know virtual memory management export by themselves. */

static void region_memory_can_be_exported_by_others(void)
{
	char *mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	CUmemGenericAllocationHandle handle;
	int fd;

	CHECK_EQ(cuMemRetainAllocationHandle(&handle, mine), CUDA_SUCCESS);
	CHECK_EQ(cuMemExportToShareableHandle(
			 &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_SUCCESS);
	CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

static unsigned handle_types_of(void *ptr)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop;

	CHECK_EQ(cuMemRetainAllocationHandle(&handle, ptr), CUDA_SUCCESS);
	CHECK_EQ(cuMemGetAllocationPropertiesFromHandle(&prop, handle), CUDA_SUCCESS);
	CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
	return prop.requestedHandleTypes;
}

/* Asking for what is not permitted costs one call, once. */
static void fabric_handles_are_asked_for_once(void)
{
	CHECK_EQ(handle_types_of(region_malloc("shared", STAYPUT_HOST, 3 * MIB)), 1);
	CHECK_EQ(fakecuda_calls("cuMemCreate"), 2);
	region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	CHECK_EQ(fakecuda_calls("cuMemCreate"), 3);
}

static void fabric_handles_are_had_where_permitted(void)
{
	setenv("FAKECUDA_SHAREABLE", "2", 1);
	CHECK_EQ(handle_types_of(region_malloc("shared", STAYPUT_HOST, 3 * MIB)), 9);
	CHECK_EQ(fakecuda_calls("cuMemCreate"), 1);
}

static void memory_that_cannot_be_shared_is_said_so(void)
{
	cudaIpcMemHandle_t handle;
	void *mine;

	setenv("FAKECUDA_SHAREABLE", "0", 1);
	catch_stderr();
	mine = region_malloc("shared", STAYPUT_HOST, 3 * MIB);
	CHECK_EQ(cudaIpcGetMemHandle(&handle, mine), cudaErrorNotSupported);
	CHECK_HAS(stayput_last_error(), "cannot share by file descriptor");
	OK(stayput_pause(NULL));
	OK(stayput_resume(NULL));
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(both_processes_see_one_memory),
		TEST(small_allocations_are_found_in_their_block),
		TEST(a_handle_from_inside_is_that_of_the_whole),
		TEST(ranges_are_the_exporters),
		TEST(an_importer_may_be_on_another_device),
		TEST(what_is_opened_twice_is_closed_twice),
		TEST(one_of_two_can_be_closed),
		TEST(threads_may_open_at_once),
		TEST(closing_waits_for_the_work),
		TEST(a_pause_leaves_active_what_is_held),
		TEST(a_holder_that_cannot_be_seen_is_not_given_a_number),
		TEST(a_pause_may_refuse_when_something_is_held),
		TEST(a_dead_importer_holds_nothing),
		TEST(what_is_paused_cannot_be_opened),
		TEST(opening_and_pausing_have_one_winner),
		TEST(opening_waits_for_a_pause_to_end),
		TEST(freeing_leaves_the_memory_to_the_importer),
		TEST(a_reset_of_the_exporter_leaves_the_memory_to_the_importer),
		TEST(what_was_freed_cannot_be_opened),
		TEST(opening_and_freeing_have_one_winner),
		TEST(memory_outlives_its_exporter),
		TEST(a_dead_exporter_is_said_so),
		TEST(a_reset_ends_what_was_opened),
		TEST(a_destroyed_context_ends_what_was_opened_in_it),
		TEST(closing_in_a_capture_is_put_off),
		TEST(opening_fails_clean_at_every_call),
		TEST(closing_fails_clean_at_every_call),
		TEST(an_export_that_fails_is_said_so),
		TEST(what_cannot_be_received_is_not_held),
		TEST(without_a_socket_there_is_no_handle),
		TEST(signals_do_not_make_it_wait_longer),
		TEST(an_exporter_that_is_stopped_is_waited_for_once),
		TEST(where_it_was_opened_it_stays_usable),
		TEST(peers_may_use_what_was_opened),
		TEST(peers_may_use_what_stays_open),
		TEST(garbage_is_hung_up_on),
		TEST(an_importer_that_does_not_listen_is_hung_up_on),
		TEST(another_user_is_refused),
		TEST(root_may_open_what_is_anothers),
		TEST(a_child_of_the_importer_holds_nothing),
		TEST(a_child_of_the_exporter_answers_for_nobody),
		TEST(what_others_hold_and_what_the_program_holds_are_both_said),
		TEST(an_exporter_keeps_off_what_took_its_numbers),
		TEST(who_is_connected_still_is_heard),
		TEST(an_importer_keeps_off_what_took_its_numbers),
		TEST(codes_are_those_of_native_memory),
		TEST(native_handles_pass_through),
		TEST(handles_of_another_version_are_refused),
		TEST(what_fails_again_is_no_news),
		TEST(what_fails_again_is_said_to_who_wants_all),
		TEST(the_drivers_calls_do_the_same),
		TEST(region_memory_can_be_exported_by_others),
		TEST(fabric_handles_are_asked_for_once),
		TEST(fabric_handles_are_had_where_permitted),
		TEST(memory_that_cannot_be_shared_is_said_so),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
