/* SPDX-License-Identifier: Apache-2.0 */
#include "compat_tms.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "alloc.h"
#include "backup.h"
#include "block.h"
#include "compat_torch.h"
#include "config.h"
#include "device.h"
#include "error.h"
#include "fork.h"
#include "hostpool.h"
#include "lock.h"
#include "log.h"
#include "region.h"
#include "stayput.h"
#include "table.h"

static const char *const backends[] = {"pinned", "mmap"};

/* The variables of torch_memory_saver, read once at the first use. */
struct settings {
	bool enable, cpu_backup, disk_backup, retain;
	const char *backend;
};

static bool read_bool(const char *name, bool tell)
{
	static const char *const words[] = {
		"0", "false", "no", "off", "1", "true", "yes", "on"};
	enum { WORDS = sizeof words / sizeof *words };
	const char *text = secure_getenv(name);

	if (!text || !*text)
		return false;
	for (int i = 0; i < WORDS; i++)
		if (strcasecmp(text, words[i]) == 0)
			return i >= WORDS / 2;
	if (tell)
		log_line(LOG_WARN,
			"%s: \"%.100s\" is none of 1, true, yes, on, 0, false, no, "
			"off; using 0",
			name, text);
	return false;
}

/* One of `backends`, or NULL. */
static const char *find_backend(const char *text)
{
	if (!text || !*text)
		return backends[0];
	for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
		if (strcmp(text, backends[i]) == 0)
			return backends[i];
	return NULL;
}

static const char *read_backend(const char *name, bool tell)
{
	const char *text = secure_getenv(name);
	const char *backend = find_backend(text);

	if (!backend && tell)
		log_line(LOG_WARN,
			"%s: \"%.100s\" is neither pinned nor mmap; using pinned", name,
			text);
	return backend ? backend : backends[0];
}

/* A file tier will cut its files so. */
static void read_chunk(const char *name, bool tell)
{
	const char *text = secure_getenv(name);

	if (tell && text && *text &&
		(strspn(text, "0123456789") != strlen(text) ||
			strspn(text, "0") == strlen(text)))
		log_line(LOG_WARN, "%s: \"%.100s\" is not a number of MiB", name, text);
}

/* With `tell`, what cannot be read is reported. */
static struct settings read_settings(bool tell)
{
	read_chunk("TMS_DISK_BACKUP_CHUNK_MB", tell);
	return (struct settings){
		.enable = read_bool("TMS_INIT_ENABLE", tell),
		.cpu_backup = read_bool("TMS_INIT_ENABLE_CPU_BACKUP", tell),
		.disk_backup = read_bool("TMS_INIT_ENABLE_DISK_BACKUP", tell),
		.retain = read_bool("TMS_RETAIN_CPU_BACKUP", tell),
		.backend = read_backend("TMS_INIT_CPU_BACKUP_BACKEND", tell),
	};
}

static const struct settings *settings(void)
{
	static const struct settings fallback = {.backend = "pinned"};
	static _Atomic(const struct settings *) current;
	const struct settings *seen =
		atomic_load_explicit(&current, memory_order_acquire);
	int saved = errno;
	struct settings *fresh;

	if (seen)
		return seen;
	config(); /* sets the log up */
	fresh = malloc(sizeof *fresh);
	if (!fresh)
		return &fallback;
	*fresh = read_settings(false);
	if (atomic_compare_exchange_strong(&current, &seen, fresh)) {
		seen = fresh;
		read_settings(true);
	} else {
		free(fresh);
	}
	errno = saved;
	return seen;
}

/* A tag as the program wrote it, and the region it stands for. Never freed: tags are few,
 * and threads keep pointers to them. */
struct tag {
	const struct tag *next;
	const char *text;
	char region[STAYPUT_TAG_SIZE];
};

static const struct tag default_tag = {.text = "default", .region = "default"};
static _Atomic(const struct tag *) tags = &default_tag;

/* What is none of our tags gets one that nobody else has: its own letters, as far as they
 * are allowed and fit, and a hash (FNV-1a) of all of them. */
static void name_region(const char *text, char region[STAYPUT_TAG_SIZE])
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	size_t len = 0;

	if (config_valid_tag(text)) {
		strcpy(region, text);
		return;
	}
	for (const char *p = text; *p; p++) {
		char letter[] = {*p, '\0'};

		hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
		if (len < STAYPUT_TAG_SIZE - sizeof ":0123456789abcdef")
			region[len++] = config_valid_tag(letter) ? *p : '_';
	}
	snprintf(region + len, STAYPUT_TAG_SIZE - len, ":%016llx",
		(unsigned long long)hash);
}

static const struct tag *find_tag(const char *text)
{
	const struct tag *t = atomic_load_explicit(&tags, memory_order_acquire);

	while (t && strcmp(t->text, text) != 0)
		t = t->next;
	return t;
}

/* Two threads may add the same one: either serves. */
static const struct tag *add_tag(const char *text)
{
	size_t len = strlen(text) + 1;
	struct tag *t = malloc(sizeof *t + len);

	if (!t)
		return NULL;
	name_region(text, t->region);
	t->text = memcpy(t + 1, text, len);
	t->next = atomic_load(&tags);
	while (!atomic_compare_exchange_weak(&tags, &t->next, t))
		;
	return t;
}

static __thread struct {
	const struct tag *tag; /* NULL: nothing has been taken from the settings yet */
	const char *backend;
	struct choice choice;
	bool interesting, cpu_backup, disk_backup;
	bool chosen; /* `choice` is what the rest says */
} thread;

static void begin_thread(void)
{
	const struct settings *s;

	if (thread.tag)
		return;
	s = settings();
	thread.interesting = s->enable;
	thread.cpu_backup = s->cpu_backup;
	thread.disk_backup = s->disk_backup;
	thread.backend = s->backend;
	thread.tag = &default_tag;
}

static void tell_of_disk(void)
{
	static _Atomic bool told;

	if (!atomic_exchange(&told, true))
		log_line(LOG_WARN,
			"torch_memory_saver's disk backup was asked for, which this "
			"library does not have yet: contents go to host memory instead");
}

/* Where a file tier, once there is one, is asked for. */
static int wanted_policy(void)
{
	if (thread.disk_backup)
		tell_of_disk();
	return thread.disk_backup || thread.cpu_backup ? STAYPUT_HOST : STAYPUT_DISCARD;
}

/* Without memory for the region's record, native; as by STAYPUT_DEFAULT. */
static void choose(void)
{
	int err = region_prepare(thread.tag->region, wanted_policy(), &thread.choice);

	if (err != STAYPUT_OK) {
		thread.choice = (struct choice){.region = NULL, .policy = STAYPUT_KEEP};
		log_line(LOG_WARN, "tag \"%.100s\": %s", thread.tag->text, error_text());
	}
	thread.chosen = err == STAYPUT_OK;
}

bool region_choose_compat(struct choice *choice)
{
	begin_thread();
	if (!thread.interesting) {
		*choice = (struct choice){.region = NULL, .policy = STAYPUT_KEEP};
		return settings()->enable;
	}
	if (!thread.chosen)
		choose();
	*choice = thread.choice;
	return true;
}

STAYPUT_API void tms_set_interesting_region(bool interesting)
{
	begin_thread();
	thread.interesting = interesting;
}

STAYPUT_API bool tms_get_interesting_region(void)
{
	begin_thread();
	return thread.interesting;
}

STAYPUT_API void tms_region_enter(void)
{
	tms_set_interesting_region(true);
}

STAYPUT_API void tms_region_leave(void)
{
	tms_set_interesting_region(false);
}

STAYPUT_API void tms_set_current_tag(const char *text)
{
	int saved = errno;
	const struct tag *tag = text ? find_tag(text) : NULL;

	begin_thread();
	if (text && !tag)
		tag = add_tag(text);
	if (tag && tag != thread.tag) {
		thread.tag = tag;
		thread.chosen = false;
	}
	if (!tag)
		log_line(LOG_WARN, "tms_set_current_tag(%s): %s; the tag is still \"%s\"",
			text ? "..." : "NULL", text ? "no memory" : "not a tag",
			thread.tag->text);
	errno = saved;
}

STAYPUT_API const char *tms_get_current_tag(void)
{
	begin_thread();
	return thread.tag->text;
}

STAYPUT_API void tms_set_enable_cpu_backup(bool enable)
{
	begin_thread();
	thread.chosen &= enable == thread.cpu_backup;
	thread.cpu_backup = enable;
}

STAYPUT_API bool tms_get_enable_cpu_backup(void)
{
	begin_thread();
	return thread.cpu_backup;
}

STAYPUT_API void tms_set_enable_disk_backup(bool enable)
{
	begin_thread();
	thread.chosen &= enable == thread.disk_backup;
	thread.disk_backup = enable;
}

STAYPUT_API bool tms_get_enable_disk_backup(void)
{
	begin_thread();
	return thread.disk_backup;
}

STAYPUT_API void tms_set_cpu_backup_backend(const char *text)
{
	const char *backend = find_backend(text);

	begin_thread();
	if (backend)
		thread.backend = backend;
	else
		log_line(LOG_WARN,
			"tms_set_cpu_backup_backend: \"%.100s\" is neither pinned nor "
			"mmap; it is still %s",
			text, thread.backend);
}

STAYPUT_API const char *tms_get_cpu_backup_backend(void)
{
	begin_thread();
	return thread.backend;
}

STAYPUT_API void tms_set_disk_backup_dir(const char *dir)
{
	log_line(LOG_INFO,
		"tms_set_disk_backup_dir(%.200s): nothing is kept in files yet",
		dir ? dir : "NULL");
}

/* 0: as the settings say. */
enum { RETAIN = 1, DO_NOT_RETAIN = 2 };

static _Atomic int retention;

STAYPUT_API void tms_set_retain_cpu_backup(bool retain)
{
	atomic_store(&retention, retain ? RETAIN : DO_NOT_RETAIN);
}

STAYPUT_API bool tms_get_retain_cpu_backup(void)
{
	int set = atomic_load(&retention);

	return set ? set == RETAIN : settings()->retain;
}

STAYPUT_API void set_memory_margin_bytes(uint64_t bytes)
{
	alloc_set_margin(bytes);
}

/* The region of a tag; NULL, which is all of them, for none. */
static const char *region_of(const char *text, char region[STAYPUT_TAG_SIZE])
{
	if (!text || !*text)
		return NULL;
	name_region(text, region);
	return region;
}

/* A tag that nothing was allocated with is no error there. */
static int run(const char *name, int (*step)(const char *tag), const char *text)
{
	char region[STAYPUT_TAG_SIZE];
	int err = step(region_of(text, region));

	if (err == STAYPUT_OK)
		return STAYPUT_OK;
	if (err == STAYPUT_ERR_NOT_FOUND) {
		log_line(LOG_INFO, "%s(%.100s): nothing was allocated with that tag",
			name, text);
		return STAYPUT_OK;
	}
	log_line(LOG_ERROR, "%s(%.100s) failed: %s", name, text ? text : "NULL",
		error_text());
	return err;
}

STAYPUT_API int tms_pause(const char *tag)
{
	return run("tms_pause", stayput_pause, tag);
}

/* What stayput_host_reserve() got ahead of need is not what a backup leaves behind. */
static void give_backups_back(void)
{
	int saved = errno;
	size_t reserved;

	lock_take();
	reserved = hostpool_reserved_locked();
	lock_drop();
	backup_trim(reserved);
	errno = saved;
}

STAYPUT_API int tms_resume(const char *tag)
{
	int err = run("tms_resume", stayput_resume, tag);

	if (err == STAYPUT_OK && !tms_get_retain_cpu_backup())
		give_backups_back();
	return err;
}

/* Of memory that has been resumed: what the last pause saved. */
static const void *find_retained(CUdeviceptr address, uint64_t size)
{
	const void *copy = NULL;
	const struct allocation *a;

	lock_take();
	a = table_find_inside_locked(address);
	if (a && a->block && a->block->state == STAYPUT_ACTIVE && a->block->backup_good &&
		a->block->generation > a->born && size <= a->size - (address - a->base))
		copy = a->block->backup + (address - a->block->base);
	lock_drop();
	return copy;
}

STAYPUT_API uint8_t *tms_get_cpu_backup_pointer(const uint8_t *gpu_ptr, uint64_t size)
{
	const void *copy = stayput_host_copy(gpu_ptr, size);

	if (!copy && tms_get_retain_cpu_backup() && !fork_is_child())
		copy = find_retained((CUdeviceptr)gpu_ptr, size);
	return (uint8_t *)(uintptr_t)copy;
}

static uint64_t devices_of_locked(const char *region)
{
	uint64_t found = 0;

	for (const struct region *r = region_first_locked(); r; r = r->next) {
		if (region && strcmp(r->tag, region) != 0)
			continue;
		for (const struct space *s = r->spaces; s; s = s->next)
			if (s->large || s->shared)
				found |= UINT64_C(1) << s->device->ordinal;
	}
	return found;
}

STAYPUT_API uint32_t tms_affected_devices(
	const char *tag, int *devices, uint32_t capacity)
{
	char buf[STAYPUT_TAG_SIZE];
	const char *region = region_of(tag, buf);
	uint64_t found;
	uint32_t count = 0;

	lock_take();
	found = devices_of_locked(region);
	lock_drop();
	for (int device = 0; device < DEVICE_MAX; device++) {
		if (!(found >> device & 1))
			continue;
		if (devices && count < capacity)
			devices[count] = device;
		count++;
	}
	return count;
}

STAYPUT_API void *tms_torch_malloc(ssize_t size, int device, void *stream)
{
	(void)stream;
	return torch_allocate(size, device, __builtin_return_address(0));
}

STAYPUT_API void tms_torch_free(void *ptr, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	(void)stream;
	torch_release(ptr, __builtin_return_address(0));
}
