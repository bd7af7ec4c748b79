/* SPDX-License-Identifier: Apache-2.0 */
/* Resuming what an operation has claimed: all of it, or nothing. */
#ifndef RESUME_H
#define RESUME_H

struct operation;

/* Collects the paused blocks and brings them back; waits for device memory until
 * `deadline` on clock_now(). STAYPUT_OK or a STAYPUT_ERR_* with the sentence set. */
int resume_run(struct operation *op, double deadline);

#endif
