/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only a GPU can show of the main job: kernels that still write while pause is called,
 * captures, the first call of a process. Each claim runs in a process of its own:
 *
 *   nvcc -cudart shared -Iinclude -o main_job tests/gpu/main_job.cu -Lbuild -lstayput
 *   LD_PRELOAD=build/libstayput.so main_job [claim]
 */
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"

/* Each element counts up `rounds` times, slowly; unmapped under it, the context dies. */
__global__ void count_up(unsigned *data, size_t n, int rounds)
{
	for (int r = 0; r < rounds; r++)
		for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
			i += gridDim.x * blockDim.x)
			((volatile unsigned *)data)[i] += 1;
}

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

static void *region_malloc(const char *tag, int policy, size_t size)
{
	void *ptr = nullptr;

	OK(stayput_region_push(tag, policy));
	CUDA(cudaMalloc(&ptr, size));
	OK(stayput_region_pop());
	return ptr;
}

static unsigned long long wrong_words(const void *data, size_t size, unsigned seed)
{
	unsigned long long *wrong, answer;

	CUDA(cudaMalloc(&wrong, sizeof *wrong));
	CUDA(cudaMemset(wrong, 0, sizeof *wrong));
	count_wrong<<<1024, 256>>>((const unsigned *)data, size / 4, seed, wrong);
	CUDA(cudaMemcpy(&answer, wrong, sizeof answer, cudaMemcpyDeviceToHost));
	CUDA(cudaFree(wrong));
	return answer;
}

static void region_malloc_is_the_first_call()
{
	void *p = region_malloc("first", STAYPUT_HOST, 64 << 20);

	CUDA(cudaMemset(p, 1, 64 << 20));
	CUDA(cudaFree(p));
}

static void malloc_of_nothing_answers_as_the_runtime_does()
{
	void *p = (void *)1;

	OK(stayput_region_push("nothing", STAYPUT_HOST));
	CUDA(cudaMalloc(&p, 0));
	CHECK(p == nullptr);
	OK(stayput_region_pop());
}

static void pause_waits_for_a_kernel_on_a_non_blocking_stream()
{
	const size_t n = 256 << 20;
	unsigned *data = (unsigned *)region_malloc("busy", STAYPUT_HOST, n * 4);
	std::vector<unsigned> back(n);
	cudaStream_t stream;

	CUDA(cudaMemset(data, 0, n * 4));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaDeviceSynchronize());
	count_up<<<256, 256, 0, stream>>>(data, n, 300);
	CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
	OK(stayput_pause("busy"));
	OK(stayput_resume("busy"));
	CUDA(cudaMemcpy(back.data(), data, n * 4, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < n; i++)
		CHECK(back[i] == 300);
	CUDA(cudaFree(data));
}

static void free_waits_for_a_kernel()
{
	const size_t n = 64 << 20;
	unsigned *data = (unsigned *)region_malloc("busy", STAYPUT_DISCARD, n * 4);
	cudaStream_t stream;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	count_up<<<256, 256, 0, stream>>>(data, n, 300);
	CUDA(cudaFree(data));
	CUDA(cudaDeviceSynchronize());
}

static void host_contents_are_exact(size_t size, int count)
{
	std::vector<void *> p(count);

	for (int i = 0; i < count; i++) {
		p[i] = region_malloc("exact", STAYPUT_HOST, size);
		fill<<<1024, 256>>>((unsigned *)p[i], size / 4, i);
	}
	for (int cycle = 0; cycle < 3; cycle++) {
		OK(stayput_pause("exact"));
		OK(stayput_resume("exact"));
		for (int i = 0; i < count; i++)
			CHECK(wrong_words(p[i], size, i) == 0);
	}
	for (void *q : p)
		CUDA(cudaFree(q));
}

static void large_and_small_contents_are_exact()
{
	host_contents_are_exact((size_t)300 << 20, 3);
	host_contents_are_exact(1 << 20, 200);
	host_contents_are_exact(4096, 500);
}

static void zero_clears_every_byte()
{
	const size_t size = (size_t)512 << 20;
	unsigned char *p = (unsigned char *)region_malloc("state", STAYPUT_ZERO, size);
	std::vector<unsigned char> back(size);

	CUDA(cudaMemset(p, 0xff, size));
	OK(stayput_pause("state"));
	OK(stayput_resume("state"));
	CUDA(cudaMemcpy(back.data(), p, size, cudaMemcpyDeviceToHost));
	for (unsigned char c : back)
		CHECK(c == 0);
}

static void capture_with_malloc_and_free_inside_replays(cudaStreamCaptureMode mode)
{
	const size_t n = 16 << 20;
	unsigned *out = (unsigned *)region_malloc("out", STAYPUT_HOST, n * 4), *temp, *gone;
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	gone = (unsigned *)region_malloc("gone", STAYPUT_DISCARD, 64 << 20);
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(stream, mode));
	temp = (unsigned *)region_malloc("graph", STAYPUT_DISCARD, n * 4);
	fill<<<1024, 256, 0, stream>>>(temp, n, 5);
	CUDA(cudaMemcpyAsync(out, temp, n * 4, cudaMemcpyDeviceToDevice, stream));
	CUDA(cudaFree(gone));
	CHECK(stayput_pause("out") == STAYPUT_ERR_BUSY);
	CUDA(cudaStreamEndCapture(stream, &graph));
	CUDA(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 3; i++) {
		CUDA(cudaMemset(out, 0, n * 4));
		CUDA(cudaDeviceSynchronize());
		CUDA(cudaGraphLaunch(exec, stream));
		CUDA(cudaStreamSynchronize(stream));
		CHECK(wrong_words(out, n * 4, 5) == 0);
		OK(stayput_pause(NULL));
		OK(stayput_resume(NULL));
		CHECK(wrong_words(out, n * 4, 5) == 0);
	}
	struct stayput_region_info info;
	info.struct_size = sizeof info;
	OK(stayput_region_info("gone", &info));
	CHECK(info.bytes_active == 0 && info.bytes_device == 0);
}

static void capture_replays_in_every_mode()
{
	capture_with_malloc_and_free_inside_replays(cudaStreamCaptureModeGlobal);
	capture_with_malloc_and_free_inside_replays(cudaStreamCaptureModeThreadLocal);
	capture_with_malloc_and_free_inside_replays(cudaStreamCaptureModeRelaxed);
}

static void paused_memory_is_free_when_the_call_returns()
{
	const size_t size = (size_t)40 << 30;
	size_t before, active, paused, resumed, total;
	struct stayput_report report;
	void *p;

	CUDA(cudaMemGetInfo(&before, &total));
	p = region_malloc("big", STAYPUT_DISCARD, size);
	CUDA(cudaMemGetInfo(&active, &total));
	report.struct_size = sizeof report;
	OK(stayput_pause_ex(NULL, 0, NULL, &report));
	CUDA(cudaMemGetInfo(&paused, &total));
	OK(stayput_resume("big"));
	CUDA(cudaMemGetInfo(&resumed, &total));
	if (before - active != size || paused != before || resumed != active)
		printf("free before %zu, active %zu, paused %zu, resumed %zu\n", before,
			active, paused, resumed);
	CHECK(before - active == size);
	CHECK(paused == before);
	CHECK(resumed == active);
	CHECK(report.total.bytes_released == size);
	CHECK(report.total.bytes_released_driver == size);
	CUDA(cudaFree(p));
}

static void out_of_memory_is_an_answer()
{
	size_t free_bytes, total;
	void *p = region_malloc("kv", STAYPUT_DISCARD, (size_t)20 << 30), *hog, *more = (void *)1;

	OK(stayput_pause("kv"));
	CUDA(cudaMemGetInfo(&free_bytes, &total));
	CUDA(cudaMalloc(&hog, free_bytes - ((size_t)10 << 30)));
	CHECK(stayput_resume("kv") == STAYPUT_ERR_DEVICE_MEMORY);
	printf("  %s\n", stayput_last_error());
	OK(stayput_region_push("kv", STAYPUT_DISCARD));
	CHECK(cudaMalloc(&more, (size_t)12 << 30) == cudaErrorMemoryAllocation);
	CHECK(more == (void *)1);
	CHECK(cudaMalloc(&more, (size_t)1 << 63) == cudaErrorMemoryAllocation);
	CHECK(cudaGetLastError() == cudaSuccess);
	OK(stayput_region_pop());
	CUDA(cudaFree(hog));
	OK(stayput_resume("kv"));
	CUDA(cudaMemset(p, 1, (size_t)20 << 30));
	CUDA(cudaDeviceSynchronize());
}

static void wrong_pointers_get_the_native_error()
{
	char *p = (char *)region_malloc("ptr", STAYPUT_HOST, 8 << 20), local;
	char *small = (char *)region_malloc("ptr", STAYPUT_HOST, 4096);

	CHECK(cudaFree(p + 512) == cudaErrorInvalidValue);
	CHECK(cudaFree(small + 512) == cudaErrorInvalidValue);
	CHECK(cudaFree(&local) == cudaErrorInvalidValue);
	CUDA(cudaFree(p));
	CHECK(cudaFree(p) == cudaErrorInvalidValue);
	CUDA(cudaMemset(small, 1, 4096));
	CUDA(cudaFree(small));
	cudaGetLastError();
	CUDA(cudaDeviceSynchronize());
}

static void small_allocations_share_memory()
{
	struct stayput_region_info info;
	size_t before, after, total;

	CUDA(cudaFree(0));
	CUDA(cudaMemGetInfo(&before, &total));
	for (int i = 0; i < 256; i++)
		region_malloc("small", STAYPUT_HOST, 4096);
	CUDA(cudaMemGetInfo(&after, &total));
	info.struct_size = sizeof info;
	OK(stayput_region_info("small", &info));
	printf("  256 x 4 KiB occupy %zu KiB\n", (before - after) >> 10);
	CHECK(before - after <= 4 << 20);
	CHECK(info.bytes_device == before - after);
}

static void reset_takes_everything()
{
	region_malloc("reset", STAYPUT_HOST, 64 << 20);
	region_malloc("reset", STAYPUT_HOST, 4096);
	OK(stayput_pause("reset"));
	region_malloc("reset", STAYPUT_HOST, 64 << 20);
	CUDA(cudaDeviceReset());
	struct stayput_region_info info;
	info.struct_size = sizeof info;
	OK(stayput_region_info("reset", &info));
	CHECK(info.bytes_active == 0 && info.bytes_paused == 0 && info.mappings == 0);
	region_malloc_is_the_first_call();
}

static void leaking_program_ends_with_0()
{
	region_malloc("leak", STAYPUT_HOST, 64 << 20);
	region_malloc("leak", STAYPUT_HOST, 4096);
	OK(stayput_pause("leak"));
}

static const struct {
	const char *name;
	void (*run)();
} claims[] = {
#define CLAIM(fn) {#fn, fn}
	CLAIM(region_malloc_is_the_first_call),
	CLAIM(malloc_of_nothing_answers_as_the_runtime_does),
	CLAIM(pause_waits_for_a_kernel_on_a_non_blocking_stream),
	CLAIM(free_waits_for_a_kernel),
	CLAIM(large_and_small_contents_are_exact),
	CLAIM(zero_clears_every_byte),
	CLAIM(capture_replays_in_every_mode),
	CLAIM(paused_memory_is_free_when_the_call_returns),
	CLAIM(out_of_memory_is_an_answer),
	CLAIM(wrong_pointers_get_the_native_error),
	CLAIM(small_allocations_share_memory),
	CLAIM(reset_takes_everything),
	CLAIM(leaking_program_ends_with_0),
};

int main(int argc, char **argv)
{
	int failed = 0, passed = 0;

	for (auto &claim : claims) {
		int status;
		pid_t pid;

		if (argc > 1 && strcmp(argv[1], claim.name) != 0)
			continue;
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			alarm(120);
			claim.run();
			fflush(stdout);
			exit(0);
		}
		waitpid(pid, &status, 0);
		printf("%s %s\n", status ? "FAIL" : "ok", claim.name);
		(status ? failed : passed)++;
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed != 0;
}
