/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How pause and resume scale with the number of GPUs.
 *
 *   scaling DEVICES together|apart MIB   one process with DEVICES devices, or DEVICES
 *                                        processes with one each; MIB on each device, in
 *                                        allocations of 20 MiB
 *
 * Prints one JSON object: bytes per second of all devices together for the bare pinned copy
 * and for pause and resume, where host memory lies, and what was checked: contents after
 * every cycle, kernels across all pairs of devices before and after (together), IPC from
 * each process to the next (apart). Processes go in step; a phase takes from the first
 * beginning to the last end. Status 1 when a check fails.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stayput.h"

enum { DEVICES_MAX = 64, ROUNDS = 3, NODES_MAX = 16 };

static const size_t MIB = 1 << 20, BLOCK = 20 << 20, BARE = 256 << 20;

enum phase {
	BARE_TO_HOST,
	BARE_TO_DEVICE,
	FIRST_PAUSE,
	FIRST_RESUME,
	WARM_PAUSE,
	WARM_RESUME,
	UNCHANGED_PAUSE,
	UNCHANGED_RESUME,
	PHASES,
};

static const char *const phase_names[] = {"bare_to_host", "bare_to_device", "first_pause",
	"first_resume", "warm_pause", "warm_resume", "unchanged_pause",
	"unchanged_resume"};

/* What the processes share. */
struct board {
	pthread_barrier_t barrier;
	double begun[DEVICES_MAX], ended[DEVICES_MAX];
	double rate[PHASES][ROUNDS]; /* bytes a second, all together */
	cudaIpcMemHandle_t handle[DEVICES_MAX];
	size_t host_mib[NODES_MAX]; /* by NUMA node */
	int peer_pairs, ipc_links;
};

/* One process's part. */
struct part {
	struct board *board;
	int index, processes;
	int first, devices; /* its devices */
	size_t count;       /* allocations on each */
	char **block;       /* device by device */
};

#define CHECK(cond)                                                                   \
	do {                                                                          \
		if (!(cond)) {                                                        \
			fprintf(stderr, "scaling.c:%d: %s is false (%s)\n", __LINE__, \
				#cond, stayput_last_error());                         \
			_exit(1);                                                     \
		}                                                                     \
	} while (0)
#define CUDA(call) CHECK((call) == 0)
#define OK(call) CHECK((call) == STAYPUT_OK)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void step(struct part *p)
{
	pthread_barrier_wait(&p->board->barrier);
}

/* Runs `work` in all processes at once and notes how many bytes a second that made. */
static void measure(struct part *p, enum phase phase, int round, double bytes,
	void (*work)(struct part *p))
{
	struct board *b = p->board;

	step(p);
	b->begun[p->index] = now();
	work(p);
	b->ended[p->index] = now();
	step(p);
	if (p->index == 0) {
		double first = b->begun[0], last = b->ended[0];

		for (int i = 1; i < p->processes; i++) {
			first = b->begun[i] < first ? b->begun[i] : first;
			last = b->ended[i] > last ? b->ended[i] : last;
		}
		b->rate[phase][round] = bytes * p->processes / (last - first);
	}
	step(p);
}

static void pause_all(struct part *p)
{
	(void)p;
	OK(stayput_pause(NULL));
}

static void resume_all(struct part *p)
{
	(void)p;
	OK(stayput_resume(NULL));
}

/* ---- bare copies: one pinned buffer and one native one for each device */

struct bare {
	void *device, *host;
	cudaStream_t stream;
};

static struct bare bare[DEVICES_MAX];

static void copy_bare(struct part *p, enum cudaMemcpyKind kind)
{
	for (int d = 0; d < p->devices; d++) {
		struct bare *b = &bare[d];
		void *to = kind == cudaMemcpyDeviceToHost ? b->host : b->device;
		void *from = kind == cudaMemcpyDeviceToHost ? b->device : b->host;

		CUDA(cudaSetDevice(p->first + d));
		for (size_t done = 0; done < p->count * BLOCK; done += BARE)
			CUDA(cudaMemcpyAsync(to, from, BARE, kind, b->stream));
	}
	for (int d = 0; d < p->devices; d++)
		CUDA(cudaStreamSynchronize(bare[d].stream));
}

static void copy_to_host(struct part *p)
{
	copy_bare(p, cudaMemcpyDeviceToHost);
}

static void copy_to_device(struct part *p)
{
	copy_bare(p, cudaMemcpyHostToDevice);
}

static void measure_bare(struct part *p)
{
	size_t copies = (p->count * BLOCK + BARE - 1) / BARE;
	double bytes = (double)copies * BARE * p->devices;

	OK(stayput_native_push());
	for (int d = 0; d < p->devices; d++) {
		CUDA(cudaSetDevice(p->first + d));
		CUDA(cudaMalloc(&bare[d].device, BARE));
		CUDA(cudaHostAlloc(&bare[d].host, BARE, cudaHostAllocDefault));
		CUDA(cudaStreamCreateWithFlags(&bare[d].stream, cudaStreamNonBlocking));
	}
	for (int r = -1; r < ROUNDS; r++) {
		measure(p, BARE_TO_HOST, r < 0 ? 0 : r, bytes, copy_to_host);
		measure(p, BARE_TO_DEVICE, r < 0 ? 0 : r, bytes, copy_to_device);
	}
	for (int d = 0; d < p->devices; d++) {
		CUDA(cudaSetDevice(p->first + d));
		CUDA(cudaStreamDestroy(bare[d].stream));
		CUDA(cudaFreeHost(bare[d].host));
		CUDA(cudaFree(bare[d].device));
	}
	OK(stayput_region_pop());
}

/* ---- contents: every word of an allocation tells which it is, and the round */

static unsigned word_of(size_t index, int round)
{
	return (unsigned)(index * 2654435761u + round * 40503u + 1);
}

static void write_contents(struct part *p, int round)
{
	for (size_t i = 0; i < p->count * p->devices; i++) {
		CUDA(cudaSetDevice(p->first + (int)(i / p->count)));
		CUDA(cuMemsetD32((CUdeviceptr)p->block[i], word_of(i, round), BLOCK / 4));
	}
	for (int d = 0; d < p->devices; d++) {
		CUDA(cudaSetDevice(p->first + d));
		CUDA(cudaDeviceSynchronize());
	}
}

/* A page from the beginning, middle and end of each. */
static void check_contents(struct part *p, int round)
{
	static const size_t at[] = {0, BLOCK / 2, BLOCK - 4096};
	unsigned page[1024];

	for (size_t i = 0; i < p->count * p->devices; i++)
		for (int a = 0; a < 3; a++) {
			CUDA(cudaMemcpy(page, p->block[i] + at[a], sizeof page,
				cudaMemcpyDeviceToHost));
			CHECK(page[0] == word_of(i, round));
			CHECK(page[1023] == word_of(i, round));
		}
}

/* ---- kernels on one device over the memory of another */

static const char ptx[] =
	".version 7.0\n.target sm_52\n.address_size 64\n"
	".visible .entry scaling_add(.param .u64 at, .param .u32 value)\n"
	"{\n"
	".reg .b32 %r<3>;\n.reg .b64 %rd<3>;\n"
	"ld.param.u64 %rd1, [at];\n"
	"cvta.to.global.u64 %rd2, %rd1;\n"
	"ld.param.u32 %r1, [value];\n"
	"atom.global.add.u32 %r2, [%rd2], %r1;\n"
	"ret;\n"
	"}\n";

/* The fake driver runs no device code, and lets a program say what a kernel does. */
static void stand_in(void **params, unsigned grid_blocks)
{
	void *(*at)(CUdeviceptr, size_t);
	unsigned *word;

	(void)grid_blocks;
	*(void **)&at = dlsym(RTLD_DEFAULT, "fakecuda_at");
	word = at(*(CUdeviceptr *)params[0], 4);
	if (word)
		*word += *(unsigned *)params[1];
}

static CUfunction kernel_on(int device)
{
	static CUfunction kernels[DEVICES_MAX];
	void (*offer)(const char *, void (*)(void **, unsigned));
	CUmodule module;

	CUDA(cudaSetDevice(device));
	if (kernels[device])
		return kernels[device];
	*(void **)&offer = dlsym(RTLD_DEFAULT, "fakecuda_kernel");
	if (offer)
		offer("scaling_add", stand_in);
	CUDA(cuModuleLoadData(&module, ptx));
	CUDA(cuModuleGetFunction(&kernels[device], module, "scaling_add"));
	return kernels[device];
}

static void add_on(int device, char *at, unsigned value)
{
	CUdeviceptr ptr = (CUdeviceptr)at;
	void *params[] = {&ptr, &value};

	CUDA(cuLaunchKernel(kernel_on(device), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	CUDA(cudaDeviceSynchronize());
}

static void enable_peers(struct part *p)
{
	int can;

	for (int d = 0; d < p->devices; d++)
		for (int other = 0; other < p->devices; other++) {
			CUDA(cudaSetDevice(d));
			if (d == other || cudaDeviceCanAccessPeer(&can, d, other) || !can)
				continue;
			CUDA(cudaDeviceEnablePeerAccess(other, 0));
			p->board->peer_pairs++;
		}
}

static void check_peers(struct part *p, int round)
{
	unsigned word;
	int can;

	for (int d = 0; d < p->devices; d++)
		for (int other = 0; other < p->devices; other++) {
			size_t i = other * p->count;

			if (d == other || cudaDeviceCanAccessPeer(&can, d, other) || !can)
				continue;
			add_on(d, p->block[i], 5);
			CUDA(cudaMemcpy(&word, p->block[i], 4, cudaMemcpyDefault));
			CHECK(word == word_of(i, round) + 5);
			add_on(d, p->block[i], (unsigned)-5);
		}
}

/* ---- IPC from each process to the next */

static void check_ipc(struct part *p, int round)
{
	struct board *b = p->board;
	int from = (p->index + p->processes - 1) % p->processes;
	unsigned word, mine;
	char *opened;

	CUDA(cudaIpcGetMemHandle(&b->handle[p->index], p->block[p->count - 1]));
	step(p);
	CUDA(cudaIpcOpenMemHandle(
		(void **)&opened, b->handle[from], cudaIpcMemLazyEnablePeerAccess));
	CUDA(cudaMemcpy(&word, opened + 4096, 4, cudaMemcpyDefault));
	CHECK(word == word_of(p->count - 1, round));
	word = 1000 + from;
	CUDA(cudaMemcpy(opened + 4096, &word, 4, cudaMemcpyDefault));
	CUDA(cudaDeviceSynchronize());
	CUDA(cudaIpcCloseMemHandle(opened));
	step(p);
	CUDA(cudaMemcpy(&word, p->block[p->count - 1] + 4096, 4, cudaMemcpyDefault));
	CHECK(word == (unsigned)(1000 + p->index));
	mine = word_of(p->count - 1, round);
	CUDA(cudaMemcpy(p->block[p->count - 1] + 4096, &mine, 4, cudaMemcpyHostToDevice));
	__sync_fetch_and_add(&b->ipc_links, 1);
	step(p);
}

/* ---- where host memory lies */

static void count_host_memory(struct board *b)
{
	FILE *maps = fopen("/proc/self/numa_maps", "re");
	char line[4096], *at;
	size_t pages, page_kib;
	int node, used;

	while (maps && fgets(line, sizeof line, maps)) {
		at = strstr(line, "kernelpagesize_kB=");
		page_kib = at ? strtoul(at + 18, NULL, 10) : 4;
		if (strstr(line, "file="))
			continue;
		for (at = strstr(line, " N"); at; at = strstr(at + 1, " N"))
			if (sscanf(at, " N%d=%zu%n", &node, &pages, &used) >= 2 &&
				node >= 0 && node < NODES_MAX)
				__sync_fetch_and_add(
					&b->host_mib[node], pages * page_kib / 1024);
	}
	if (maps)
		fclose(maps);
}

/* A virtual machine may get its memory from the host only when it is first touched: that is
 * not what is measured. What was touched and given back a moment ago is at hand. */
static void touch_host_memory(size_t size)
{
	char *memory = mmap(
		NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return;
	madvise(memory, size, MADV_HUGEPAGE);
	for (size_t at = 0; at < size; at += 4096)
		memory[at] = 1;
	munmap(memory, size);
}

static void run(struct part *p)
{
	double bytes = (double)p->count * BLOCK * p->devices;

	CUDA(cuInit(0));
	p->block = calloc(p->count * p->devices, sizeof *p->block);
	CHECK(p->block);
	measure_bare(p);
	OK(stayput_region_push("scaling", STAYPUT_HOST));
	for (size_t i = 0; i < p->count * p->devices; i++) {
		CUDA(cudaSetDevice(p->first + (int)(i / p->count)));
		CUDA(cudaMalloc((void **)&p->block[i], BLOCK));
	}
	OK(stayput_region_pop());
	write_contents(p, 0);
	if (p->devices > 1) {
		enable_peers(p);
		check_peers(p, 0);
	}
	touch_host_memory((size_t)(bytes * 1.05));
	measure(p, FIRST_PAUSE, 0, bytes, pause_all);
	if (p->index == 0)
		memset(p->board->host_mib, 0, sizeof p->board->host_mib);
	step(p);
	count_host_memory(p->board);
	measure(p, FIRST_RESUME, 0, bytes, resume_all);
	check_contents(p, 0);
	for (int r = 0; r < ROUNDS; r++) {
		write_contents(p, r + 1);
		measure(p, WARM_PAUSE, r, bytes, pause_all);
		measure(p, WARM_RESUME, r, bytes, resume_all);
		check_contents(p, r + 1);
		measure(p, UNCHANGED_PAUSE, r, bytes, pause_all);
		measure(p, UNCHANGED_RESUME, r, bytes, resume_all);
		check_contents(p, r + 1);
	}
	if (p->devices > 1)
		check_peers(p, ROUNDS);
	if (p->processes > 1)
		check_ipc(p, ROUNDS);
	for (size_t i = 0; i < p->count * p->devices; i++)
		CUDA(cudaFree(p->block[i]));
}

static int ascending(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static double middle(const double *rates)
{
	double sorted[ROUNDS];
	int count = rates[1] > 0 ? ROUNDS : 1;

	memcpy(sorted, rates, sizeof sorted);
	qsort(sorted, count, sizeof *sorted, ascending);
	return sorted[count / 2];
}

static void print(const struct board *b, int devices, const char *how, size_t mib)
{
	const char *comma = "";

	printf("{\"devices\":%d,\"processes\":\"%s\",\"mib_per_device\":%zu,", devices,
		how, mib);
	for (int i = 0; i < PHASES; i++)
		printf("\"%s_GBps\":%.2f,", phase_names[i], middle(b->rate[i]) * 1e-9);
	printf("\"peer_pairs\":%d,\"ipc_links\":%d,\"host_mib_by_node\":[", b->peer_pairs,
		b->ipc_links);
	for (int node = 0; node < NODES_MAX && (node == 0 || b->host_mib[node]); node++) {
		printf("%s%zu", comma, b->host_mib[node]);
		comma = ",";
	}
	printf("]}\n");
}

static struct board *make_board(int processes)
{
	pthread_barrierattr_t shared;
	struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(b != MAP_FAILED);
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	CHECK(pthread_barrier_init(&b->barrier, &shared, processes) == 0);
	return b;
}

int main(int argc, char **argv)
{
	int devices = argc == 4 ? atoi(argv[1]) : 0, status, failed = 0;
	bool apart = argc == 4 && strcmp(argv[2], "apart") == 0;
	size_t mib = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
	int processes = apart ? devices : 1;
	struct board *b;

	if (devices < 1 || devices > DEVICES_MAX || mib < BLOCK / MIB) {
		fprintf(stderr, "usage: scaling DEVICES together|apart MIB\n");
		return 2;
	}
	b = make_board(processes);
	/* The parent never touches CUDA: its children could not use it. */
	for (int i = 0; i < processes; i++)
		if (fork() == 0) {
			struct part p = {.board = b,
				.index = i,
				.processes = processes,
				.first = i,
				.devices = apart ? 1 : devices,
				.count = mib * MIB / BLOCK};

			run(&p);
			exit(0);
		}
	while (wait(&status) > 0)
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			failed = 1;
			kill(0, SIGTERM); /* the others wait for it */
		}
	if (!failed)
		print(b, devices, argv[2], mib);
	return failed;
}
