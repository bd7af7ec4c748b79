/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel in src/digest.cu computes, in C: for the tests and the fake driver. */
#ifndef DIGEST_REFERENCE_H
#define DIGEST_REFERENCE_H

#include "digest.h"

/* The digest of the DIGEST_PIECE bytes at `piece`. */
struct digest digest_reference(const void *piece);

#endif
