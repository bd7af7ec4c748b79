/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server that the `stayput` program talks to, only where STAYPUT_CONTROL asks for it:
 * one thread and a Unix socket, which live as long as the process and are in nobody's way
 * when it exits. tests/test_control.c and the manual page say what goes over the socket.
 *
 * The thread calls no CUDA function. Pauses and resumes have threads of their own
 * (control_job.h).
 */
#ifndef CONTROL_H
#define CONTROL_H

/* At every allocation that was meant for a region, of which the first one starts the
 * server: one load after that. Keeps errno. Without a socket or thread the log says why, and that is all. */
void control_start(void);

/* Around fork(), after the lock has been taken: the child has no server, and closes what
 * it inherited of the parent's. */
void control_before_fork(void);
void control_after_fork(void);
void control_in_child(void);

#endif
