/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions: check arguments, call one function below. */
#include "stayput.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "backup.h"
#include "block.h"
#include "change.h"
#include "config.h"
#include "device.h"
#include "error.h"
#include "fork.h"
#include "lifecycle.h"
#include "lock.h"
#include "region.h"
#include "silence.h"
#include "snapshot.h"
#include "table.h"

static int check_tag(const char *tag)
{
	if (config_valid_tag(tag))
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_INVALID,
		"\"%.80s\" is not a tag: 1 to 63 bytes of [A-Za-z0-9_.:-] are allowed",
		tag ? tag : "(null)");
}

static int check_tags(const char *const *tags, size_t count)
{
	int err = STAYPUT_OK;

	if ((count > 0) != (tags != NULL))
		return error_set(STAYPUT_ERR_INVALID,
			"tags is %sNULL and count is %zu; NULL and 0 mean every region",
			tags ? "not " : "", count);
	for (size_t i = 0; i < count && err == STAYPUT_OK; i++)
		err = check_tag(tags[i]);
	return err;
}

static int check_size(const char *name, size_t got, size_t want)
{
	if (got == want)
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_INVALID,
		"struct_size of %s is %zu, and %zu in this library", name, got, want);
}

/* Of a struct that has grown: the sizes that it has had are good too. */
static int check_grown(const char *name, size_t got, size_t least, size_t now)
{
	if (got >= least && got <= now && got % sizeof(uint64_t) == 0)
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_INVALID,
		"struct_size of %s is %zu, and %zu to %zu in this library", name, got,
		least, now);
}

static int check_report(const struct stayput_report *report)
{
	return check_grown("stayput_report", report->struct_size,
		offsetof(struct stayput_report, bytes_stream_ordered), sizeof *report);
}

static int check_region_info(const struct stayput_region_info *info)
{
	return check_grown("stayput_region_info", info->struct_size,
		offsetof(struct stayput_region_info, bytes_stream_ordered), sizeof *info);
}

/* Writes as much as the caller has room for, which it said in the first member. */
static void copy_out(void *to, const void *from)
{
	size_t size;

	memcpy(&size, to, sizeof size);
	memcpy(to, from, size);
	memcpy(to, &size, sizeof size);
}

static int check_options(const struct stayput_options *options)
{
	int err = check_size("stayput_options", options->struct_size, sizeof *options);

	if (err != STAYPUT_OK)
		return err;
	if (options->policy < STAYPUT_POLICY_DEFAULT || options->policy > STAYPUT_ZERO)
		return error_set(STAYPUT_ERR_INVALID,
			"policy %d cannot be asked of a pause; STAYPUT_HOST (1), "
			"STAYPUT_DISCARD (2) and STAYPUT_ZERO (3) can",
			options->policy);
	return STAYPUT_OK;
}

static int check_fork(void)
{
	if (!fork_is_child())
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_UNSUPPORTED,
		"CUDA was in use before this process was forked, so it cannot use it");
}

STAYPUT_API int stayput_region_push(const char *tag, int policy)
{
	int saved = errno;
	int err = check_tag(tag);

	if (err == STAYPUT_OK)
		err = region_push(tag, policy);
	errno = saved;
	return err;
}

STAYPUT_API int stayput_native_push(void)
{
	int saved = errno;
	int err = region_push_native();

	errno = saved;
	return err;
}

STAYPUT_API int stayput_region_pop(void)
{
	int err = region_pop();

	silence_check();
	return err;
}

typedef int lifecycle(const char *const *tags, size_t count,
	const struct stayput_options *options, struct asker *asker,
	struct stayput_report *report);

static int run(lifecycle *step, const char *const *tags, size_t count,
	const struct stayput_options *options, struct stayput_report *report)
{
	static const struct stayput_options none = {.struct_size = sizeof none};
	struct stayput_report own = {.struct_size = sizeof own};
	int saved = errno;
	int err = check_tags(tags, count);

	if (err == STAYPUT_OK && options)
		err = check_options(options);
	if (err == STAYPUT_OK && report)
		err = check_report(report);
	if (err == STAYPUT_OK)
		err = check_fork();
	if (err == STAYPUT_OK) {
		err = step(tags, count, options ? options : &none, NULL, &own);
		if (report)
			copy_out(report, &own);
		silence_look();
	}
	errno = saved;
	return err;
}

STAYPUT_API int stayput_pause(const char *tag)
{
	return run(lifecycle_pause, tag ? &tag : NULL, tag ? 1 : 0, NULL, NULL);
}

STAYPUT_API int stayput_resume(const char *tag)
{
	return run(lifecycle_resume, tag ? &tag : NULL, tag ? 1 : 0, NULL, NULL);
}

STAYPUT_API int stayput_pause_ex(const char *const *tags, size_t count,
	const struct stayput_options *options, struct stayput_report *report)
{
	return run(lifecycle_pause, tags, count, options, report);
}

STAYPUT_API int stayput_resume_ex(const char *const *tags, size_t count,
	const struct stayput_options *options, struct stayput_report *report)
{
	return run(lifecycle_resume, tags, count, options, report);
}

STAYPUT_API int stayput_host_reserve(const char *tag)
{
	int saved = errno;
	int err = tag ? check_tag(tag) : STAYPUT_OK;

	if (err == STAYPUT_OK)
		err = check_fork();
	if (err == STAYPUT_OK)
		err = lifecycle_reserve(&tag, tag ? 1 : 0);
	errno = saved;
	return err;
}

STAYPUT_API int stayput_host_trim(size_t keep_bytes)
{
	int saved = errno;
	int err = check_fork();

	if (err == STAYPUT_OK)
		backup_trim(keep_bytes);
	errno = saved;
	return err;
}

STAYPUT_API const void *stayput_host_copy(const void *ptr, size_t size)
{
	const void *copy = NULL;
	struct allocation *a;
	CUdeviceptr address = (CUdeviceptr)ptr;

	if (fork_is_child())
		return NULL;
	lock_take();
	a = table_find_inside_locked(address);
	if (a && a->block && a->block->state == STAYPUT_PAUSED &&
		a->block->paused_as == STAYPUT_HOST &&
		size <= a->size - (address - a->base))
		copy = a->block->backup + (address - a->block->base);
	lock_drop();
	return copy;
}

static int state_of(const struct allocation *a)
{
	return a->block ? a->block->state : STAYPUT_ACTIVE;
}

static void fill_info_locked(const struct allocation *a, struct stayput_info *info)
{
	*info = (struct stayput_info){
		.struct_size = sizeof *info,
		.policy = a->space->policy,
		.state = state_of(a),
		.device = a->space->device->ordinal,
		.base = a->base,
		.size = a->size,
		.generation = a->block ? a->block->generation - a->born : 0,
	};
	strcpy(info->tag, a->space->region->tag);
}

STAYPUT_API int stayput_on_change(stayput_change_fn *fn, void *user)
{
	int saved = errno, err;

	if (!fn)
		return error_set(STAYPUT_ERR_INVALID, "the callback is NULL");
	err = change_add(fn, user);
	errno = saved;
	return err;
}

STAYPUT_API int stayput_on_change_remove(stayput_change_fn *fn, void *user)
{
	if (change_remove(fn, user))
		return STAYPUT_OK;
	return error_set(STAYPUT_ERR_NOT_FOUND, "no callback %p with user %p was there",
		*(void **)&fn, user);
}

STAYPUT_API int stayput_query(const void *ptr, struct stayput_info *info)
{
	const struct allocation *a;
	int err;

	if (!info)
		return error_set(STAYPUT_ERR_INVALID, "info is NULL");
	err = check_size("stayput_info", info->struct_size, sizeof *info);
	if (err != STAYPUT_OK)
		return err;
	lock_take();
	a = table_find_inside_locked((CUdeviceptr)ptr);
	if (a)
		fill_info_locked(a, info);
	lock_drop();
	if (a)
		return STAYPUT_OK;
	return error_set(
		STAYPUT_ERR_NOT_FOUND, "%p is in no allocation of a region", ptr);
}

STAYPUT_API int stayput_region_info(const char *tag, struct stayput_region_info *info)
{
	struct stayput_region_info own;
	const struct region *r;
	int err = check_tag(tag);

	if (err == STAYPUT_OK && !info)
		err = error_set(STAYPUT_ERR_INVALID, "info is NULL");
	if (err == STAYPUT_OK)
		err = check_region_info(info);
	if (err != STAYPUT_OK)
		return err;
	lock_take();
	r = region_find_locked(tag);
	if (r)
		region_fill_info_locked(r, &own);
	lock_drop();
	if (r)
		copy_out(info, &own);
	silence_check();
	return r ? STAYPUT_OK
		 : error_set(STAYPUT_ERR_NOT_FOUND, "no region is tagged %s", tag);
}

STAYPUT_API int stayput_region_list(
	struct stayput_region_info *infos, size_t capacity, size_t *count)
{
	struct stayput_region_info own;
	char *at = (char *)infos;
	size_t n = 0, stride = 0;

	if (!count || (capacity > 0 && !infos))
		return error_set(STAYPUT_ERR_INVALID, "count or infos is NULL");
	if (capacity > 0 && check_region_info(infos) != STAYPUT_OK)
		return STAYPUT_ERR_INVALID;
	if (capacity > 0)
		stride = infos->struct_size;
	lock_take();
	for (const struct region *r = region_first_locked(); r; r = r->next, n++) {
		if (n >= capacity)
			continue;
		region_fill_info_locked(r, &own);
		memcpy(at + n * stride, &own, stride);
		memcpy(at + n * stride, &stride, sizeof stride);
	}
	lock_drop();
	*count = n;
	silence_check();
	return STAYPUT_OK;
}

STAYPUT_API size_t stayput_snapshot_json(char *buf, size_t size)
{
	int saved = errno;
	size_t len = snapshot_write(buf, size);

	silence_check();
	errno = saved;
	return len;
}

STAYPUT_API const char *stayput_strerror(int code)
{
	return error_name(code);
}

STAYPUT_API const char *stayput_last_error(void)
{
	return error_text();
}

STAYPUT_API const char *stayput_version(void)
{
	return STAYPUT_VERSION;
}
