/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library against the hardware: bare driver calls, the bare pinned copy, and the same
 * work done by pause and resume, in one run on one machine. Each case is a process of its
 * own; every figure is the median of ROUNDS rounds unless it says "first".
 *
 *   bench [--json FILE] [--scale N]     all cases; sizes divided by N, for a smaller card
 *   bench --case NAME [--scale N]       one, as lines "figure value"
 *
 * Run with libstayput.so preloaded or linked before the runtime: `make bench`.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "stayput.h"

enum { ROUNDS = 5, FIGURES_MAX = 128, DEVICES_MAX = 16 };

static const size_t MIB = 1 << 20;
static size_t scale = 1;

static void fail(const char *what, int code)
{
	fprintf(stderr, "bench: %s gave %d: %s\n", what, code, stayput_last_error());
	exit(1);
}

#define OK(call)                            \
	do {                                \
		int code_ = (int)(call);    \
		if (code_ != 0)             \
			fail(#call, code_); \
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static double median(double *values, size_t count)
{
	qsort(values, count, sizeof *values, ascending);
	return values[count / 2];
}

static void figure(const char *name, double value)
{
	printf("%s %.6g\n", name, value);
	fflush(stdout);
}

struct set {
	void **ptr;
	size_t count, size;
	int devices;
};

/* `count` allocations on each device. */
static struct set make_set(
	const char *tag, int policy, size_t count, size_t size, int devices)
{
	struct set set = {.count = count / scale, .size = size, .devices = devices};

	set.ptr = calloc(set.count * devices, sizeof(void *));
	OK(stayput_region_push(tag, policy));
	for (int dev = 0; dev < devices; dev++) {
		OK(cudaSetDevice(dev));
		for (size_t i = 0; i < set.count; i++)
			OK(cudaMalloc(&set.ptr[dev * set.count + i], size));
	}
	OK(stayput_region_pop());
	return set;
}

/* Every byte of every 2 MiB piece for which its number % every == 0 changes. */
static void dirty(const struct set *set, int value, size_t every)
{
	const size_t piece = 2 * MIB;
	size_t number = 0;

	for (int dev = 0; dev < set->devices; dev++) {
		OK(cudaSetDevice(dev));
		for (size_t i = 0; i < set->count; i++)
			for (size_t at = 0; at < set->size; at += piece)
				if (number++ % every == 0)
					OK(cudaMemsetAsync(
						(char *)set->ptr[dev * set->count + i] +
							at,
						value, piece, 0));
		OK(cudaDeviceSynchronize());
	}
}

static double total_bytes(const struct set *set)
{
	return (double)set->count * set->size * set->devices;
}

static const char *only_tag; /* NULL: every region */

static double pause_seconds(struct stayput_report *report)
{
	double start = now();

	report->struct_size = sizeof *report;
	OK(stayput_pause_ex(only_tag ? &only_tag : NULL, only_tag ? 1 : 0, NULL, report));
	return now() - start;
}

static double resume_seconds(struct stayput_report *report)
{
	double start = now();

	report->struct_size = sizeof *report;
	OK(stayput_resume_ex(
		only_tag ? &only_tag : NULL, only_tag ? 1 : 0, NULL, report));
	return now() - start;
}

struct bare {
	CUdeviceptr base;
	CUmemGenericAllocationHandle *handles;
	size_t count, size;
};

static void bare_up(struct bare *b)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemAccessDesc access = {
		.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	for (size_t i = 0; i < b->count; i++)
		OK(cuMemCreate(&b->handles[i], b->size, &prop, 0));
	for (size_t i = 0; i < b->count; i++)
		OK(cuMemMap(b->base + i * b->size, b->size, 0, b->handles[i], 0));
	OK(cuMemSetAccess(b->base, b->count * b->size, &access, 1));
}

static void bare_down(struct bare *b)
{
	OK(cuMemUnmap(b->base, b->count * b->size));
	for (size_t i = 0; i < b->count; i++)
		OK(cuMemRelease(b->handles[i]));
}

static void measure_bare_calls(size_t count, size_t size)
{
	struct bare b = {.count = count / scale, .size = size};
	double up[ROUNDS], down[ROUNDS];

	b.handles = calloc(b.count, sizeof *b.handles);
	OK(cuMemAddressReserve(&b.base, b.count * size, 0, 0, 0));
	for (int r = -1; r < ROUNDS; r++) {
		double start = now(), middle;

		bare_up(&b);
		middle = now();
		bare_down(&b);
		if (r < 0)
			continue;
		up[r] = middle - start;
		down[r] = now() - middle;
	}
	OK(cuMemAddressFree(b.base, b.count * size));
	free(b.handles);
	figure("bare_down_ms", median(down, ROUNDS) * 1e3);
	figure("bare_up_ms", median(up, ROUNDS) * 1e3);
}

/* The bare pinned copy of one device, both ways, in copies of 20 MiB as the library makes
 * them. */
struct copier {
	int device;
	pthread_barrier_t *start;
	double to_host[ROUNDS + 1], to_device[ROUNDS + 1]; /* seconds */
	double bytes;
};

static void copy_all(char *to, const char *from, size_t part, size_t parts,
	enum cudaMemcpyKind kind, cudaStream_t stream)
{
	const size_t repeat = 8;

	for (size_t i = 0; i < parts * repeat; i++)
		OK(cudaMemcpyAsync(to + i % parts * part, from + i % parts * part, part,
			kind, stream));
	OK(cudaStreamSynchronize(stream));
}

static void *copy_on_device(void *argument)
{
	struct copier *c = argument;
	const size_t part = 20 * MIB, parts = 100 / scale + 1;
	char *host, *device;
	cudaStream_t stream;

	c->bytes = part * parts * 8.0;
	OK(cudaSetDevice(c->device));
	OK(cudaMallocHost((void **)&host, part * parts));
	OK(cudaMalloc((void **)&device, part * parts));
	OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	for (int r = 0; r <= ROUNDS; r++) {
		double start;

		pthread_barrier_wait(c->start);
		start = now();
		copy_all(host, device, part, parts, cudaMemcpyDeviceToHost, stream);
		c->to_host[r] = now() - start;
		pthread_barrier_wait(c->start);
		start = now();
		copy_all(device, host, part, parts, cudaMemcpyHostToDevice, stream);
		c->to_device[r] = now() - start;
	}
	OK(cudaStreamDestroy(stream));
	OK(cudaFreeHost(host));
	OK(cudaFree(device));
	return NULL;
}

/* GB/s of all devices together, copying at the same time. */
static void measure_bare_copies(int devices, double *to_host, double *to_device)
{
	struct copier copiers[DEVICES_MAX];
	pthread_t threads[DEVICES_MAX];
	pthread_barrier_t start;
	double down = 0, up = 0;

	OK(pthread_barrier_init(&start, NULL, devices));
	for (int i = 0; i < devices; i++) {
		copiers[i] = (struct copier){.device = i, .start = &start};
		OK(pthread_create(&threads[i], NULL, copy_on_device, &copiers[i]));
	}
	for (int i = 0; i < devices; i++) {
		OK(pthread_join(threads[i], NULL));
		down += copiers[i].bytes / median(copiers[i].to_host + 1, ROUNDS) * 1e-9;
		up += copiers[i].bytes / median(copiers[i].to_device + 1, ROUNDS) * 1e-9;
	}
	*to_host = down;
	*to_device = up;
}

static void measure_bare_copy(double *to_host, double *to_device)
{
	measure_bare_copies(1, to_host, to_device);
}

static void discard(size_t count, size_t size)
{
	double down[ROUNDS], up[ROUNDS];
	struct stayput_report report;

	OK(cudaFree(0));
	measure_bare_calls(count, size);
	make_set("kv", STAYPUT_DISCARD, count, size, 1);
	for (int r = -1; r < ROUNDS; r++) {
		double pause = pause_seconds(&report), resume = resume_seconds(&report);

		if (r < 0)
			continue;
		down[r] = pause;
		up[r] = resume;
	}
	figure("pause_ms", median(down, ROUNDS) * 1e3);
	figure("resume_ms", median(up, ROUNDS) * 1e3);
}

static void discard_1g(void)
{
	discard(64, 1024 * MIB);
}

static void discard_20m(void)
{
	discard(3200, 20 * MIB);
}

static void discard_2m(void)
{
	discard(8000, 2 * MIB);
}

static void print_phases(const struct stayput_report *r)
{
	figure("seconds_sync_ms", r->total.seconds_sync * 1e3);
	figure("seconds_pin_ms", r->total.seconds_pin * 1e3);
	figure("seconds_digest_ms", r->total.seconds_digest * 1e3);
	figure("seconds_copy_ms", r->total.seconds_copy * 1e3);
	figure("seconds_unmap_ms", r->total.seconds_unmap * 1e3);
}

/* A virtual machine may get its memory from the host only when it is first touched: that
 * is not what is measured. What was touched and given back a moment ago is at hand. */
static void touch_host_memory(double size)
{
	char *memory = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return;
	madvise(memory, (size_t)size, MADV_HUGEPAGE);
	for (size_t at = 0; at < size; at += 4096)
		memory[at] = 1;
	munmap(memory, (size_t)size);
}

/* The first pause of a process, and one resume. */
static void first(void)
{
	struct set set = make_set("w", STAYPUT_HOST, 800, 20 * MIB, 1);
	struct stayput_report report;
	double seconds;

	dirty(&set, 1, 1);
	touch_host_memory(total_bytes(&set) * 1.1);
	seconds = pause_seconds(&report);
	figure("first_pause_GBps", total_bytes(&set) / seconds * 1e-9);
	print_phases(&report);
	figure("first_resume_GBps", total_bytes(&set) / resume_seconds(&report) * 1e-9);
}

static size_t host_bytes_idle(void)
{
	char json[4096], *at;

	stayput_snapshot_json(json, sizeof json);
	at = strstr(json, "\"host_bytes_idle\":");
	return at ? strtoull(at + strlen("\"host_bytes_idle\":"), NULL, 10) : 0;
}

static void reserved(void)
{
	struct set set = make_set("w", STAYPUT_HOST, 800, 20 * MIB, 1);
	struct stayput_report report;
	double to_host, to_device, rate;

	measure_bare_copy(&to_host, &to_device);
	dirty(&set, 1, 1);
	OK(stayput_host_reserve(NULL));
	while (host_bytes_idle() < total_bytes(&set))
		usleep(1000);
	rate = total_bytes(&set) / pause_seconds(&report) * 1e-9;
	figure("reserved_first_pause_GBps", rate);
	figure("reserved_first_pause_over_bare", rate / to_host);
}

static void warm_on(int devices)
{
	struct set set = make_set("w", STAYPUT_HOST, 800, 20 * MIB, devices);
	double down[ROUNDS], up[ROUNDS], to_host, to_device;
	struct stayput_report report, resumed;

	measure_bare_copies(devices, &to_host, &to_device);
	figure("bare_to_host_GBps", to_host);
	figure("bare_to_device_GBps", to_device);
	for (int r = -1; r < ROUNDS; r++) {
		double pause, resume;

		dirty(&set, 2 + r, 1);
		pause = pause_seconds(&report);
		resume = resume_seconds(&resumed);
		if (r < 0)
			continue;
		down[r] = total_bytes(&set) / pause * 1e-9;
		up[r] = total_bytes(&set) / resume * 1e-9;
	}
	figure("pause_GBps", median(down, ROUNDS));
	figure("resume_GBps", median(up, ROUNDS));
	figure("pause_over_bare", median(down, ROUNDS) / to_host);
	figure("resume_over_bare", median(up, ROUNDS) / to_device);
	print_phases(&report);
	figure("resume_create_ms", resumed.total.seconds_create * 1e3);
	figure("resume_map_ms", resumed.total.seconds_map * 1e3);
	figure("resume_copy_wait_ms", resumed.total.seconds_copy * 1e3);
}

static void warm(void)
{
	warm_on(1);
}

static void all_devices(void)
{
	int devices;

	OK(cudaGetDeviceCount(&devices));
	figure("devices", devices);
	warm_on(devices < DEVICES_MAX ? devices : DEVICES_MAX);
}

static void clean_and_dirty(void)
{
	struct set set = make_set("w", STAYPUT_HOST, 800, 20 * MIB, 1);
	double clean[ROUNDS], part[ROUNDS], digest[ROUNDS], unmap[ROUNDS], to_host,
		to_device;
	struct stayput_report report;
	double copied = 0;

	measure_bare_calls(800, 20 * MIB);
	measure_bare_copy(&to_host, &to_device);
	dirty(&set, 1, 1);
	pause_seconds(&report);
	resume_seconds(&report);
	for (int r = 0; r < ROUNDS; r++) {
		clean[r] = pause_seconds(&report) * 1e3;
		digest[r] = report.total.seconds_digest * 1e3;
		unmap[r] = report.total.seconds_unmap * 1e3;
		if (report.total.bytes_copied)
			fail("a clean pause copied", (int)report.total.bytes_copied);
		resume_seconds(&report);
		dirty(&set, 10 + r, 20);
		part[r] = pause_seconds(&report) * 1e3;
		copied = report.total.bytes_copied;
		resume_seconds(&report);
	}
	figure("clean_pause_ms", median(clean, ROUNDS));
	figure("clean_digest_ms", median(digest, ROUNDS));
	figure("clean_unmap_ms", median(unmap, ROUNDS));
	figure("dirty5_pause_ms", median(part, ROUNDS));
	figure("dirty5_copied_percent", copied / total_bytes(&set) * 100);
	figure("dirty5_bare_copy_ms", copied / to_host * 1e-6);
}

/* STAYPUT_HOST_KEEP=0 is set by the table. */
static void no_keep(void)
{
	struct set set = make_set("w", STAYPUT_HOST, 800, 20 * MIB, 1);
	double down[ROUNDS], up[ROUNDS];
	struct stayput_report report;

	for (int r = -1; r < ROUNDS; r++) {
		double pause, resume;

		dirty(&set, 2 + r, 1);
		pause = pause_seconds(&report);
		resume = resume_seconds(&report);
		if (r < 0)
			continue;
		down[r] = total_bytes(&set) / pause * 1e-9;
		up[r] = total_bytes(&set) / resume * 1e-9;
	}
	figure("no_keep_pause_GBps", median(down, ROUNDS));
	figure("no_keep_resume_GBps", median(up, ROUNDS));
}

static _Atomic int stop;

static void malloc_and_free(size_t size, double *worst)
{
	double start = now(), seconds;
	void *ptr;

	OK(cudaMalloc(&ptr, size));
	OK(cudaFree(ptr));
	seconds = now() - start;
	if (seconds > *worst)
		*worst = seconds;
}

/* The longest malloc+free of unrelated memory: native, and in another region. */
static void *churn(void *worst)
{
	while (!stop) {
		malloc_and_free(4096, worst);
		OK(stayput_region_push("other", STAYPUT_DISCARD));
		malloc_and_free(4096, worst);
		malloc_and_free(4 * MIB, worst);
		OK(stayput_region_pop());
	}
	return NULL;
}

static double worst_of(double (*step)(struct stayput_report *), double *idle)
{
	struct stayput_report report;
	double worst = 0;
	pthread_t thread;

	stop = 0;
	OK(pthread_create(&thread, NULL, churn, &worst));
	usleep(100000);
	*idle = worst;
	worst = 0;
	if (step)
		step(&report);
	stop = 1;
	OK(pthread_join(thread, NULL));
	return worst * 1e3;
}

static void stall(void)
{
	struct set set = make_set("w", STAYPUT_HOST, 800, 20 * MIB, 1);
	double idle, first_pause, warm_pause, resume;
	struct stayput_report report;

	only_tag = "w";
	dirty(&set, 1, 1);
	touch_host_memory(total_bytes(&set) * 1.1);
	first_pause = worst_of(pause_seconds, &idle);
	resume_seconds(&report);
	dirty(&set, 2, 1);
	warm_pause = worst_of(pause_seconds, &idle);
	resume = worst_of(resume_seconds, &idle);
	figure("stall_idle_ms", idle * 1e3);
	figure("stall_first_pause_ms", first_pause);
	figure("stall_warm_pause_ms", warm_pause);
	figure("stall_resume_ms", resume);
}

static double resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages[2] = {0};

	if (file && fscanf(file, "%ld %ld", &pages[0], &pages[1]) != 2)
		pages[1] = 0;
	if (file)
		fclose(file);
	return (double)pages[1] * sysconf(_SC_PAGESIZE);
}

static void host_memory(void)
{
	struct set set = make_set("w", STAYPUT_HOST, 800, 20 * MIB, 1);
	struct stayput_report report;
	double before, paused, trimmed;

	dirty(&set, 1, 1);
	before = resident_bytes();
	pause_seconds(&report);
	paused = resident_bytes();
	resume_seconds(&report);
	OK(stayput_host_trim(0));
	trimmed = resident_bytes();
	figure("host_peak_over_device_bytes", (paused - before) / total_bytes(&set));
	figure("host_left_after_trim_percent",
		(trimmed - before) / total_bytes(&set) * 100);
}

static const struct {
	const char *name;
	void (*run)(void);
	const char *environment; /* "NAME=VALUE" or NULL */
} cases[] = {
	{"discard_64x1GiB", discard_1g, NULL},
	{"discard_3200x20MiB", discard_20m, NULL},
	{"discard_8000x2MiB", discard_2m, NULL},
	{"warm", warm, NULL},
	{"clean_and_dirty", clean_and_dirty, NULL},
	{"no_keep", no_keep, "STAYPUT_HOST_KEEP=0"},
	{"host_memory", host_memory, NULL},
	{"reserved", reserved, NULL},
	{"first", first, NULL},
	{"first_4_threads", first, "STAYPUT_THREADS=4"},
	{"stall", stall, NULL},
	{"all_devices", all_devices, NULL},
};

enum { CASES = sizeof cases / sizeof *cases };

/* Runs a case in a process of its own; prints its lines and adds them to the JSON. */
static int run_case(size_t index, const char *self, FILE *json)
{
	char command[4096], line[256], name[128];
	double value;
	const char *comma = "";
	FILE *pipe;

	snprintf(command, sizeof command, "%s %s --case %s --scale %zu",
		cases[index].environment ? cases[index].environment : "", self,
		cases[index].name, scale);
	printf("%s%s%s\n", cases[index].name, cases[index].environment ? " " : "",
		cases[index].environment ? cases[index].environment : "");
	fflush(stdout);
	pipe = popen(command, "r");
	if (!pipe)
		return 1;
	if (json)
		fprintf(json, "%s\"%s\":{", index ? "," : "", cases[index].name);
	while (fgets(line, sizeof line, pipe))
		if (sscanf(line, "%127s %lf", name, &value) == 2) {
			printf("  %-34s %10.3f\n", name, value);
			if (json)
				fprintf(json, "%s\"%s\":%g", comma, name, value);
			comma = ",";
		}
	if (json)
		fprintf(json, "}");
	fflush(stdout);
	return pclose(pipe) != 0;
}

int main(int argc, char **argv)
{
	const char *only = NULL;
	FILE *json = NULL;
	int failed = 0;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--case") == 0)
			only = argv[i + 1];
		else if (strcmp(argv[i], "--scale") == 0)
			scale = strtoull(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--json") == 0)
			json = fopen(argv[i + 1], "w");
	}
	for (size_t i = 0; only && i < CASES; i++)
		if (strcmp(cases[i].name, only) == 0) {
			cases[i].run();
			return 0;
		}
	if (json)
		fprintf(json, "{");
	for (size_t i = 0; i < CASES; i++)
		failed += run_case(i, argv[0], json);
	if (json) {
		fprintf(json, "}\n");
		fclose(json);
	}
	return failed != 0;
}
