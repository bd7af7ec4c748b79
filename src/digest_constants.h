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

/* DIGEST_HIGH(a, b): the upper 64 bits of the product; each side brings its own. Both
 * halves are needed: in the lower one alone, a change of the topmost bit stays one bit,
 * which a change of the next word can undo. */
#define DIGEST_PRODUCT(a, b) (((a) * (b)) ^ DIGEST_HIGH(a, b))

/* What changes in one lane changes the other, too, before the next word comes. */
#define DIGEST_FOLD(a, b, x, y)                                           \
	do {                                                              \
		(a) = DIGEST_PRODUCT((a) ^ (x), DIGEST_MULTIPLY_A);       \
		(b) = DIGEST_PRODUCT((b) ^ (y) ^ (a), DIGEST_MULTIPLY_B); \
		(a) += (b);                                               \
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
