/* SPDX-License-Identifier: Apache-2.0 */
#include "hostfill.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "clock.h"
#include "device.h"
#include "hostmem.h"
#include "hostpool.h"
#include "log.h"
#include "real.h"
#include "thread.h"

/* A kernel that has to move memory about to make huge pages is slower than small pages
 * are: below this, in bytes a second, the pieces that follow do without. */
static const double HUGE_PAGES_WORTH = 1.0e9;

static _Atomic bool use_huge_pages = true;

/* Writing makes the kernel find a page. MADV_POPULATE_WRITE does that too, but holds up
 * other threads' faults and registrations while it does. */
static void touch(struct piece *piece)
{
	for (size_t at = 0; at < piece->size; at += 4096)
		((volatile char *)piece->base)[at] = 0;
}

static void say_unpinned(CUresult err)
{
	static _Atomic bool told;

	/* At the program's end the driver goes first. */
	if (err != CUDA_ERROR_DEINITIALIZED && !atomic_exchange(&told, true))
		log_line(LOG_WARN,
			"host memory cannot be pinned (CUDA error %d; see "
			"RLIMIT_MEMLOCK): "
			"backups are copied through a small pinned buffer, which is "
			"slower",
			(int)err);
}

/* The driver does one registration at a time and lets whoever waits have its turn in
 * order: with all our threads in that queue, the program's own calls would wait for each
 * of them. */
static CUresult register_piece(struct piece *piece)
{
	static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
	CUresult err;

	pthread_mutex_lock(&turn);
	err = driver()->cuMemHostRegister_v2(piece->base, piece->size,
		CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	pthread_mutex_unlock(&turn);
	return err;
}

/* A process that goes over its cgroup's limit is killed, so each piece is looked at again
 * right before it is touched. */
static bool fill_piece(struct piece *piece)
{
	double start = clock_now();
	bool huge = use_huge_pages;
	CUresult err;

	if (hostmem_available("") < piece->size)
		return false;
	madvise(piece->base, piece->size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	touch(piece);
	if (huge && piece->size / (clock_now() - start) < HUGE_PAGES_WORTH)
		use_huge_pages = false;
	err = register_piece(piece);
	piece->pinned = err == CUDA_SUCCESS;
	if (!piece->pinned)
		say_unpinned(err);
	return true;
}

static void empty_piece(struct piece *piece)
{
	if (piece->pinned)
		driver()->cuMemHostUnregister(piece->base);
	piece->pinned = false;
	madvise(piece->base, piece->size, MADV_DONTNEED);
}

static void mark_filled(struct hostfill *fill, size_t index)
{
	pthread_mutex_lock(&fill->mutex);
	fill->filled[index] = true;
	fill->filled_count++;
	pthread_cond_broadcast(&fill->changed);
	pthread_mutex_unlock(&fill->mutex);
}

static void mark_failed(struct hostfill *fill)
{
	pthread_mutex_lock(&fill->mutex);
	fill->failed = true;
	pthread_cond_broadcast(&fill->changed);
	pthread_mutex_unlock(&fill->mutex);
}

static void *fill_pieces(void *argument)
{
	struct hostfill *fill = argument;
	bool entered = device_enter(fill->device) == CUDA_SUCCESS;
	size_t index;

	while (!fill->failed && (index = fill->next++) < fill->count) {
		if (fill_piece(fill->pieces[index]))
			mark_filled(fill, index);
		else
			mark_failed(fill);
	}
	if (entered)
		device_leave();
	return NULL;
}

/* As many as can be had, up to `want`. */
static void start_threads(struct hostfill *fill, size_t want, void *(*run)(void *))
{
	if (want > fill->count)
		want = fill->count;
	if (want > HOSTFILL_THREADS)
		want = HOSTFILL_THREADS;
	while (fill->thread_count < want &&
		thread_create(&fill->threads[fill->thread_count], run, fill))
		fill->thread_count++;
}

static void join_threads(struct hostfill *fill)
{
	for (size_t i = 0; i < fill->thread_count; i++)
		pthread_join(fill->threads[i], NULL);
	fill->thread_count = 0;
}

bool hostfill_start(struct hostfill *fill, struct device *dev, struct piece **pieces,
	size_t count, size_t threads)
{
	fill->device = dev;
	fill->pieces = pieces;
	fill->count = count;
	fill->thread_count = 0;
	fill->next = 0;
	fill->failed = false;
	fill->filled_count = 0;
	fill->filled = calloc(count + 1, sizeof *fill->filled);
	if (!fill->filled)
		return false;
	pthread_mutex_init(&fill->mutex, NULL);
	pthread_cond_init(&fill->changed, NULL);
	start_threads(fill, threads, fill_pieces);
	if (fill->thread_count == 0)
		fill_pieces(fill);
	return true;
}

bool hostfill_wait(struct hostfill *fill, size_t index)
{
	bool filled;

	pthread_mutex_lock(&fill->mutex);
	while (!fill->filled[index] && !fill->failed)
		pthread_cond_wait(&fill->changed, &fill->mutex);
	filled = fill->filled[index];
	pthread_mutex_unlock(&fill->mutex);
	return filled;
}

bool hostfill_done(struct hostfill *fill)
{
	bool done;

	pthread_mutex_lock(&fill->mutex);
	done = fill->failed || fill->filled_count == fill->count;
	pthread_mutex_unlock(&fill->mutex);
	return done;
}

bool hostfill_finish(struct hostfill *fill)
{
	bool ok;

	join_threads(fill);
	ok = !fill->failed;
	pthread_mutex_destroy(&fill->mutex);
	pthread_cond_destroy(&fill->changed);
	free(fill->filled);
	return ok;
}

static void *empty_pieces(void *argument)
{
	struct hostfill *fill = argument;
	bool entered = device_enter(fill->device) == CUDA_SUCCESS;
	size_t index;

	while ((index = fill->next++) < fill->count)
		empty_piece(fill->pieces[index]);
	if (entered)
		device_leave();
	return NULL;
}

void hostfill_empty(
	struct device *dev, struct piece **pieces, size_t count, size_t threads)
{
	struct hostfill fill = {.device = dev, .pieces = pieces, .count = count};

	/* A few pieces are not worth a thread. */
	if (count > 2)
		start_threads(&fill, threads, empty_pieces);
	empty_pieces(&fill);
	join_threads(&fill);
}
