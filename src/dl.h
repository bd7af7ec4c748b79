/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C library's dlsym(), past our own override of it and past anybody else's: what it
 * finds is never one of the hooks that a lookup is answered with.
 *
 * Any thread, at any time, before constructors and inside malloc() too: no lock of ours,
 * no allocation of ours.
 */
#ifndef DL_H
#define DL_H

/* As dlsym(). RTLD_NEXT counts from this library. NULL too when there is no dlsym(). */
void *dl_symbol(void *handle, const char *name);

/* dlsym() itself, or NULL; and where it is kept once it has been found. */
void *dl_find(void);
extern void *dl_found;

#endif
