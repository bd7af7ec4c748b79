/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the fake driver share. Each noun has its file; what a function
 * promises stands here.
 *
 * One lock, fake_lock(), guards every table, list and count. Work that takes long
 * (copies, kernels, host functions, delays) is done without it. Functions named _locked
 * want it held; others take it themselves. The ledger's file lock and the lock of
 * inject.c are taken under it, never the other way round.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Declares every version and stream flavour of a function under its exported name. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "fakecuda.h"

#define API __attribute__((visibility("default")))

enum {
	DEVICES_MAX = FAKECUDA_DEVICES_MAX,
	GRANULE = 2 << 20,
	PIECE = 64
		<< 10, /* device memory is looked up, and poisoned, in pieces of this */
	KERNEL_PARAMS = 16,
	KERNEL_PARAM_BYTES = 512,
};

struct settings {
	int devices;
	int version;
	size_t memory;
	bool vmm, poison, jit;
	int shareable; /* VMM memory: 0 not at all, 1 by descriptor, 2 by fabric too */
	atomic_uint delay_us;
};

/* Read from the environment at the first call. */
struct settings *settings(void);

void fake_lock(void);
void fake_unlock(void);
/* Waits for fake_progress(), which tells every waiter that something has finished. */
void fake_wait_locked(void);
void fake_progress_locked(void);

/* Why no call can be served now: forked, exiting, not initialised; else success. */
CUresult fake_phase(void);
bool fake_exiting(void);
bool fake_forked(void);

/* What the driver keeps for one thread; made at first use, NULL only without memory. */
struct thread {
	struct CUctx_st *stack[32];
	unsigned depth;
	CUstreamCaptureMode mode;
	bool is_worker;         /* runs a host function or a kernel: may not call CUDA */
	struct kernel_run *run; /* the kernel that runs on this thread */
};
struct thread *thread_self(void);

/* A number that no other object of this process has. */
unsigned long long fake_next_id(void);

/* "OUT_OF_MEMORY", or NULL when there is no such error. */
const char *error_short_name(CUresult err);
/* Reads a name without CUDA_ERROR_, or a number. */
bool error_parse(const char *text, size_t len, CUresult *err);

enum gate {
	GATE_QUERY,   /* needs cuInit(); answers after a context was lost, too */
	GATE_DRIVER,  /* and no context lost */
	GATE_CONTEXT, /* and a live context current */
};

/* Counts the call, then says whether it is to be refused. */
CUresult gate(const char *name, enum gate need);
/* The same for cuInit() and others that need nothing before. */
CUresult gate_open(const char *name);
/* Logs the call; returns `err`. */
CUresult done(const char *name, CUresult err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
const char *fake_log_word(CUresult err);

bool device_is_valid(CUdevice dev);

struct CUctx_st {
	struct CUctx_st *next; /* every context ever made: one that died is still known */
	int device;
	unsigned flags;
	bool is_primary, is_live;
	unsigned retains;
	CUresult lost;  /* what every call answers after a fault */
	unsigned peers; /* devices whose native memory this one may use, as bits */
	struct CUstream_st *streams;
	struct CUstream_st *legacy;
	unsigned long long id;
};

/* The calling thread's, or NULL. */
struct CUctx_st *context_current(void);
/* Known and alive; else INVALID_CONTEXT, CONTEXT_IS_DESTROYED or what it was lost to. */
CUresult context_check_locked(struct CUctx_st *ctx);
void context_lose_locked(struct CUctx_st *ctx, CUresult err);
bool context_any_lost(void);
/* Every context there was, by its `next`. */
struct CUctx_st *context_first_locked(void);

/* Each indexed struct begins with these two. */
struct extent {
	CUdeviceptr base;
	size_t size;
};

struct index {
	struct extent **items;
	size_t count, room;
};

/* False without memory. */
bool index_insert(struct index *index, struct extent *extent);
void index_remove(struct index *index, const struct extent *extent);
/* The one that contains `at`, or NULL. */
struct extent *index_find(const struct index *index, CUdeviceptr at);
/* Position of the first one that ends after `at`. */
size_t index_after(const struct index *index, CUdeviceptr at);
bool index_overlaps(const struct index *index, CUdeviceptr base, size_t size);

struct physical {
	size_t size;
	int device;
	unsigned char *bytes;   /* where the host finds it */
	unsigned char *touched; /* a bit a piece: no longer poison to be */
	int fd;                 /* of the memfd once it was exported, else -1 */
	uint64_t inode;         /* names it in the ledger, with fd */
	unsigned handle_refs, map_refs;
	unsigned pins; /* accesses under way: the bytes stay although the memory is freed
			*/
	bool is_vmm, is_charged;
	CUmemGenericAllocationHandle handle; /* 0: never had one */
	CUmemAllocationProp prop;
	unsigned long long id;
};

/* Charged to the device; no references yet. */
CUresult physical_create_locked(int device, size_t size, struct physical **made);
/* Around memory that the host may use too (managed); not charged. */
struct physical *physical_wrap_locked(int device, void *bytes, size_t size);
/* After a count went down: gives back what nothing refers to any more. */
void physical_settle_locked(struct physical *phys);
/* The memfd, of which the caller gets no copy. */
CUresult physical_share_locked(struct physical *phys, int *fd);
CUresult physical_import_locked(int fd, struct physical **made);
/* Makes [offset, offset + size) readable as what a device would find there. */
void physical_touch_locked(struct physical *phys, size_t offset, size_t size);
/* The whole piece at `offset` is about to be written: spares it the poison. */
void physical_overwrite_locked(struct physical *phys, size_t offset);

enum range_kind { RANGE_MAPPED, RANGE_NATIVE, RANGE_ASYNC, RANGE_MANAGED, RANGE_OPENED };

struct range {
	CUdeviceptr base;
	size_t size;
	enum range_kind kind;
	struct physical *phys;
	size_t offset; /* where in phys */
	struct CUctx_st *ctx;
	struct CUmemPoolHandle_st *pool;
	unsigned char access[DEVICES_MAX]; /* CUmemAccess_flags; VMM only */
	bool sync_memops;
	unsigned opens; /* by IPC */
	unsigned long long id;
};

struct reservation {
	CUdeviceptr base;
	size_t size;
	void *mapped; /* what mmap() gave: more than the reservation, for alignment */
	size_t mapped_size;
	bool is_orphan; /* a primary context reset left it behind */
};

extern struct index space_ranges, space_reservations;

struct range *space_find_locked(CUdeviceptr at);
struct reservation *space_reservation_locked(CUdeviceptr at);
/* An address of ours, whether or not memory is there. */
bool space_is_device_locked(CUdeviceptr at);

/* Who reaches for memory, and how. */
struct access {
	struct CUctx_st *ctx;
	bool writes;
	bool by_copy; /* a copy crosses devices without peer access to native memory */
};

struct window {
	struct physical *phys; /* pinned until space_unpin() */
	unsigned char *bytes;
	size_t size;
	CUdeviceptr at;
};

/* The memory at `at`: `size` bytes of it, or as many as lie in one piece. */
bool space_pin(
	CUdeviceptr at, size_t size, const struct access *access, struct window *w);
bool space_pin_locked(
	CUdeviceptr at, size_t size, const struct access *access, struct window *w);
/* False when the memory was taken away meanwhile. */
bool space_unpin(const struct window *w);
bool space_unpin_locked(const struct window *w);
/* The whole range could be reached now. */
bool space_allows_locked(CUdeviceptr at, size_t size, const struct access *access);

/* Handles held, counted as often as they are. */
size_t vmm_handles_locked(void);

/* The memory of a handle, NULL for one that was released; and what becomes of it when
 * nothing refers to it any more. */
struct physical *vmm_find_locked(CUmemGenericAllocationHandle handle);
void vmm_settle_locked(struct physical *phys);

/* False: that is no multicast object. */
bool multicast_release_locked(CUmemGenericAllocationHandle handle);

CUresult native_place_locked(
	struct CUctx_st *ctx, size_t size, enum range_kind kind, struct range **made);
void native_remove_locked(struct range *range);
/* Address space in the native window, by whole granules. 0: none left. */
CUdeviceptr native_window_locked(size_t size);
void native_remove_all_locked(const struct CUctx_st *ctx);
bool native_is_window(CUdeviceptr at);

/* Frees what cuMemFreeAsync() put off until now. */
CUresult pool_free(CUdeviceptr at);
void pool_give_back_locked(struct range *range);

struct host_range {
	CUdeviceptr base;
	size_t size;
	unsigned flags;
	bool is_ours; /* allocated, not registered */
	unsigned pins;
	struct CUctx_st *ctx;
	unsigned long long id;
};

struct host_range *host_find_locked(const void *at);
bool host_is_pinned_locked(const void *at, size_t size);
/* Keeps a registration from going while an access is under way. False: it has gone. */
bool host_pin(const void *at, size_t size);
void host_unpin(const void *at);
size_t host_count_locked(void);
void host_remove_all_locked(const struct CUctx_st *ctx);

enum op_kind { OP_NOTHING, OP_COPY, OP_FILL, OP_KERNEL, OP_HOST, OP_STAMP, OP_FREE };

struct side {
	CUdeviceptr at;
	size_t pitch;
	bool is_device;
	bool is_pinned;       /* host memory that has to be registered still when used */
	struct CUctx_st *ctx; /* on whose behalf device memory is reached */
};

struct copy {
	struct side dst, src;
	size_t width, rows;
	void *snapshot; /* freed after the copy; src.at points into it */
};

struct fill {
	CUdeviceptr at;
	size_t pitch, width, rows; /* width in elements */
	unsigned value, element;   /* of 1, 2 or 4 bytes */
};

struct kernel {
	void (*fn)(void **params, unsigned grid_blocks);
	unsigned grid_blocks;
	unsigned short offsets[KERNEL_PARAMS];
	_Alignas(16) unsigned char bytes[KERNEL_PARAM_BYTES];
};

struct op {
	enum op_kind kind;
	union {
		struct copy copy;
		struct fill fill;
		struct kernel kernel;
		struct {
			CUhostFn fn;
			void *user;
		} host;
		struct CUevent_st *event;
		CUdeviceptr freed;
	};
};

/* Does the work, piece by piece. INVALID_VALUE: it met memory it may not use. */
CUresult op_run(struct op *op, struct CUctx_st *ctx);
/* Lets go of what an op that is not to run holds. */
void op_drop_locked(struct op *op);
/* What the driver checks when the work is handed in. */
CUresult op_check_locked(const struct op *op, struct CUctx_st *ctx);

struct item;

struct CUstream_st {
	struct CUstream_st *next;
	struct CUctx_st *ctx;
	unsigned flags;
	int priority;
	bool is_legacy, is_closed, has_worker;
	const struct thread *owner; /* of a per-thread default stream */
	struct item *head, *tail;
	uint64_t queued, finished; /* items handed in, items done */
	unsigned refs;
	struct capture *capture;
	bool is_unjoined; /* captured work that the capture's origin does not wait for yet
			   */
	unsigned long long id;
};

/* NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD included, in the current context. */
CUresult stream_resolve_locked(CUstream handle, struct CUstream_st **stream);
/* Hands in work, or adds it to the capture; what `op` holds is no longer the caller's.
 * With `waits` returns when it is done. */
CUresult stream_enqueue(CUstream handle, struct op *op, bool waits);
bool stream_captures(CUstream handle);
/* Queues work, with one more thing to wait for if after is not NULL. */
CUresult stream_queue_locked(struct CUstream_st *stream, const struct op *op,
	struct CUstream_st *after, uint64_t after_item);
/* Waits for what a synchronous call on the default stream waits for. */
CUresult stream_wait_for_default(CUstream handle);
CUresult stream_wait_context(struct CUctx_st *ctx);
void stream_close_all_locked(struct CUctx_st *ctx);
void stream_leave_thread(const struct thread *thread);
void stream_hold_locked(struct CUstream_st *stream);
void stream_release_locked(struct CUstream_st *stream);
/* The stream that a per-thread flavour means. */
static inline CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

void event_stamp_locked(struct CUevent_st *event, uint64_t item);
void event_release_locked(struct CUevent_st *event);

struct capture {
	struct capture *next;
	struct CUctx_st *ctx;
	struct CUstream_st *origin;
	const struct thread *thread;
	CUstreamCaptureMode mode;
	CUgraph graph;
	bool owns_graph, is_invalid;
	unsigned long long id;
};

/* For calls that may not be made beside a capture (cuMemAlloc and kin): 900, and the
 * captures that forbid it are lost. */
CUresult capture_allow_unsafe(void);
/* For what waits for a whole context. */
CUresult capture_allow_wait_locked(const struct CUctx_st *ctx);
/* For work on the legacy stream: 906 while a blocking stream captures. */
CUresult capture_allow_legacy_locked(const struct CUctx_st *ctx);
CUresult capture_add_locked(struct CUstream_st *stream, const struct op *op);
void capture_invalidate_locked(struct capture *capture);
void capture_abandon_locked(struct CUstream_st *stream);
/* NULL when it has ended. */
struct capture *capture_find_locked(unsigned long long id);

struct CUgraphNode_st {
	struct op op;
};

struct CUgraph_st {
	struct CUgraph_st *next;
	struct CUgraphNode_st **nodes; /* in an order that every dependency agrees with */
	size_t count, room;
};

CUresult graph_create_locked(CUgraph *graph);
CUresult graph_append_locked(CUgraph graph, const struct op *op);
bool graph_is_known_locked(CUgraph graph);
void graph_destroy_locked(CUgraph graph);

CUresult kernel_run(struct kernel *kernel, struct CUctx_st *ctx);

void report_fault_locked(void);
void report_leaks(void);

/* Registered from the start. */
void digest_kernel(void **params, unsigned grid_blocks);

#endif
