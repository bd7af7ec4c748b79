/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of each device's memory is in use, by this process and by those that share the
 * file FAKECUDA_SHARE with it. Without that variable the ledger is this process's own.
 * Linked into the fake driver and into the fake NVML.
 *
 * Memory that was exported is counted once, however many processes hold it, under an id
 * that is the same in all of them. Processes that died are swept out at the next look.
 */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { LEDGER_DEVICES = 8, LEDGER_PROCESSES = 64 };

/* Opens the ledger and enters this process. The budget is written by the first process;
 * a later one finds it there. False: no ledger, reported on standard error. */
bool ledger_open(int devices, size_t memory);

/* The ledger of others, only to read. */
bool ledger_look(void);

/* This process is ending: what it held is free. */
void ledger_leave(void);

/* Takes `size` bytes of a device's memory. False: not that much is left. */
bool ledger_charge(int device, size_t size);
void ledger_discharge(int device, size_t size);

/* Turns bytes that were charged into an object that several processes may hold. */
void ledger_share(int device, size_t size, uint64_t id);
/* One more process, this one, holds the object. */
void ledger_hold(int device, size_t size, uint64_t id);
void ledger_drop(uint64_t id);

int ledger_device_count(void);
size_t ledger_total(int device);
void ledger_set_total(int device, size_t bytes);
size_t ledger_used(int device);

/* Processes with memory on the device, and how much; returns how many were written. */
size_t ledger_processes(int device, pid_t *pids, size_t *bytes, size_t max);

#endif
