/* SPDX-License-Identifier: Apache-2.0 */
/* A terminal taken over for a while: its second screen, no echo, keys as they come. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/* Takes over standard input and output. False when one of them is no terminal. Signals that
 * would end the program set terminal_stopped() instead. */
bool terminal_take(void);
/* As it was before. Nothing without terminal_take(). */
void terminal_give_back(void);

bool terminal_stopped(void);

/* Columns and rows; 80 and 24 where the terminal does not say. */
void terminal_size(size_t *columns, size_t *rows);

/* Waits until `seconds` have passed, the window has another size, or a key: that one is
 * returned, else 0. */
int terminal_wait(double seconds);

#endif
