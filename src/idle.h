/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a device has work in flight. Only cuCtxSynchronize knows of every stream, and it
 * waits: so a thread of its own asks it, and is left behind when it does not come back.
 * It comes back when that work ends, and keeps captures off until then.
 */
#ifndef IDLE_H
#define IDLE_H

struct device;

/* STAYPUT_OK, or with the sentence set STAYPUT_ERR_BUSY or STAYPUT_ERR_DRIVER. Takes a few
 * milliseconds at most, whatever runs. Captures are held off by the caller. */
int idle_check(struct device *dev);

#endif
