/* SPDX-License-Identifier: Apache-2.0 */
#include "history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "error.h"
#include "lock.h"
#include "operation.h"
#include "region.h"
#include "report.h"

/* What an operation is about. Regions are never removed, so pointers to them will do. */
struct subject {
	const char *verb;
	pid_t by;
	double start;
	uint64_t done, total;
	struct region **regions;
	size_t region_count;
};

struct outcome {
	struct subject subject; /* its verb is NULL before the first */
	int err;
	char sentence[WORK_SENTENCE];
	double at; /* seconds since 1970 */
	struct stayput_report report;
};

static struct operation *running;
static struct outcome last;

void history_begin_locked(struct operation *op)
{
	op->next = running;
	running = op;
}

void history_end_locked(struct operation *op)
{
	struct operation **at = &running;

	while (*at != op)
		at = &(*at)->next;
	*at = op->next;
}

void history_forget_locked(void)
{
	running = NULL;
}

static struct region **copy_regions(struct region *const *regions, size_t count)
{
	struct region **copy = calloc(count + 1, sizeof *copy);

	if (copy && count)
		memcpy(copy, regions, count * sizeof *copy);
	return copy;
}

/* False without memory. */
static bool describe(const struct operation *op, struct subject *s)
{
	*s = (struct subject){
		.verb = op->verb,
		.by = op->asker->pid,
		.start = op->start,
		.done = atomic_load_explicit(&op->asker->done, memory_order_relaxed),
		.total = atomic_load_explicit(&op->asker->total, memory_order_relaxed),
		.regions = copy_regions(op->regions, op->region_count),
		.region_count = op->region_count,
	};
	return s->regions != NULL;
}

static double now_since_1970(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

void history_note(
	const struct operation *op, int err, const struct stayput_report *report)
{
	struct outcome *fresh = calloc(1, sizeof *fresh);
	struct region **old;

	if (!fresh || !describe(op, &fresh->subject)) {
		free(fresh);
		return;
	}
	fresh->err = err;
	if (err != STAYPUT_OK)
		error_save(fresh->sentence, sizeof fresh->sentence);
	fresh->at = now_since_1970();
	fresh->report = *report;
	lock_take();
	old = last.subject.regions;
	last = *fresh;
	lock_drop();
	free(old);
	free(fresh);
}

static void write_subject(struct json *j, const struct subject *s)
{
	json_add(j, "\"do\":\"%s\",\"tags\":[", s->verb);
	for (size_t i = 0; i < s->region_count; i++)
		json_add(j, "%s\"%s\"", i ? "," : "", s->regions[i]->tag);
	json_add(j, "],\"by\":%d,", (int)s->by);
}

/* Copies all, so that nothing is formatted under the lock. NULL without memory. */
static struct subject *copy_running(size_t *count)
{
	struct subject *list;
	size_t n = 0;

	lock_take();
	for (const struct operation *op = running; op; op = op->next)
		n++;
	list = calloc(n + 1, sizeof *list);
	n = 0;
	for (const struct operation *op = running; op && list; op = op->next)
		n += describe(op, &list[n]);
	lock_drop();
	*count = n;
	return list;
}

static void write_running(struct json *j)
{
	size_t count;
	struct subject *list = copy_running(&count);

	json_add(j, "\"running\":[");
	for (size_t i = 0; i < count; i++) {
		json_add(j, "%s{", i ? "," : "");
		write_subject(j, &list[i]);
		json_add(j, "\"bytes\":%llu,\"total\":%llu,\"seconds\":",
			(unsigned long long)list[i].done,
			(unsigned long long)list[i].total);
		json_decimal(j, clock_now() - list[i].start);
		json_add(j, "}");
		free(list[i].regions);
	}
	json_add(j, "]");
	free(list);
}

/* False when there is none, or no memory. */
static bool copy_last(struct outcome *o)
{
	lock_take();
	*o = last;
	if (o->subject.verb)
		o->subject.regions =
			copy_regions(last.subject.regions, last.subject.region_count);
	lock_drop();
	return o->subject.verb && o->subject.regions;
}

static void write_last(struct json *j)
{
	struct outcome *o = malloc(sizeof *o);

	if (o && copy_last(o)) {
		json_add(j, "{");
		write_subject(j, &o->subject);
		report_write_code(j, o->err, o->sentence);
		json_add(j, ",\"at\":");
		json_decimal(j, o->at);
		json_add(j, ",\"report\":");
		report_write(j, &o->report);
		json_add(j, "}");
		free(o->subject.regions);
	} else {
		json_add(j, "null");
	}
	free(o);
}

void history_write(struct json *j)
{
	write_running(j);
	json_add(j, ",\"last\":");
	write_last(j);
}
