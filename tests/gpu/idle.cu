/* SPDX-License-Identifier: Apache-2.0 */
/* only_if_idle on a GPU: an idle device is found idle, one kernel in flight is seen at once
 * and not waited for, and so is a stream of short kernels, mostly. Prints how long answers
 * took and how many were BUSY. */
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "check.h"

static const int LOOKS = 200;

__global__ void spin(long long nanoseconds)
{
	long long start, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - start < nanoseconds);
}

static double now()
{
	return std::chrono::duration<double>(
		std::chrono::steady_clock::now().time_since_epoch())
		.count();
}

static int checked_pause()
{
	stayput_options options = {};

	options.struct_size = sizeof options;
	options.only_if_idle = 1;
	return stayput_pause_ex(nullptr, 0, &options, nullptr);
}

/* How many of LOOKS were BUSY, and the longest and the mean time that an answer took. */
static int look(const char *what)
{
	double longest = 0, total = 0;
	int busy = 0;

	for (int i = 0; i < LOOKS; i++) {
		double start = now(), took;
		int answer = checked_pause();

		took = now() - start;
		CHECK(answer == STAYPUT_OK || answer == STAYPUT_ERR_BUSY);
		busy += answer == STAYPUT_ERR_BUSY;
		longest = took > longest ? took : longest;
		total += took;
		OK(stayput_resume(nullptr));
	}
	printf("%-28s %3d of %d BUSY, mean %.2f ms, longest %.2f ms\n", what, busy, LOOKS,
		total / LOOKS * 1e3, longest * 1e3);
	return busy;
}

static void launch_for_ever(
	cudaStream_t stream, long long nanoseconds, const std::atomic<bool> *stop)
{
	while (!*stop) {
		for (int i = 0; i < 4; i++)
			spin<<<1, 1, 0, stream>>>(nanoseconds);
		CUDA(cudaStreamSynchronize(stream));
	}
}

static void look_beside(const char *what, cudaStream_t stream, long long nanoseconds)
{
	std::atomic<bool> stop{false};
	std::thread launcher(launch_for_ever, stream, nanoseconds, &stop);

	look(what);
	stop = true;
	launcher.join();
	CUDA(cudaDeviceSynchronize());
}

int main()
{
	cudaStream_t stream, captured;
	cudaGraph_t graph;
	double start;
	void *memory;

	OK(stayput_region_push("kv_cache", STAYPUT_DISCARD));
	CUDA(cudaMalloc(&memory, 64 << 20));
	OK(stayput_region_pop());
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
	spin<<<1, 1, 0, stream>>>(1000);
	CUDA(cudaDeviceSynchronize());
	CHECK(look("idle") == 0);

	spin<<<1, 1, 0, stream>>>(1000000000);
	start = now();
	CHECK(checked_pause() == STAYPUT_ERR_BUSY);
	printf("%-28s BUSY after %.2f ms\n", "one kernel of 1 s", (now() - start) * 1e3);
	CHECK(now() - start < 0.2);
	start = now();
	CUDA(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
	printf("%-28s after %.2f ms\n", "then a capture began", (now() - start) * 1e3);
	CUDA(cudaStreamEndCapture(captured, &graph));
	CUDA(cudaDeviceSynchronize());
	CHECK(look("idle again") == 0);

	look_beside("kernels of 10 ms", stream, 10000000);
	look_beside("kernels of 1 ms", stream, 1000000);
	look_beside("kernels of 0.1 ms", stream, 100000);
	CHECK(look("idle at the end") == 0);
	printf("ok\n");
	return 0;
}
