/* SPDX-License-Identifier: Apache-2.0 */
/* Where the library lies, and how it gets into LD_PRELOAD. */
#ifndef PRELOAD_H
#define PRELOAD_H

#include <stdbool.h>
#include <stddef.h>

/* The path of libstayput.so or, when `deep`, libstayput-deep.so: beside this program, as
 * in a build folder, or in ../lib from there, as installed. Says what is wrong and returns
 * false when there is none, or one that LD_PRELOAD cannot hold. */
bool preload_find(bool deep, char *path, size_t size);

/*
 * LD_PRELOAD's value `old` (NULL or "": none) with `path` in it, to be freed; NULL without
 * memory. It comes last: what was there keeps its place before the program (runtimes of
 * sanitizers insist on being first) and sees the calls that it would see without us. Where
 * a library of ours is in the list already, by whatever path, `path` takes the first one's
 * place and further ones go: two of them would both claim each allocation. But
 * libstayput-tms.so, which is libstayput.so and more, stays and is enough.
 */
char *preload_list(const char *old, const char *path);

/* The list has libstayput-tms.so. */
bool preload_has_tms(const char *list);

#endif
