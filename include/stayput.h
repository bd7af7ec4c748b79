/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stayput.h - give the GPU memory behind tagged allocations back to the device, and
 * bring it back later at the same addresses.
 *
 * Load libstayput.so with LD_PRELOAD. Between stayput_region_push("kv_cache", ...) and
 * stayput_region_pop(), every cudaMalloc() of the calling thread belongs to the region
 * "kv_cache". stayput_pause("kv_cache") gives its physical memory back,
 * stayput_resume("kv_cache") puts memory, and contents where they were kept, back at
 * the same addresses: pointers, tensors and CUDA graphs stay valid.
 *
 * True of every function here, unless its own comment says otherwise:
 *
 *   errors    Returns STAYPUT_OK or a negative STAYPUT_ERR_*, and changes nothing on
 *             an error. stayput_last_error() has the sentence. Nothing here exits,
 *             aborts or sets errno; warnings go where STAYPUT_LOG_FILE says.
 *   units     Sizes are bytes. Times are milliseconds, in reports seconds.
 *   memory    Arguments are copied before the call returns. Nothing returned has to
 *             be freed.
 *   threads   May be called from any thread at any time; not from a signal handler,
 *             not from a host function or callback of a CUDA stream.
 *   fork      In a child after fork(), where CUDA cannot be used, memory of the parent
 *             is foreign: what would touch it returns STAYPUT_ERR_UNSUPPORTED.
 *   waiting   Does not wait for the GPU.
 *   structs   Those that begin with struct_size want sizeof(struct ...) there before
 *             the call; they may grow at their end.
 *
 * A tag is 1 to 63 bytes of [A-Za-z0-9_.:-].
 */
#ifndef STAYPUT_H
#define STAYPUT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STAYPUT_API __attribute__((visibility("default")))
#else
#define STAYPUT_API
#endif

#define STAYPUT_VERSION "0.1.0"

enum {
	STAYPUT_OK = 0,
	STAYPUT_ERR_INVALID = -1,   /* an argument is out of range */
	STAYPUT_ERR_NOT_FOUND = -2, /* no region of that tag, no memory of ours there */
	STAYPUT_ERR_BUSY = -3,      /* another operation, or a stream capture, runs */
	STAYPUT_ERR_DEVICE_MEMORY = -4, /* the device has too little memory free */
	STAYPUT_ERR_HOST_MEMORY = -5,   /* the host has too little memory */
	STAYPUT_ERR_DRIVER = -6,      /* the CUDA driver refused or the device is lost */
	STAYPUT_ERR_IO = -7,          /* a file or socket */
	STAYPUT_ERR_UNSUPPORTED = -8, /* not on this device, or not in a forked child */
	STAYPUT_ERR_CORRUPT = -9,     /* contents differ from what was saved */
};

/*
 * What becomes of an allocation's contents over a pause. Belongs to the allocation,
 * from the push in force when it was made; one tag may hold several.
 */
enum {
	STAYPUT_POLICY_DEFAULT = 0, /* what STAYPUT_REGIONS says of the tag, else host */
	STAYPUT_HOST = 1,    /* kept in host memory, and there again after resume */
	STAYPUT_DISCARD = 2, /* undefined after resume; no copy, no host memory */
	STAYPUT_ZERO = 3,    /* every byte zero after resume */
	STAYPUT_KEEP = 4,    /* never released: native memory that is only counted */
};

enum {
	STAYPUT_ACTIVE = 1,   /* mapped, usable */
	STAYPUT_PAUSING = 2,  /* being saved and released */
	STAYPUT_PAUSED = 3,   /* address reserved, no memory behind it */
	STAYPUT_RESUMING = 4, /* being brought back */
	STAYPUT_FREEING = 5,  /* being freed */
	STAYPUT_PARTLY = 6,   /* a region with both active and paused allocations */
};

enum { STAYPUT_TAG_SIZE = 64, STAYPUT_REPORT_DEVICES = 16 };

/*
 * From here, allocations that this thread makes belong to `tag`.
 *
 *   tag      see above
 *   policy   one of STAYPUT_POLICY_DEFAULT ... STAYPUT_KEEP. STAYPUT_REGIONS, when it
 *            names the tag, wins over it.
 *
 * Regions nest to any depth; the innermost one counts. The setting is the thread's
 * own: allocations of other threads, and of threads started from here, are not
 * affected. STAYPUT_DEFAULT gives every thread a region, STAYPUT_RULES one by size, device
 * or caller; a push wins over both. What the libraries in STAYPUT_EXCLUDE (NCCL and its
 * like, by default) allocate stays native here too.
 *
 *   STAYPUT_ERR_INVALID       tag or policy is not one of the above
 *   STAYPUT_ERR_HOST_MEMORY   a few bytes for the record could not be had
 */
STAYPUT_API int stayput_region_push(const char *tag, int policy);

/*
 * From here, allocations that this thread makes are native ones, until the matching
 * stayput_region_pop(): for memory that processes without this library open by CUDA IPC,
 * for instance.
 *
 *   STAYPUT_ERR_HOST_MEMORY   a few bytes for the record could not be had
 */
STAYPUT_API int stayput_native_push(void);

/*
 * End the innermost push of this thread, of either kind. Allocations keep their tag.
 *
 *   STAYPUT_ERR_INVALID   this thread has no push open
 */
STAYPUT_API int stayput_region_pop(void);

/*
 * CUDA IPC works on memory in regions as on native memory, between processes that have
 * loaded this library: cudaIpcGetMemHandle(), also for an address inside an allocation,
 * cudaIpcOpenMemHandle() and cudaIpcCloseMemHandle(), and the driver's calls of these names.
 * The handle's 64 bytes are ours: they name an abstract Unix socket of the exporter, which
 * hands out a file descriptor of the memory. So both have to be in one network namespace,
 * and the importer of the same user, or root. A small allocation is shared with the whole
 * block that it lies in. Handles of native memory are passed on as they are.
 *
 * While it is open elsewhere, memory is not paused (stayput_pause()); what is open here, of
 * another process, no pause of this process concerns. Closing waits for work in the context
 * that it was opened in, or, during a stream capture, is done when that has ended.
 * Opening answers, with the sentence set and a line in the log (a warning the first time, for
 * each kind of failure, and information after that), beside native codes:
 *
 *   cudaErrorMapBufferObjectFailed   the exporter has ended, or has closed all its
 *                                    descriptors
 *   cudaErrorInvalidValue            the exporter has freed the memory, as natively
 *   cudaErrorIllegalState            the memory is paused. While a pause or resume of it is
 *                                    under way, opening waits, for 30 seconds at most
 *   cudaErrorNotPermitted            the exporter is another user's
 *   cudaErrorNotSupported            the exporter has another version of this library
 *   cudaErrorOperatingSystem         the exporter does not answer, for 10 seconds, or no
 *                                    file descriptor is free here
 *
 * A process without this library gets what CUDA says of a handle that it does not know.
 * cudaIpcGetMemHandle() answers cudaErrorNotSupported on a device that cannot share by file
 * descriptor, and cudaErrorOperatingSystem where no socket can be had, or the program has
 * closed it. Who closes a connection, or ends, has closed what was open over it.
 */

/* What to do differently in one call. All zero means: as stayput_pause() does. */
struct stayput_options {
	size_t struct_size;
	/* Pause: this policy for everything that the call releases, instead of each
	 * allocation's own: STAYPUT_HOST, STAYPUT_DISCARD or STAYPUT_ZERO. */
	int policy;
	/* 1: STAYPUT_ERR_BUSY instead of waiting for another operation on a region. */
	int no_block;
	/* Resume: how long to wait for device memory that others hold. 0: as
	 * STAYPUT_RESUME_WAIT says. Negative: not at all. */
	int64_t wait_ms;
	/* Pause: 1: STAYPUT_ERR_BUSY, with everything as before, instead of leaving memory
	 * active that other processes have imported, or that cannot be released since the
	 * program has exported or mapped it itself. */
	int fail_if_held;
	/* Pause: 1: STAYPUT_ERR_BUSY, and nothing paused, when a context that the
	 * allocations were made in has work in flight at that moment, instead of waiting
	 * for it; before callbacks are told of anything. Found out within some 20 ms. Says
	 * nothing about work that is launched afterwards. */
	int only_if_idle;
};

/* One device's part of a pause or resume. Seconds of phases that overlap add up to
 * more than the whole. */
struct stayput_device_report {
	int device; /* CUDA ordinal in this process */
	int reserved;
	uint64_t bytes_released; /* pause: physical memory given back, our count */
	uint64_t
		bytes_released_driver; /* pause: the same by cuMemGetInfo before and after */
	uint64_t bytes_restored;       /* resume: physical memory taken again */
	uint64_t bytes_copied;         /* to or from the host */
	uint64_t bytes_unchanged;      /* not copied, since the backup at hand was good */
	uint64_t bytes_zeroed;         /* resume: cleared */
	double seconds_sync;           /* waiting for work in flight */
	double seconds_pin;            /* getting host memory */
	double seconds_digest;         /* finding out what changed */
	double seconds_copy;      /* the rest of a device's time: copies, and waiting */
	double seconds_unmap;     /* pause: unmapping and releasing */
	double seconds_create;    /* resume: creating memory, waiting for it included */
	double seconds_map;       /* resume: mapping it and setting access */
	double copied_per_second; /* bytes_copied over all of these but seconds_sync; 0
				   * without copies */
	uint64_t bytes_held; /* pause: left active, as fail_if_held would not have it */
};

struct stayput_report {
	size_t struct_size;
	uint64_t allocations; /* that changed state */
	uint64_t failed;      /* that should have and did not */
	double seconds;       /* the whole call */
	uint64_t device_count;
	struct stayput_device_report total; /* over all devices; its `device` is -1 */
	struct stayput_device_report device[STAYPUT_REPORT_DEVICES];
	/* Stream-ordered memory of these regions, which stays on the device. */
	uint64_t bytes_stream_ordered;
};

/*
 * Give the physical memory of every active allocation tagged `tag` back to its device;
 * NULL: of every region. Policies say what becomes of the contents. The addresses stay
 * reserved: a kernel or copy that uses one before stayput_resume() is an illegal access.
 *
 * What policy host keeps is copied in pieces of 2 MiB, and only those whose 128-bit digest
 * differs from the one taken at the last pause: that the others are unchanged rests on two
 * different contents having the same digest by a chance of about 2^-120 for each piece, and
 * on nobody making such contents on purpose: the digest keeps no secret. Without the digest kernel (a driver that cannot compile it)
 * everything is copied. STAYPUT_VERIFY=1 compares digests after each resume.
 *
 * First waits for all work in the contexts that the allocations were made in. Work
 * launched by other threads during the call is the caller's to prevent. Allocations made
 * during or after the call are active. What is paused already is left as it is, so
 * pausing twice succeeds and does nothing. Allocations with policy keep are skipped, and
 * so is stream-ordered memory (cudaMallocAsync() and its like), which is only counted; what
 * the devices' own pools hold of it without need goes back to the system.
 * Memory that the program maps itself is adopted when its cuMemCreate() is called in a
 * region, for pinned memory on the device of the current context: it is released and brought
 * back at the program's own addresses. The handle that the program has for it is a token of
 * this library, which every function of the driver that takes or gives one understands when
 * it is called through this library. While paused, what the program does to it (cuMemUnmap,
 * cuMemSetAccess, cuMemRelease, cuMemRetainAllocationHandle, ...) succeeds as if it were
 * mapped; mapping it a second time or exporting it answers CUDA_ERROR_ILLEGAL_STATE. What is
 * unmapped while paused has lost its contents. Such memory stays active when it was exported,
 * was bound to a multicast object or an array, is mapped at several addresses, or may not be
 * read and written by its own device: then the call succeeds, the report has bytes_held, and
 * stayput_last_error() and the log say how much, and why.
 *
 * When the call returns STAYPUT_OK the driver has the memory: another process can take it.
 * A known tag that holds nothing is no error, but is reported once in the log.
 *
 * Memory that other processes have opened (cudaIpcOpenMemHandle) is left active, with what
 * shares a block with it: the call succeeds, the report has bytes_held, and
 * stayput_last_error() and the log say which tag is held and by which process. When they
 * have closed it, or ended, the next pause releases it.
 *
 *   STAYPUT_ERR_INVALID       tag is malformed
 *   STAYPUT_ERR_NOT_FOUND     no region has that tag
 *   STAYPUT_ERR_BUSY          a stream capture is in progress, no_block or only_if_idle was
 *                             asked for, or fail_if_held was and some of it cannot be
 *                             released
 *   STAYPUT_ERR_HOST_MEMORY   no room for the contents; everything is active still
 *   STAYPUT_ERR_DRIVER        the driver refused. Every allocation is either active with
 *                             its contents, or paused with a good backup: the report and
 *                             stayput_region_info() say how many, stayput_query() says
 *                             which. The call can be repeated.
 *   STAYPUT_ERR_UNSUPPORTED   the region lives on a device without virtual memory
 *                             management, or this is a forked child
 */
STAYPUT_API int stayput_pause(const char *tag);

/*
 * Put memory back behind every paused allocation tagged `tag` (NULL: of every region), at
 * the same addresses, with access for the owning device and for those that the program let
 * use its memory (cudaDeviceEnablePeerAccess), and with contents as the policies say.
 * Resuming what is active succeeds and does nothing. Waits for the copies. Freeing what is
 * being resumed waits for this call, its wait for device memory included.
 *
 * All or nothing: on every error all that was paused is paused still, backups included,
 * and the call can be repeated.
 *
 *   STAYPUT_ERR_INVALID         tag is malformed
 *   STAYPUT_ERR_NOT_FOUND       no region has that tag
 *   STAYPUT_ERR_BUSY            no_block was asked for and another operation runs
 *   STAYPUT_ERR_DEVICE_MEMORY   the device has too little free, also after the wait of
 *                               STAYPUT_RESUME_WAIT; stayput_last_error() says how much is
 *                               free and, where NVML can be opened, who holds the rest
 *   STAYPUT_ERR_DRIVER          the driver refused
 *   STAYPUT_ERR_CORRUPT         with STAYPUT_VERIFY=1: contents differ from what was saved;
 *                               the sentence names tag and range. A repeated call compares
 *                               again; stayput_host_copy() shows what there is to save
 *   STAYPUT_ERR_UNSUPPORTED     this is a forked child
 */
STAYPUT_API int stayput_resume(const char *tag);

/*
 * stayput_pause() and stayput_resume() over several tags as one all-or-nothing step.
 *
 *   tags      `count` tags; NULL with count 0, and only that: every region
 *   options   NULL: all zero
 *   report    filled in on success and on every error after the arguments were
 *             accepted; may be NULL
 */
STAYPUT_API int stayput_pause_ex(const char *const *tags, size_t count,
	const struct stayput_options *options, struct stayput_report *report);
STAYPUT_API int stayput_resume_ex(const char *const *tags, size_t count,
	const struct stayput_options *options, struct stayput_report *report);

/*
 * Begin to get and pin the host memory that pausing the active `host` allocations of `tag`
 * (NULL: of every region) will need, so that the pause only has to copy. Returns at once; a
 * thread does it, and a pause that comes meanwhile waits for it. host_bytes_idle in
 * stayput_snapshot_json() shows how far it is.
 *
 *   STAYPUT_ERR_INVALID, STAYPUT_ERR_NOT_FOUND, STAYPUT_ERR_UNSUPPORTED   as for pause
 *   STAYPUT_ERR_HOST_MEMORY   no room under STAYPUT_HOST_LIMIT or on the machine
 */
STAYPUT_API int stayput_host_reserve(const char *tag);

/*
 * Give host memory that holds no paused contents back to the system until backups have at
 * most `keep_bytes`, or nothing is left to give. Backups of active memory go too: the next
 * pause copies that memory whole. Memory goes back in pieces of up to 64 MiB, so a little
 * beside paused contents may stay. Waits for the system to take it.
 *
 *   STAYPUT_ERR_UNSUPPORTED   this is a forked child
 */
STAYPUT_API int stayput_host_trim(size_t keep_bytes);

/*
 * The contents that a paused allocation had, in host memory.
 *
 *   ptr    an address inside an allocation of ours
 *   size   how many bytes will be read from the answer
 *
 * Returns NULL when the range is not inside one paused allocation whose contents were
 * kept. The answer is valid until the allocation is resumed or freed.
 */
STAYPUT_API const void *stayput_host_copy(const void *ptr, size_t size);

/* What a callback is told of. */
enum {
	STAYPUT_RELEASING = 1, /* is about to lose its memory */
	STAYPUT_RESTORED = 2,  /* has memory again, and contents as the policies say */
};

/* Addresses of whole allocations, as many as lie in them. */
struct stayput_range {
	uint64_t base;
	uint64_t size;
	int device; /* CUDA ordinal in this process */
	int reserved;
};

/*
 * What is to be called when memory goes and comes. Registrations of memory with NCCL
 * (ncclCommRegister) or an RDMA card (ibv_reg_mr) keep leading to the physical memory that
 * was there when they were made: give them up at STAYPUT_RELEASING, make them again at
 * STAYPUT_RESTORED. docs/registrations.md has an example.
 *
 *   change   one of the above
 *   tag      the region
 *   ranges   `count` of them, valid during the call
 *   user     as given to stayput_on_change()
 */
typedef void stayput_change_fn(int change, const char *tag,
	const struct stayput_range *ranges, size_t count, void *user);

/*
 * From here, call `fn` for each region that a pause or resume changes: with
 * STAYPUT_RELEASING before the pause waits for work in flight, while all memory is there;
 * with STAYPUT_RESTORED after a resume, and at the end of a pause that failed, for what has
 * its memory then. Memory that is freed while paused is not heard of again.
 *
 * Callbacks run in the thread that pauses or resumes, one after another in the order in
 * which they came; the operation waits for them, and with it every thread that frees its
 * memory meanwhile: hold no lock that a callback takes. The thread is one of the library's own,
 * with all signals blocked, when another process has asked (STAYPUT_CONTROL). They may call
 * CUDA, allocate, and use what only asks here; pausing and resuming answer STAYPUT_ERR_BUSY, and a free of memory
 * that is about to be released cudaErrorNotPermitted. The same pair counts once.
 *
 *   STAYPUT_ERR_INVALID       fn is NULL
 *   STAYPUT_ERR_HOST_MEMORY   there are 16 callbacks already
 */
STAYPUT_API int stayput_on_change(stayput_change_fn *fn, void *user);

/*
 * Do not call it any more. An operation under way in another thread may still.
 *
 *   STAYPUT_ERR_NOT_FOUND   this pair is not there
 */
STAYPUT_API int stayput_on_change_remove(stayput_change_fn *fn, void *user);

struct stayput_info {
	size_t struct_size;
	char tag[STAYPUT_TAG_SIZE];
	int policy; /* STAYPUT_HOST ... STAYPUT_KEEP */
	int state;  /* STAYPUT_ACTIVE ... STAYPUT_FREEING */
	int device; /* CUDA ordinal in this process */
	int reserved;
	uint64_t base;       /* the address that the allocation call returned */
	uint64_t size;       /* the size that was asked for */
	uint64_t generation; /* how often it has been resumed */
};

/*
 * What the allocation is that `ptr` points into. On an error *info is not written.
 *
 *   STAYPUT_ERR_INVALID     info is NULL or its struct_size is unknown
 *   STAYPUT_ERR_NOT_FOUND   the memory there is native, or none
 */
STAYPUT_API int stayput_query(const void *ptr, struct stayput_info *info);

struct stayput_region_info {
	size_t struct_size;
	char tag[STAYPUT_TAG_SIZE];
	int state; /* STAYPUT_ACTIVE, STAYPUT_PAUSED or STAYPUT_PARTLY */
	int reserved;
	uint64_t bytes_active; /* asked for, with memory behind it */
	uint64_t bytes_paused; /* asked for, without */
	uint64_t bytes_kept;   /* native memory: policy keep, and managed memory */
	uint64_t
		bytes_device; /* physical memory that the region occupies; not bytes_kept */
	uint64_t bytes_backup; /* host memory for its contents, kept while active too */
	uint64_t count_active, count_paused, count_kept; /* allocations */
	uint64_t mappings; /* physical blocks, active or paused */
	/* Not part of the region, but meant for it: allocated where it was in force by calls
	 * whose memory cannot be released. Stays native and on the device; stayput_query()
	 * knows the first kind, with policy keep. */
	uint64_t bytes_stream_ordered; /* cudaMallocAsync() and its like */
	uint64_t count_stream_ordered;
	/* cuMemCreate() that was not adopted, as of PyTorch's expandable segments. */
	uint64_t bytes_foreign_vmm;
	uint64_t count_foreign_vmm;
};

/*
 * How much the region `tag` holds, on all devices together.
 *
 *   STAYPUT_ERR_INVALID     tag is malformed, info is NULL or its struct_size is unknown
 *   STAYPUT_ERR_NOT_FOUND   no region has that tag
 */
STAYPUT_API int stayput_region_info(const char *tag, struct stayput_region_info *info);

/*
 * The same for every region, in the order in which they came up.
 *
 *   infos      room for `capacity` entries; struct_size of the first one counts for all
 *   count      set to the number of regions, also when there are more than fit
 *
 *   STAYPUT_ERR_INVALID   count is NULL, or capacity is not 0 and infos is not usable
 */
STAYPUT_API int stayput_region_list(
	struct stayput_region_info *infos, size_t capacity, size_t *count);

/*
 * Process, devices, regions, host memory of backups and operations as one JSON object,
 * NUL-terminated. Bytes are as in struct stayput_region_info, reports as in struct
 * stayput_report. Members may be added.
 *
 *   version, pid, uid      of the library; of the process
 *   command                its arguments, with blanks between; at most 4 KiB
 *   uptime_seconds         since it was started
 *   devices                those used so far: device, uuid ("" when unknown), bytes_total,
 *                          and the regions' bytes_active, bytes_paused, bytes_kept,
 *                          bytes_device and bytes_backup on it
 *   regions                tag, state (active, paused, partly), bytes_*, count_*, mappings,
 *                          and its stream-ordered bytes by device
 *   foreign_vmm            all that the process holds by cuMemCreate() of its own and that
 *                          was not adopted, by maker
 *   host_bytes             host memory of backups; host_bytes_idle: what nothing lies in
 *   running                operations under way: do (pause, resume, reserve), tags, by (the
 *                          process that asked through the socket; 0: this one), bytes (done)
 *                          and total, seconds so far
 *   last                   the one that has ended last, or null: do, tags, by, code, name
 *                          and message of its error, at (seconds since 1970), report
 *
 * Returns its length without the NUL. Writes at most `size` bytes; when the answer is
 * `size` or more, the text was cut and the call can be made again with more room. `buf`
 * may be NULL when size is 0.
 */
STAYPUT_API size_t stayput_snapshot_json(char *buf, size_t size);

/*
 * For torch.cuda.memory.CUDAPluggableAllocator, in a process into which this library was not
 * preloaded: PyTorch opens it and calls these two. They allocate on `device` as cudaMalloc()
 * would in a preloaded process: in the region that the calling thread has pushed in this
 * library, else by STAYPUT_DEFAULT, else native. `stream` is not looked at: freeing waits
 * for all work in the allocation's context, as cudaFree() does.
 *
 * stayput_torch_malloc() returns NULL when there is no memory, with stayput_last_error() and
 * no CUDA error left behind by a region: a torch.cuda.MemPool then frees what it has cached
 * and asks again. stayput_torch_free() takes what either kind of allocation returned;
 * failures are logged.
 *
 * Where nothing was preloaded, this library does not see the program's own CUDA calls:
 * free this memory by stayput_torch_free() alone, not while a stream captures, and do not
 * pause then; address range queries give the driver's answers, which are those of a larger
 * reservation; cudaDeviceEnablePeerAccess() does not give other devices access to it.
 */
STAYPUT_API void *stayput_torch_malloc(ssize_t size, int device, void *stream);
STAYPUT_API void stayput_torch_free(void *ptr, ssize_t size, int device, void *stream);

/* A short English name for a code, "no error" for STAYPUT_OK; never NULL. */
STAYPUT_API const char *stayput_strerror(int code);

/*
 * What went wrong in this thread's last call here that returned an error, as one
 * sentence with numbers; "" when none has. Valid until the thread's next error.
 */
STAYPUT_API const char *stayput_last_error(void);

/* STAYPUT_VERSION of the library that was loaded. */
STAYPUT_API const char *stayput_version(void);

#ifdef __cplusplus
}
#endif

#endif
