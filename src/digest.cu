/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel behind digest_ptx.h, which src/make_digest_ptx.sh makes from this file. The
 * build does not need nvcc. digest_reference() in digest_reference.c gives the same values.
 *
 * One block a piece. Each thread folds every 256th 16-byte word into two 64-bit lanes that
 * start from its own number, so that both place and order of every bit count; the lanes of
 * all threads are mixed and added up.
 */
#include <cstdint>

#include "digest_constants.h"

#define DIGEST_HIGH(a, b) __umul64hi(a, b)

extern "C" __global__ void __launch_bounds__(DIGEST_THREADS)
	stayput_digest(const uint64_t *pieces, ulonglong2 *digests)
{
	__shared__ uint64_t sum_a[DIGEST_THREADS / 32], sum_b[DIGEST_THREADS / 32];
	const ulonglong2 *words = (const ulonglong2 *)pieces[blockIdx.x] + threadIdx.x;
	uint64_t a = DIGEST_SEED_A + threadIdx.x * DIGEST_STEP_A;
	uint64_t b = DIGEST_SEED_B + threadIdx.x * DIGEST_STEP_B;

#pragma unroll 8
	for (int i = 0; i < DIGEST_WORDS; i++) {
		ulonglong2 word = __ldcs(words + (size_t)i * DIGEST_THREADS);

		DIGEST_FOLD(a, b, word.x, word.y);
	}
	DIGEST_MIX(a);
	DIGEST_MIX(b);
	for (int lane = 16; lane > 0; lane /= 2) {
		a += __shfl_down_sync(0xffffffffu, a, lane);
		b += __shfl_down_sync(0xffffffffu, b, lane);
	}
	if (threadIdx.x % 32 == 0) {
		sum_a[threadIdx.x / 32] = a;
		sum_b[threadIdx.x / 32] = b;
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int i = 1; i < DIGEST_THREADS / 32; i++) {
			a += sum_a[i];
			b += sum_b[i];
		}
		digests[blockIdx.x] = make_ulonglong2(a, b);
	}
}
