/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream captures in progress. Synchronising a context inside one fails and kills it,
 * whichever thread asks and in every mode, so whoever wants to synchronise holds captures
 * off, and puts off what it wanted when one is under way. Captures are known because
 * their begin and end are overridden; asking the driver would need every stream.
 */
#ifndef CAPTURE_H
#define CAPTURE_H

#include <stdbool.h>

#include <cuda.h>

/* Before the real begin in `context`, NULL when that is not known; waits for holds to end. When that fails, capture_ended()
 * follows. */
void capture_beginning(CUstream stream, CUcontext context);

/* After the real end, or after the stream was destroyed. True when no capture is in
 * progress any more: what was put off can be done. */
bool capture_ended(CUstream stream);

/* Keeps captures from beginning until capture_unhold(). False, and no hold, when one is
 * in progress. */
bool capture_hold_locked(void);
void capture_hold_again_locked(void); /* while somebody holds them off */
void capture_unhold_locked(void);

/* The captures in a context that is being destroyed or reset end with it, without a word. */
void capture_forget_context_locked(CUcontext context);

/* In a forked child: nothing that the parent does concerns it. Frees no memory. */
void capture_forget_all_locked(void);

#endif
