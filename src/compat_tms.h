/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that torch_memory_saver's Python package expects of its library, with the
 * meaning they have there and our own way to carry them out. In libstayput-tms.so only.
 *
 * What is set here is the calling thread's own, unless said otherwise, and counts where the
 * thread has no push of stayput_region_push() open. Any string is a tag: one that is none
 * of ours stands for a region whose tag is made from it. Nothing here exits; what cannot be
 * done goes to the log. Bools are 0 and 1, strings stay valid, errno is kept.
 */
#ifndef COMPAT_TMS_H
#define COMPAT_TMS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Whether allocations belong to the current tag. At first as TMS_INIT_ENABLE says; where
 * that is true, `false` means native memory, else what STAYPUT_DEFAULT says. */
void tms_set_interesting_region(bool interesting);
bool tms_get_interesting_region(void);

/* The same in versions up to 0.0.8. */
void tms_region_enter(void);
void tms_region_leave(void);

/* "default" at first. NULL changes nothing. */
void tms_set_current_tag(const char *tag);
const char *tms_get_current_tag(void);

/* What becomes of the contents: kept in host memory when one of the two is true, for there
 * are no files to keep them in yet, which is said once; else discarded. */
void tms_set_enable_cpu_backup(bool enable);
bool tms_get_enable_cpu_backup(void);
void tms_set_enable_disk_backup(bool enable);
bool tms_get_enable_disk_backup(void);

/* "pinned" or "mmap"; "" and NULL are the default, others change nothing. Only remembered:
 * backups are mapped and pinned, and given back, in either case. */
void tms_set_cpu_backup_backend(const char *backend);
const char *tms_get_cpu_backup_backend(void);

/* Of the process; only remembered. */
void tms_set_disk_backup_dir(const char *dir);

/* Of the process: whether tms_resume() leaves backups in host memory. */
void tms_set_retain_cpu_backup(bool retain);
bool tms_get_retain_cpu_backup(void);

/* Of the process, for every device: how much of it region allocations leave free. */
void set_memory_margin_bytes(uint64_t bytes);

/* Every region when `tag` is NULL or "". 0, also when there is nothing to do; else
 * STAYPUT_ERR_*, after the sentence has gone to the log: the package does not look. */
int tms_pause(const char *tag);
int tms_resume(const char *tag);

/* The contents in host memory of [gpu_ptr, gpu_ptr + size) in one allocation: while it is
 * paused, and while retained also afterwards, as they were at the pause. Else NULL. */
uint8_t *tms_get_cpu_backup_pointer(const uint8_t *gpu_ptr, uint64_t size);

/* The devices with memory in the regions that tms_pause(tag) means: their number, and the
 * first `capacity` of them in rising order. */
uint32_t tms_affected_devices(const char *tag, int *devices, uint32_t capacity);

/* As stayput_torch_malloc() and stayput_torch_free(). */
void *tms_torch_malloc(ssize_t size, int device, void *stream);
void tms_torch_free(void *ptr, ssize_t size, int device, void *stream);

#endif
