/* SPDX-License-Identifier: Apache-2.0 */
/* What the malloc replacement of that name exports. */
#ifndef MALLOCS_H
#define MALLOCS_H

/* From here each malloc() looks this name up in this handle, too. */
void mallocs_look_up(void *handle, const char *name);

/* What the last one found; and how often malloc() was called inside of malloc(). */
void *mallocs_found(void);
unsigned mallocs_nested(void);

#endif
