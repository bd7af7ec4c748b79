/* SPDX-License-Identifier: Apache-2.0 */
#include "digest_reference.h"

#include <string.h>

#include "digest_constants.h"

#define DIGEST_HIGH(a, b) ((uint64_t)(((unsigned __int128)(a) * (b)) >> 64))

struct digest digest_reference(const void *piece)
{
	struct digest sum = {0, 0};

	for (uint64_t t = 0; t < DIGEST_THREADS; t++) {
		const char *word = (const char *)piece + 16 * t;
		uint64_t a = DIGEST_SEED_A + t * DIGEST_STEP_A;
		uint64_t b = DIGEST_SEED_B + t * DIGEST_STEP_B;
		uint64_t x, y;

		for (int i = 0; i < DIGEST_WORDS; i++, word += 16 * DIGEST_THREADS) {
			memcpy(&x, word, 8);
			memcpy(&y, word + 8, 8);
			DIGEST_FOLD(a, b, x, y);
		}
		DIGEST_MIX(a);
		DIGEST_MIX(b);
		sum.a += a;
		sum.b += b;
	}
	return sum;
}
