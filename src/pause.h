/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pausing what an operation has claimed. Everything that can run out is secured before
 * anything is unmapped; what is unmapped has been copied before.
 */
#ifndef PAUSE_H
#define PAUSE_H

struct operation;

/* Collects the active blocks and releases them. STAYPUT_OK or a STAYPUT_ERR_* with the
 * sentence set; each block's `mapped` says what became of it. */
int pause_run(struct operation *op);

#endif
