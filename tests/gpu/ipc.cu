/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region memory in two processes on real GPUs: what one writes the other reads, through
 * pauses, on one GPU and, if there are more, across two. The program runs itself again as
 * the importer. Ends with what native memory answers to the same calls, and ours.
 *
 *   nvcc -cudart shared -Iinclude -o ipc tests/gpu/ipc.cu -Lbuild -lstayput
 *   LD_PRELOAD=build/libstayput.so ipc
 */
#include <cuda_runtime_api.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"

static const size_t LARGE = 256 << 20, SMALL = 64 << 10;

__global__ void fill(unsigned *data, size_t n, unsigned seed)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
		i += gridDim.x * blockDim.x)
		data[i] = (unsigned)i * 2654435761u + seed;
}

__global__ void count_wrong(
	const unsigned *data, size_t n, unsigned seed, unsigned long long *wrong)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
		i += gridDim.x * blockDim.x)
		if (data[i] != (unsigned)i * 2654435761u + seed)
			atomicAdd(wrong, 1ull);
}

static void write_words(void *data, size_t size, unsigned seed)
{
	fill<<<512, 256>>>((unsigned *)data, size / 4, seed);
	CUDA(cudaDeviceSynchronize());
}

static unsigned long long wrong_words(const void *data, size_t size, unsigned seed)
{
	unsigned long long *wrong, answer;

	CUDA(cudaMalloc((void **)&wrong, sizeof *wrong));
	CUDA(cudaMemset(wrong, 0, sizeof *wrong));
	count_wrong<<<512, 256>>>((const unsigned *)data, size / 4, seed, wrong);
	CUDA(cudaMemcpy(&answer, wrong, sizeof answer, cudaMemcpyDeviceToHost));
	CUDA(cudaFree(wrong));
	return answer;
}

static double now()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* What the importer is told, and its answer. */
enum verb { OPEN, CLOSE, FILL, COUNT_WRONG, FREE };

struct call {
	enum verb verb;
	int device, code;
	cudaIpcMemHandle_t handle;
	void *ptr;
	size_t size;
	unsigned seed;
	unsigned long long wrong;
	double seconds;
	char text[512];
};

static void obey(struct call *c)
{
	double start = now();

	CUDA(cudaSetDevice(c->device));
	switch (c->verb) {
	case OPEN:
		c->code = cudaIpcOpenMemHandle(
			&c->ptr, c->handle, cudaIpcMemLazyEnablePeerAccess);
		snprintf(c->text, sizeof c->text, "%s", stayput_last_error());
		break;
	case CLOSE:
		c->code = cudaIpcCloseMemHandle(c->ptr);
		break;
	case FILL:
		write_words(c->ptr, c->size, c->seed);
		break;
	case COUNT_WRONG:
		c->wrong = wrong_words(c->ptr, c->size, c->seed);
		break;
	case FREE:
		c->code = cudaFree(c->ptr);
		break;
	}
	cudaGetLastError();
	c->seconds = now() - start;
}

static int import(int socket)
{
	struct call c;

	CUDA(cudaFree(nullptr));
	while (read(socket, &c, sizeof c) == sizeof c) {
		obey(&c);
		CHECK(write(socket, &c, sizeof c) == sizeof c);
	}
	return 0;
}

struct importer {
	pid_t pid;
	int socket, device;
};

static struct importer start_importer(int device)
{
	struct importer importer;
	int sockets[2];
	char number[16];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	importer.device = device;
	importer.socket = sockets[0];
	importer.pid = fork();
	CHECK(importer.pid >= 0);
	if (importer.pid == 0) {
		close(sockets[0]);
		snprintf(number, sizeof number, "%d", sockets[1]);
		execl("/proc/self/exe", "ipc", number, nullptr);
		_exit(127);
	}
	close(sockets[1]);
	return importer;
}

static void end_importer(struct importer *importer)
{
	int status;

	close(importer->socket);
	CHECK(waitpid(importer->pid, &status, 0) == importer->pid);
	CHECK(status == 0);
}

static struct call tell(const struct importer *importer, struct call c)
{
	c.device = importer->device;
	CHECK(write(importer->socket, &c, sizeof c) == sizeof c);
	CHECK(recv(importer->socket, &c, sizeof c, MSG_WAITALL) == sizeof c);
	return c;
}

static struct call with_handle(enum verb verb, void *of)
{
	struct call c = {};

	c.verb = verb;
	CUDA(cudaIpcGetMemHandle(&c.handle, of));
	return c;
}

static struct call with_range(enum verb verb, void *ptr, size_t size, unsigned seed)
{
	struct call c = {};

	c.verb = verb;
	c.ptr = ptr;
	c.size = size;
	c.seed = seed;
	return c;
}

static void *open_in(const struct importer *importer, void *mine, double *seconds)
{
	struct call c = tell(importer, with_handle(OPEN, mine));

	if (c.code != cudaSuccess)
		printf("importer: %d: %s\n", c.code, c.text);
	CHECK(c.code == cudaSuccess);
	*seconds = c.seconds;
	return c.ptr;
}

static void check_in(
	const struct importer *importer, void *theirs, size_t size, unsigned seed)
{
	CHECK(tell(importer, with_range(COUNT_WRONG, theirs, size, seed)).wrong == 0);
}

static void *region_malloc(size_t size)
{
	void *ptr = nullptr;

	OK(stayput_region_push("shared", STAYPUT_HOST));
	CUDA(cudaMalloc(&ptr, size));
	OK(stayput_region_pop());
	return ptr;
}

static struct stayput_report pause_all()
{
	struct stayput_report report = {};

	report.struct_size = sizeof report;
	OK(stayput_pause_ex(nullptr, 0, nullptr, &report));
	return report;
}

static void check_held(const struct importer *importer)
{
	struct stayput_options options = {};
	char pid[32];

	snprintf(pid, sizeof pid, "process %d", (int)importer->pid);
	CHECK(pause_all().total.bytes_held == LARGE + (2 << 20));
	CHECK(strstr(stayput_last_error(), pid));
	options.struct_size = sizeof options;
	options.fail_if_held = 1;
	CHECK(stayput_pause_ex(nullptr, 0, &options, nullptr) == STAYPUT_ERR_BUSY);
	CHECK(strstr(stayput_last_error(), pid));
}

static void share(int from, int to)
{
	struct importer importer = start_importer(to);
	void *large, *small, *their_large, *their_small;
	double opening, other;
	struct stayput_report report;

	CUDA(cudaSetDevice(from));
	large = region_malloc(LARGE);
	small = region_malloc(SMALL);
	write_words(large, LARGE, 1);
	write_words(small, SMALL, 2);
	their_large = open_in(&importer, large, &opening);
	their_small = open_in(&importer, small, &other);
	check_in(&importer, their_large, LARGE, 1);
	check_in(&importer, their_small, SMALL, 2);
	tell(&importer, with_range(FILL, their_large, LARGE, 3));
	CHECK(wrong_words(large, LARGE, 3) == 0);
	check_held(&importer);
	check_in(&importer, their_large, LARGE, 3);
	CHECK(tell(&importer, with_range(CLOSE, their_large, 0, 0)).code == 0);
	CHECK(tell(&importer, with_range(CLOSE, their_small, 0, 0)).code == 0);
	report = pause_all();
	CHECK(report.total.bytes_held == 0);
	CHECK(report.total.bytes_released == LARGE + (2 << 20));
	CHECK(report.total.bytes_released_driver >= LARGE);
	CHECK(tell(&importer, with_handle(OPEN, large)).code == cudaErrorIllegalState);
	OK(stayput_resume(nullptr));
	CHECK(wrong_words(large, LARGE, 3) == 0);
	CHECK(wrong_words(small, SMALL, 2) == 0);
	check_in(&importer, open_in(&importer, large, &other), LARGE, 3);
	end_importer(&importer);
	report = pause_all();
	CHECK(report.total.bytes_released_driver >= LARGE);
	OK(stayput_resume(nullptr));
	CUDA(cudaFree(large));
	CUDA(cudaFree(small));
	printf("GPU %d to GPU %d: right; opening took %.2f ms\n", from, to, opening * 1e3);
}

static int code_of_opening(cudaIpcMemHandle_t handle)
{
	void *ptr;
	int code = cudaIpcOpenMemHandle(&ptr, handle, cudaIpcMemLazyEnablePeerAccess);

	cudaGetLastError();
	return code;
}

static const char *const steps[] = {"handle of an inner address", "open in the same process",
	"close what was not opened", "open", "free what was opened", "close an inner address",
	"close", "close again", "open what was freed"};

enum { STEPS = sizeof steps / sizeof *steps };

static void run_steps(bool in_region, int codes[STEPS])
{
	struct importer importer = start_importer(0);
	void *mine, *theirs;
	struct call opening;

	CUDA(cudaSetDevice(0));
	if (in_region)
		mine = region_malloc(4 << 20);
	else
		CUDA(cudaMalloc(&mine, 4 << 20));
	opening = with_handle(OPEN, mine);
	codes[0] = cudaIpcGetMemHandle(&opening.handle, (char *)mine + 4096);
	codes[1] = code_of_opening(opening.handle);
	codes[2] = cudaIpcCloseMemHandle(mine);
	cudaGetLastError();
	opening = tell(&importer, opening);
	theirs = opening.ptr;
	codes[3] = opening.code;
	codes[4] = tell(&importer, with_range(FREE, theirs, 0, 0)).code;
	codes[5] = tell(&importer, with_range(CLOSE, (char *)theirs + 4096, 0, 0)).code;
	codes[6] = tell(&importer, with_range(CLOSE, theirs, 0, 0)).code;
	codes[7] = tell(&importer, with_range(CLOSE, theirs, 0, 0)).code;
	CUDA(cudaFree(mine));
	codes[8] = tell(&importer, opening).code;
	end_importer(&importer);
}

/* For reading: where they differ, either ours is to change or the documentation. */
static void print_codes()
{
	int native[STEPS] = {}, ours[STEPS] = {};

	run_steps(false, native);
	run_steps(true, ours);
	for (int i = 0; i < STEPS; i++)
		printf("%-34s native %d %s, ours %d %s%s\n", steps[i], native[i],
			cudaGetErrorName((cudaError_t)native[i]), ours[i],
			cudaGetErrorName((cudaError_t)ours[i]),
			native[i] == ours[i] ? "" : "  DIFFERS");
}

int main(int argc, char **argv)
{
	int devices, peers = 0;

	if (argc == 2)
		return import(atoi(argv[1]));
	CUDA(cudaGetDeviceCount(&devices));
	share(0, 0);
	if (devices > 1)
		CUDA(cudaDeviceCanAccessPeer(&peers, 1, 0));
	if (peers) {
		share(0, 1);
		share(1, 0);
		share(1, 1);
	} else {
		printf("skipped: two GPUs that see each other\n");
	}
	print_codes();
	return 0;
}
