/* SPDX-License-Identifier: Apache-2.0 */
#include "silence.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>

#include "config.h"
#include "fork.h"
#include "hook.h"
#include "lock.h"
#include "log.h"
#include "nvml.h"
#include "real.h"
#include "region.h"

#define SILENCE_BYTES (UINT64_C(1) << 30)

_Atomic bool silence_broken;

static _Atomic bool pushed, told;

void silence_note_push(void)
{
	atomic_store_explicit(&pushed, true, memory_order_relaxed);
}

static bool is_region_wanted(void)
{
	const struct config *c = config();

	return atomic_load_explicit(&pushed, memory_order_relaxed) || c->default_tag[0] ||
	       c->match_count > 0;
}

/* The 1st, 2nd, 4th, 8th ... time. */
static bool is_due(void)
{
	static _Atomic unsigned long calls;
	unsigned long n = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;

	return (n & (n - 1)) == 0;
}

static const char *advice(enum foreign_maker maker)
{
	switch (maker) {
	case FOREIGN_PYTORCH:
		return "these are PyTorch's expandable segments: set "
		       "expandable_segments:False in PYTORCH_CUDA_ALLOC_CONF or "
		       "PYTORCH_ALLOC_CONF";
	case FOREIGN_XLA:
		return "this is a pool of XLA's own: preload libstayput-deep.so instead";
	default:
		return "it manages virtual memory itself: preload libstayput-deep.so "
		       "instead, or look for a setting that makes it use cudaMalloc";
	}
}

void silence_note_foreign(
	const struct region *region, enum foreign_maker maker, const char *name)
{
	uint64_t bytes;

	lock_take();
	bytes = region->bytes_foreign;
	lock_drop();
	if (bytes <= SILENCE_BYTES || atomic_exchange(&told, true))
		return;
	log_line(LOG_WARN,
		"region %s: %llu bytes that were meant for it stay native, because %s "
		"made them by cuMemCreate; %s",
		region->tag, (unsigned long long)bytes, *name ? name : "code in no file",
		advice(maker));
}

/* The maker of most of the memory that others have made, or FOREIGN_MAKERS. */
static enum foreign_maker main_maker(uint64_t *bytes)
{
	enum foreign_maker main = FOREIGN_MAKERS;

	*bytes = 0;
	lock_take();
	for (int i = 0; i < FOREIGN_MAKERS; i++)
		if (foreign_bytes_locked(i) > *bytes) {
			*bytes = foreign_bytes_locked(i);
			main = i;
		}
	lock_drop();
	return main;
}

static const char *where_it_goes(void)
{
	if (hook_replace)
		return "Memory may come from a pool that a framework makes by "
		       "cuMemCreate "
		       "(PyTorch: expandable_segments in PYTORCH_CUDA_ALLOC_CONF), or "
		       "from a library opened with RTLD_DEEPBIND";
	return "The CUDA runtime may be linked statically, or the driver looked up by "
	       "name, as in CuPy, Numba and JAX, or functions called through a handle "
	       "(ctypes.CDLL): preload libstayput-deep.so instead. Or memory comes from "
	       "a pool that a framework makes by cuMemCreate (PyTorch: "
	       "expandable_segments in PYTORCH_CUDA_ALLOC_CONF)";
}

static void tell(uint64_t bytes)
{
	uint64_t made;
	enum foreign_maker maker = main_maker(&made);

	if (atomic_exchange(&told, true))
		return;
	if (made > SILENCE_BYTES / 2)
		log_line(LOG_WARN,
			"this process holds %llu bytes of a device, and no allocation "
			"has "
			"come by, so that regions are empty. %llu bytes were made by "
			"cuMemCreate; %s",
			(unsigned long long)bytes, (unsigned long long)made,
			advice(maker));
	else
		log_line(LOG_WARN,
			"this process holds %llu bytes of a device, and no allocation "
			"has "
			"come by, so that regions are empty. %s",
			(unsigned long long)bytes, where_it_goes());
}

static bool is_in_question(void)
{
	return !atomic_load_explicit(&silence_broken, memory_order_relaxed) &&
	       !atomic_load_explicit(&told, memory_order_relaxed) && !fork_is_child() &&
	       is_region_wanted();
}

void silence_look(void)
{
	int saved = errno;
	uint64_t bytes;

	if (!is_in_question())
		return;
	bytes = driver_is_there() ? nvml_own_bytes() : 0;
	if (bytes > SILENCE_BYTES)
		tell(bytes);
	errno = saved;
}

void silence_check(void)
{
	if (is_in_question() && is_due())
		silence_look();
}

void silence_why_empty(const struct region *region, char *buf, size_t size)
{
	uint64_t bytes;

	lock_take();
	bytes = region->bytes_foreign;
	lock_drop();
	if (bytes > 0)
		snprintf(buf, size,
			"%llu bytes that were meant for it were made by cuMemCreate, "
			"past "
			"this library, and stay native (PyTorch: expandable_segments)",
			(unsigned long long)bytes);
	else if (atomic_load_explicit(&silence_broken, memory_order_relaxed))
		snprintf(buf, size,
			"what came by was allocated outside of it (a push holds for its "
			"own thread, and a framework may give out memory that it has "
			"already), or by code that STAYPUT_EXCLUDE keeps native");
	else
		snprintf(buf, size,
			"nothing has come by, so memory is allocated past this library, "
			"or not at all (static CUDA runtime, functions called through a "
			"handle, expandable_segments)");
}
