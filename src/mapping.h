/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings that a program has made itself, of memory that is adopted (adopt.h). Each is a
 * block that no span has. They are ordered by address, under the one lock.
 *
 * A call that changes some has the turn, from before the driver is asked until the records
 * say what became of it. It begins when nobody pauses or resumes what it is about, and
 * none of these begins meanwhile. Who has the turn may read the mappings without the lock.
 */
#ifndef MAPPING_H
#define MAPPING_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>

#include "block.h"
#include "device.h"
#include "table.h"
#include "token.h"

struct mapping {
	struct block block;
	struct allocation allocation;
	struct token *token;
	struct mapping *next;               /* of the token */
	CUmemAccessDesc access[DEVICE_MAX]; /* as the program has set it */
	size_t access_count;
};

/* Mappings [first, end) lie in a range of addresses, all or in part. */
struct run {
	size_t first, end;
};

/* False: there are none. One load. */
bool mapping_any(void);

struct mapping *mapping_at(size_t i);

/* What is mapped at `ptr`, or NULL. */
struct mapping *mapping_find_locked(CUdeviceptr ptr);

/* Room for one more. False without memory. */
bool mapping_make_room_locked(void);
void mapping_insert_locked(struct mapping *m);
void mapping_remove_locked(const struct mapping *m);

bool mapping_is_paused(const struct mapping *m);

/* Somebody pauses or resumes the token's memory. `t` may be NULL. */
bool mapping_is_moving(const struct token *t);

/* What lies in the range, once nobody pauses or resumes there; in a callback of an
 * operation at once. */
struct run mapping_settle_locked(CUdeviceptr ptr, size_t size);

/* Takes the turn, when nobody pauses or resumes what is mapped in the range, or the memory
 * of the token of that name: *token is NULL when the program has no such token. False in a
 * callback of the operation that does, which waits for it. */
bool mapping_take_turn_locked(CUmemGenericAllocationHandle name, CUdeviceptr ptr,
	size_t size, struct run *run, struct token **token);
void mapping_give_turn_locked(void);

/* The same for a range alone. */
bool mapping_take_range(CUdeviceptr ptr, size_t size, struct run *run);
void mapping_give_turn(void);

/* Waits until nobody has the turn, so that blocks may change state before the lock is
 * dropped. */
void mapping_wait_turn_locked(void);

/* What the program has set for a location; and the record of what it sets. */
int mapping_flags(const struct mapping *m, const CUmemLocation *location);
void mapping_note_access_locked(struct mapping *m, const CUmemAccessDesc *access);

/* Why a pause cannot release the block, or NULL. */
const char *mapping_held_locked(const struct block *block);

/* Access for a block that is being resumed: its own device's, and what the program has set
 * for others. */
CUresult mapping_allow(const struct block *block, enum access who);

/* The program does not let the block's own device read and write: that ends here, after
 * contents are in place. */
bool mapping_is_restricted(const struct block *block);
void mapping_restrict(const struct block *block);

#endif
