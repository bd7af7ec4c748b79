/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some programs close every descriptor there is, and open their own under the numbers. So
 * before one that has been open for a while is used, its file is compared. Takes no lock.
 */
#ifndef DESCRIPTOR_H
#define DESCRIPTOR_H

#include <stdbool.h>
#include <sys/types.h>

/* Says whose a descriptor is: another number where it is another file by now, 0 for none.
 * Of eventfd() all have one number: a socket's is its own. */
ino_t descriptor_inode(int fd);

bool descriptor_is(int fd, ino_t inode);

/* Closes it if it is that file still. */
void descriptor_close(int fd, ino_t inode);

#endif
