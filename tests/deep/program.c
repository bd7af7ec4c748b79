/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordinary program, linked once to a static runtime and once to a shared one. Jobs for
 * tests/test_deep.c, which says what is preloaded and what the environment has. Memory is
 * allocated as programs do; only what the library says of it is asked by name.
 */
#include <pthread.h>

#include "../loading/preloaded.h"

#define CUDA(call) CHECK_EQ((call), cudaSuccess)

enum { ROWS = 5, BLOCKS = 4 };

struct memory {
	char *block[BLOCKS];
	size_t size[BLOCKS];
};

static struct memory allocate(void)
{
	struct cudaExtent extent = {.width = 1000, .height = ROWS, .depth = 2};
	struct cudaPitchedPtr solid;
	struct memory m = {.size = {3 * MIB, 1000}};
	void *ptr;
	size_t pitch;

	for (int i = 0; i < 2; i++) {
		CUDA(cudaMalloc(&ptr, m.size[i]));
		m.block[i] = ptr;
	}
	CUDA(cudaMallocPitch(&ptr, &pitch, 1000, ROWS));
	m.block[2] = ptr;
	m.size[2] = pitch * ROWS;
	CUDA(cudaMalloc3D(&solid, extent));
	m.block[3] = solid.ptr;
	m.size[3] = solid.pitch * ROWS * 2;
	return m;
}

static void release(const struct memory *m)
{
	for (int i = 0; i < BLOCKS; i++)
		CUDA(cudaFree(m->block[i]));
}

static size_t bytes_of(const struct memory *m)
{
	size_t bytes = 0;

	for (int i = 0; i < BLOCKS; i++)
		bytes += m->size[i];
	return bytes;
}

static void write_pattern(const struct memory *m)
{
	for (int i = 0; i < BLOCKS; i++) {
		unsigned char *host = malloc(m->size[i]);

		CHECK(host);
		for (size_t at = 0; at < m->size[i]; at++)
			host[at] = pattern_at(at + (size_t)i);
		CUDA(cudaMemcpy(m->block[i], host, m->size[i], cudaMemcpyHostToDevice));
		free(host);
	}
}

static void check_pattern(const struct memory *m)
{
	for (int i = 0; i < BLOCKS; i++) {
		unsigned char *host = malloc(m->size[i]);
		size_t wrong = 0;

		CHECK(host);
		CUDA(cudaMemcpy(host, m->block[i], m->size[i], cudaMemcpyDeviceToHost));
		for (size_t at = 0; at < m->size[i]; at++)
			wrong += host[at] != pattern_at(at + (size_t)i);
		CHECK_EQ(wrong, 0);
		free(host);
	}
}

static struct stayput_region_info info_of(const char *tag)
{
	struct stayput_region_info info = {.struct_size = sizeof info};

	CHECK_EQ(STAYPUT(stayput_region_info)(tag, &info), STAYPUT_OK);
	return info;
}

static void pause_and_resume(void)
{
	CHECK_EQ(STAYPUT(stayput_pause)("engine"), STAYPUT_OK);
	CHECK(info_of("engine").bytes_paused > 0);
	CHECK_EQ(STAYPUT(stayput_resume)("engine"), STAYPUT_OK);
}

static void *pause_from_thread(void *nothing)
{
	pause_and_resume();
	return nothing;
}

/* STAYPUT_DEFAULT is engine. */
static void keep_contents(void)
{
	struct memory m = allocate();
	struct stayput_info info;
	pthread_t thread;

	for (int i = 0; i < BLOCKS; i++) {
		CHECK_EQ(query(m.block[i], &info), STAYPUT_OK);
		CHECK(strcmp(info.tag, "engine") == 0);
	}
	CHECK_EQ(info_of("engine").bytes_active, bytes_of(&m));
	CHECK_EQ(info_of("engine").count_active, BLOCKS);
	write_pattern(&m);
	CHECK_EQ(pthread_create(&thread, NULL, pause_from_thread, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	check_pattern(&m);
	pause_and_resume();
	check_pattern(&m);
	release(&m);
	CHECK_EQ(info_of("engine").count_active, 0);
	CHECK_EQ(info_of("engine").bytes_active, 0);
}

static void stay_native(void)
{
	struct memory m = allocate();

	for (int i = 0; i < BLOCKS; i++)
		CHECK(!is_region_memory(m.block[i]));
	write_pattern(&m);
	CHECK_EQ(STAYPUT(stayput_pause)(NULL), STAYPUT_OK);
	check_pattern(&m);
	release(&m);
}

/* No default: what is allocated in a region belongs to it, and nothing else. */
static void choose_by_push(void)
{
	struct memory native = allocate(), ours, pushed;

	begin_region();
	ours = allocate();
	CHECK_EQ(STAYPUT(stayput_native_push)(), STAYPUT_OK);
	pushed = allocate();
	end_region();
	end_region();
	for (int i = 0; i < BLOCKS; i++) {
		CHECK(!is_region_memory(native.block[i]));
		CHECK(!is_region_memory(pushed.block[i]));
		CHECK(is_region_memory(ours.block[i]));
	}
	CHECK_EQ(info_of("weights").bytes_active, bytes_of(&ours));
	release(&native);
	release(&pushed);
	CHECK_EQ(info_of("weights").bytes_active, bytes_of(&ours));
	release(&ours);
	CHECK_EQ(info_of("weights").count_active, 0);
}

/* Memory of the default region is native here: policy keep, or no VMM on the device. The
 * rounding of rows is the driver's. */
static void count_once(void)
{
	void *ptr[2];
	struct memory m;

	for (int i = 0; i < 2; i++)
		CUDA(cudaMalloc(&ptr[i], 3 * MIB));
	CHECK_EQ(info_of("engine").bytes_active, 0);
	CHECK_EQ(info_of("engine").bytes_kept, 6 * MIB);
	CHECK_EQ(info_of("engine").count_kept, 2);
	m = allocate();
	CHECK_EQ(info_of("engine").count_kept, 2 + BLOCKS);
	CHECK_EQ(info_of("engine").bytes_kept, 6 * MIB + bytes_of(&m));
	release(&m);
	CUDA(cudaFree(ptr[0]));
	CHECK_EQ(info_of("engine").bytes_kept, 3 * MIB);
	CUDA(cudaFree(ptr[1]));
	CHECK_EQ(info_of("engine").count_kept, 0);
	CHECK_EQ(info_of("engine").bytes_kept, 0);
}

static cudaStream_t begin_capture(void)
{
	cudaStream_t stream;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	CHECK_EQ(STAYPUT(stayput_pause)("engine"), STAYPUT_ERR_BUSY);
	return stream;
}

/* Each capture is seen once: an end, by either library or by the stream's own, ends it.
 */
static void see_captures_once(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	cudaError_t (*driver_end)(cudaStream_t, cudaGraph_t *) = (cudaError_t(*)(
		cudaStream_t, cudaGraph_t *))symbol(driver, "cuStreamEndCapture");
	struct memory m = allocate();
	cudaStream_t first, second;
	cudaGraph_t graph;

	first = begin_capture();
	CUDA(cudaStreamEndCapture(first, &graph));
	pause_and_resume();
	CUDA(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
	CUDA(driver_end(first, &graph));
	pause_and_resume();
	first = begin_capture();
	second = begin_capture();
	CUDA(cudaStreamDestroy(first));
	CHECK_EQ(STAYPUT(stayput_pause)("engine"), STAYPUT_ERR_BUSY);
	CUDA(cudaStreamEndCapture(second, &graph));
	pause_and_resume();
	release(&m);
}

static void reset(void)
{
	struct memory m = allocate();

	CUDA(cudaDeviceReset());
	CHECK_EQ(info_of("engine").count_active, 0);
	m = allocate();
	write_pattern(&m);
	pause_and_resume();
	check_pattern(&m);
	release(&m);
}

static void check_opened(int pipe)
{
	unsigned char bytes[1000];
	cudaIpcMemHandle_t handle;
	void *ptr;

	CHECK_EQ(read(pipe, &handle, sizeof handle), sizeof handle);
	CUDA(cudaIpcOpenMemHandle(&ptr, handle, cudaIpcMemLazyEnablePeerAccess));
	CUDA(cudaMemcpy(bytes, ptr, sizeof bytes, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < sizeof bytes; i++)
		CHECK_EQ(bytes[i], 7);
	CHECK(cudaFree(ptr) != cudaSuccess);
	CUDA(cudaIpcCloseMemHandle(ptr));
	CHECK(cudaIpcCloseMemHandle(ptr) != cudaSuccess);
}

static void share_between_processes(void)
{
	cudaIpcMemHandle_t handle;
	int ends[2], status;
	void *ptr;
	pid_t pid;

	CHECK_EQ(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		check_opened(ends[0]);
		exit(0);
	}
	CUDA(cudaMalloc(&ptr, 1000));
	CUDA(cudaMemset(ptr, 7, 1000));
	CUDA(cudaIpcGetMemHandle(&handle, (char *)ptr + 10));
	CHECK_EQ(write(ends[1], &handle, sizeof handle), sizeof handle);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CUDA(cudaFree(ptr));
}

int main(int argc, char **argv)
{
	static const struct job jobs[] = {
		JOB(keep_contents),
		JOB(stay_native),
		JOB(choose_by_push),
		JOB(count_once),
		JOB(see_captures_once),
		JOB(reset),
		JOB(share_between_processes),
	};

	return do_job(jobs, sizeof jobs / sizeof *jobs, argc, argv);
}
