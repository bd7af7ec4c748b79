/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of physical memory. What a program gets for memory that is adopted (adopt.h) is
 * a token of ours: a pause releases the driver's handle, and a resume has another one.
 * Table work only.
 */
#ifndef TOKEN_H
#define TOKEN_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

#include "region.h"

struct device;
struct mapping;

struct token {
	CUmemGenericAllocationHandle name;   /* the program's */
	CUmemGenericAllocationHandle handle; /* the driver's; 0: a pause released it */
	size_t size;
	CUmemAllocationProp prop;
	struct choice choice;
	struct device *device;
	CUcontext context;        /* where it was made */
	size_t refs;              /* the program's: creates and retains */
	size_t shares;            /* exports and the like, which keep the memory */
	struct mapping *mappings; /* while there are some, they have the handle */
};

/* The driver's handles are addresses or small numbers. */
static inline bool token_is(CUmemGenericAllocationHandle handle)
{
	return handle >> 48 == 0x5350;
}

/* Gives the token a name and one reference. False without memory. */
bool token_add_locked(struct token *token);

/* Its name is nobody's any more. */
void token_remove_locked(struct token *token);

/* NULL when the program has no reference by that name. */
struct token *token_find_locked(CUmemGenericAllocationHandle name);

/* Memory of the space that is mapped nowhere. */
size_t token_idle_bytes_locked(const struct space *space);

#endif
