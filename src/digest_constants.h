/* SPDX-License-Identifier: Apache-2.0 */
/* What kernel and reference of the digest have in common; a change makes both anew. */
#ifndef DIGEST_CONSTANTS_H
#define DIGEST_CONSTANTS_H

#define DIGEST_PIECE (2u << 20) /* bytes that one digest is of */
#define DIGEST_THREADS 256
#define DIGEST_WORDS \
	((int)(DIGEST_PIECE / 16 / DIGEST_THREADS)) /* of 16 bytes, each thread */

#define DIGEST_SEED_A UINT64_C(0x243f6a8885a308d3)
#define DIGEST_SEED_B UINT64_C(0x13198a2e03707344)
#define DIGEST_STEP_A UINT64_C(0x9e3779b97f4a7c15)
#define DIGEST_STEP_B UINT64_C(0xd1b54a32d192ed03)
#define DIGEST_MULTIPLY_A UINT64_C(0xbf58476d1ce4e5b9)
#define DIGEST_MULTIPLY_B UINT64_C(0x94d049bb133111eb)

/* For given x and y a bijection of (a, b), so that no difference is ever lost inside a
 * thread; the high halves flow into the other lane's low bits. */
#define DIGEST_FOLD(a, b, x, y)                                      \
	do {                                                         \
		(a) = ((a) ^ (x)) * DIGEST_MULTIPLY_A;               \
		(b) = ((b) ^ (y) ^ ((a) >> 32)) * DIGEST_MULTIPLY_B; \
		(a) ^= (b) >> 32;                                    \
	} while (0)

#define DIGEST_MIX(h)                     \
	do {                              \
		(h) ^= (h) >> 33;         \
		(h) *= DIGEST_MULTIPLY_A; \
		(h) ^= (h) >> 29;         \
		(h) *= DIGEST_MULTIPLY_B; \
		(h) ^= (h) >> 32;         \
	} while (0)

#endif
