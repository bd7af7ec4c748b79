/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose code made a call, by its return address, and what the environment says of that
 * file. Lock-free; allocates once for a file, and at most for so many of them.
 *
 * What a file is called is asked anew in each call, which is cheap since glibc 2.35: a
 * library at the place of another that was unloaded is known by its own name. With an older
 * C library that costs a walk through all that is loaded.
 */
#ifndef CALLER_H
#define CALLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct caller {
	bool excluded;  /* by STAYPUT_EXCLUDE */
	uint64_t named; /* a bit for each STAYPUT_RULES entry whose module= it has */
};

/* The path of the file that the code is in, "" for the program itself; NULL when it is in
 * none. The text is the loader's, and stays while the caller is not unloaded. */
const char *caller_path(const void *address);

/* Code that is in no file has no name: nothing excludes or names it. */
struct caller caller_find(const void *address);

/* The name of the file that the code at `address` is in, with the folder that the file is
 * in and no other, or "". It is what parts of file names are looked for in. */
void caller_name(const void *address, char *buf, size_t size);

#endif
