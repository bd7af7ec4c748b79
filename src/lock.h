/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one lock. It guards:
 *
 *   the table of allocations, every allocation and every block's `state` and links
 *   regions, their spaces, free addresses and free segments
 *   each device's list of contexts
 *   records of memory that others make by cuMemCreate()
 *   operations under way, and what the last one has come to
 *   captures in progress, holds against them, and frees put off until they end
 *   leases of memory to other processes, what is open of theirs, and the connections
 *
 * It is held for table work only: no CUDA call, dl*, log line, callback or wait for a
 * device happens under it. Whoever sets a passing state (PAUSING, RESUMING, FREEING) owns
 * the block until it publishes the next one; everybody else waits with lock_wait().
 * Decide under the lock, work outside, publish under it.
 *
 * Functions whose names end in _locked want it held; all others want it not held.
 */
#ifndef LOCK_H
#define LOCK_H

void lock_take(void);
void lock_drop(void);

/* Lets go of the lock until somebody calls lock_notify(). May also return for nothing:
 * the caller looks again. */
void lock_wait(void);

/* After every change of what lock_wait() may wait for, with the lock held. */
void lock_notify(void);

/* In a forked child, which holds the lock: lets go of it, with nobody waiting. */
void lock_restart(void);

/* Traps when this thread holds the lock, in builds with STAYPUT_CHECKS. */
void lock_check_free(void);

#endif
