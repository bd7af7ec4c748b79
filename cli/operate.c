/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stayput pause, stayput resume - the same thing in two directions. All processes are asked
 * before the first answer is waited for, so that their copies run side by side.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "client.h"
#include "config.h"
#include "format.h"
#include "progress.h"

#define SHARED_HELP                                                                   \
	"Numbers are pids, other words are tags; without tags it is about every "     \
	"region.\n"                                                                   \
	"Several processes work at the same time, each all or nothing.\n"             \
	"\n"                                                                          \
	"  --all          all of your processes that have such a tag\n"               \
	"  --tag TAG      a tag, for one that looks like a number; may be repeated\n" \
	"  --no-block     fail as busy rather than wait for another operation\n"

#define SHARED_END                                                            \
	"  --json         an array of objects with pid and result or error\n" \
	"  -h, --help\n"                                                      \
	"\n"

static const char pause_help[] =
	"usage: stayput pause PID...|--all [TAG]... [OPTIONS]\n"
	"\n"
	"Gives the device memory of regions back; their addresses stay. The processes "
	"must be\n"
	"idle: work that uses paused memory is an illegal access.\n" SHARED_HELP
	"  --policy P     host, discard or zero, instead of each allocation's own\n"
	"  --check        fail as busy when a device has work in flight at that moment\n"
	"  --fail-if-held fail when another process holds some of the memory by "
	"IPC\n" SHARED_END "  stayput pause 4711 kv_cache\n"
	"  stayput pause --check 4711 4712\n"
	"  stayput pause --all kv_cache --policy discard\n";

static const char resume_help[] =
	"usage: stayput resume PID...|--all [TAG]... [OPTIONS]\n"
	"\n"
	"Puts device memory back behind paused regions, contents included.\n" SHARED_HELP
	"  --wait SECONDS how long to wait for device memory that others hold; 0: not "
	"at\n"
	"                 all; else as the process's STAYPUT_RESUME_WAIT "
	"says\n" SHARED_END "  stayput resume 4711\n"
	"  stayput resume 4711 kv_cache --wait 30\n"
	"  stayput resume --all --json\n";

static const struct option pause_options[] = {
	{"all", no_argument, NULL, 'a'},
	{"tag", required_argument, NULL, 't'},
	{"no-block", no_argument, NULL, 'b'},
	{"json", no_argument, NULL, 'j'},
	{"help", no_argument, NULL, 'h'},
	{"policy", required_argument, NULL, 'p'},
	{"check", no_argument, NULL, 'c'},
	{"fail-if-held", no_argument, NULL, 'f'},
	{0},
};

static const struct option resume_options[] = {
	{"all", no_argument, NULL, 'a'},
	{"tag", required_argument, NULL, 't'},
	{"no-block", no_argument, NULL, 'b'},
	{"json", no_argument, NULL, 'j'},
	{"help", no_argument, NULL, 'h'},
	{"wait", required_argument, NULL, 'w'},
	{0},
};

struct wish {
	bool pause, all, json;
	char **pids, **tags;
	size_t pid_count, tag_count;
	cJSON *request; /* but for the tags */
};

/* One process's part. `process` moves no more once it is set. */
enum { SILENT_MS = 10000 };

struct job {
	struct process *process;
	cJSON *outcome; /* {"pid":..,"result"|"error":..}; NULL while it runs */
	int code;
};

/* How a process's error ends the program. */
static int code_of(const cJSON *error)
{
	static const int codes[] = {[0] = FAILED,
		[-STAYPUT_ERR_INVALID] = FAILED,
		[-STAYPUT_ERR_NOT_FOUND] = NO_TAG,
		[-STAYPUT_ERR_BUSY] = BUSY,
		[-STAYPUT_ERR_DEVICE_MEMORY] = NO_DEVICE_MEMORY,
		[-STAYPUT_ERR_HOST_MEMORY] = NO_HOST_MEMORY,
		[-STAYPUT_ERR_DRIVER] = FAILED,
		[-STAYPUT_ERR_IO] = FAILED,
		[-STAYPUT_ERR_UNSUPPORTED] = UNSUPPORTED,
		[-STAYPUT_ERR_CORRUPT] = CORRUPT};
	double code = -number_of(error, "code");

	return code >= 0 && code < (double)(sizeof codes / sizeof *codes)
		       ? codes[(int)code]
		       : FAILED;
}

/* Seconds as STAYPUT_RESUME_WAIT has them. -1: cannot be read. */
static double read_seconds(const char *text)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || strspn(text, "0123456789.") != strlen(text) ||
		seconds > 86400)
		return -1;
	return seconds;
}

static int add_policy(cJSON *request, const char *policy)
{
	if (strcmp(policy, "host") != 0 && strcmp(policy, "discard") != 0 &&
		strcmp(policy, "zero") != 0)
		return say(
			USAGE, "--policy: \"%s\" is not host, discard or zero", policy);
	cJSON_AddStringToObject(request, "policy", policy);
	return -1;
}

static int add_wait(cJSON *request, const char *text)
{
	double seconds = read_seconds(text);

	if (seconds < 0)
		return say(USAGE,
			"--wait: \"%s\" is not a number of seconds from 0 to 86400",
			text);
	cJSON_AddNumberToObject(request, "wait_ms", (double)(long)(seconds * 1000 + 0.5));
	return -1;
}

static int add_tag(struct wish *wish, char *tag)
{
	if (!config_valid_tag(tag))
		return say(USAGE,
			"\"%s\" is neither a pid nor a tag (1 to 63 bytes of "
			"[A-Za-z0-9_.:-])",
			tag);
	wish->tags[wish->tag_count++] = tag;
	return -1;
}

/* -1 when all is well. */
static int take_option(struct wish *wish, int option)
{
	switch (option) {
	case 'a':
		wish->all = true;
		return -1;
	case 'b':
		cJSON_AddBoolToObject(wish->request, "block", false);
		return -1;
	case 'c':
		cJSON_AddBoolToObject(wish->request, "check", true);
		return -1;
	case 'f':
		cJSON_AddBoolToObject(wish->request, "fail_if_held", true);
		return -1;
	case 'j':
		wish->json = true;
		return -1;
	case 'p':
		return add_policy(wish->request, optarg);
	case 't':
		return add_tag(wish, optarg);
	case 'w':
		return add_wait(wish->request, optarg);
	case 'h':
		return print_help(wish->pause ? &pause_command : &resume_command);
	default:
		return USAGE;
	}
}

static int read_wish(struct wish *wish, int argc, char **argv)
{
	const struct option *options = wish->pause ? pause_options : resume_options;
	int option, code;
	long pid;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		code = take_option(wish, option);
		if (code >= 0)
			return code;
	}
	for (; optind < argc; optind++) {
		code = -1;
		if (read_whole(argv[optind], 1, INT32_MAX, &pid))
			wish->pids[wish->pid_count++] = argv[optind];
		else
			code = add_tag(wish, argv[optind]);
		if (code >= 0)
			return code;
	}
	if (wish->all && wish->pid_count)
		return say(USAGE, "--all leaves no room for pids");
	if (!wish->all && !wish->pid_count)
		return say(USAGE, "%s wants a pid, or --all; stayput ps lists them",
			wish->pause ? "pause" : "resume");
	return -1;
}

static bool has_tag(const cJSON *snapshot, const char *tag)
{
	const cJSON *region;

	cJSON_ArrayForEach(region, cJSON_GetObjectItemCaseSensitive(snapshot,
					   "regions")) if (strcmp(word_of(region, "tag"),
								   tag) == 0) return true;
	return false;
}

/* The request with the tags that are meant for a process; NULL when none is: with --all
 * those that it does not have are no error. */
static cJSON *request_for(const struct wish *wish, const cJSON *snapshot)
{
	cJSON *request = cJSON_Duplicate(wish->request, true);
	cJSON *tags = cJSON_AddArrayToObject(request, "tags");

	for (size_t i = 0; i < wish->tag_count; i++)
		if (!wish->all || has_tag(snapshot, wish->tags[i]))
			cJSON_AddItemToArray(tags, cJSON_CreateString(wish->tags[i]));
	if (cJSON_GetArraySize(tags) == 0 && wish->tag_count) {
		cJSON_Delete(request);
		return NULL;
	}
	return request;
}

static void finish(struct job *job, const char *kind, cJSON *what)
{
	job->outcome = cJSON_CreateObject();
	cJSON_AddNumberToObject(job->outcome, "pid", job->process->pid);
	cJSON_AddItemToObject(job->outcome, kind, what);
	job->code = strcmp(kind, "error") == 0 ? code_of(what) : DONE;
}

/* No answer has come and none will, or it is not waited for. */
static void finish_unanswered(struct job *job)
{
	cJSON *error = cJSON_CreateObject();

	cJSON_AddNumberToObject(error, "code", STAYPUT_ERR_IO);
	cJSON_AddStringToObject(error, "name", "IO");
	cJSON_AddStringToObject(error, "message",
		job->process->fd < 0
			? "the connection broke before the answer: the process has "
			  "ended, or does not understand version 1 of the protocol"
			: "it has not told its tags within two seconds");
	finish(job, "error", error);
}

static void take_answer(struct job *job, cJSON *answer, struct progress *progress)
{
	const cJSON *p = cJSON_GetObjectItemCaseSensitive(answer, "progress");
	static const char *const kinds[] = {"result", "error"};

	if (p) {
		progress->bytes = number_of(p, "bytes");
		progress->total = number_of(p, "total");
		progress->seconds = number_of(p, "seconds");
	}
	for (int i = 0; i < 2 && !job->outcome; i++) {
		cJSON *what = cJSON_DetachItemFromObjectCaseSensitive(answer, kinds[i]);

		if (what)
			finish(job, kinds[i], what);
	}
	cJSON_Delete(answer);
}

/* What a process has to say now. */
static void take_in(const struct wish *wish, struct job *job, struct progress *progress)
{
	cJSON *answer;

	client_fill(job->process);
	while (!job->outcome && (answer = client_next(job->process))) {
		bool told = cJSON_HasObjectItem(answer, "progress");

		take_answer(job, answer, progress);
		if (told && !progress_on_terminal())
			progress_tell(wish->pause ? "pausing" : "resuming",
				(int)job->process->pid, progress);
	}
	if (!job->outcome && job->process->fd < 0)
		finish_unanswered(job);
}

/* A server speaks ten times a second while it works. What a stopped process has been asked
 * is done when it goes on, so that is said, and not given up. */
static void tell_silent(const struct job *jobs, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!jobs[i].outcome)
			say(DONE,
				"process %d has said nothing for %d s; if it is stopped, "
				"it "
				"does what it was asked when it goes on",
				(int)jobs[i].process->pid, SILENT_MS / 1000);
}

static void wait_for_all(const struct wish *wish, struct job *jobs,
	struct progress *progress, struct pollfd *polls, size_t count)
{
	bool drawn = false, told = false;
	int spoken;

	for (;;) {
		nfds_t running = 0;

		for (size_t i = 0; i < count; i++) {
			polls[i] = (struct pollfd){.events = POLLIN,
				.fd = jobs[i].outcome ? -1 : jobs[i].process->fd};
			running += !jobs[i].outcome;
		}
		if (!running)
			break;
		spoken = poll(polls, count, told ? -1 : SILENT_MS);
		if (spoken < 0 && errno != EINTR)
			break;
		if (spoken == 0)
			tell_silent(jobs, count);
		told |= spoken == 0;
		for (size_t i = 0; i < count; i++)
			if (!jobs[i].outcome && polls[i].revents)
				take_in(wish, &jobs[i], &progress[i]);
		if (progress_on_terminal()) {
			progress_draw(
				wish->pause ? "pausing" : "resuming", progress, count);
			drawn = true;
		}
	}
	if (drawn)
		progress_clear();
}

static void print_done(const struct wish *wish, const struct job *job)
{
	const cJSON *result = cJSON_GetObjectItemCaseSensitive(job->outcome, "result");
	const cJSON *total = cJSON_GetObjectItemCaseSensitive(result, "total");
	double moved =
		number_of(total, wish->pause ? "bytes_released" : "bytes_restored");
	double copied = number_of(total, "bytes_copied");
	double unchanged = number_of(total, "bytes_unchanged");
	double held = number_of(total, "bytes_held");
	double ordered = number_of(result, "bytes_stream_ordered");
	char text[6][40];

	printf("%d %s: %s %s in %s", (int)job->process->pid,
		wish->pause ? "paused" : "resumed",
		bytes_text(moved, text[0], sizeof text[0]),
		wish->pause ? "given back" : "taken again",
		seconds_text(number_of(result, "seconds"), text[1], sizeof text[1]));
	if (copied > 0)
		printf(", %s copied at %.1f GB/s",
			bytes_text(copied, text[2], sizeof text[2]),
			number_of(total, "copied_per_second") / 1e9);
	if (unchanged > 0)
		printf(", %s unchanged", bytes_text(unchanged, text[3], sizeof text[3]));
	if (held > 0)
		printf(", %s left as it was, since other processes hold it",
			bytes_text(held, text[4], sizeof text[4]));
	if (ordered > 0 && wish->pause)
		printf(", %s of stream-ordered memory stays",
			bytes_text(ordered, text[5], sizeof text[5]));
	printf("\n");
}

/* One code for all: theirs when it is the same for each, PARTLY when some did as asked. */
static int common_code(const struct job *jobs, size_t count, size_t missing)
{
	int code = missing ? NO_PROCESS : jobs[0].code;
	size_t good = 0;

	for (size_t i = 0; i < count; i++) {
		good += jobs[i].code == DONE;
		if (jobs[i].code != code)
			code = FAILED;
	}
	if (good == count && !missing)
		return DONE;
	return good ? PARTLY : code;
}

static void print_outcomes(const struct wish *wish, struct job *jobs, size_t count)
{
	cJSON *all = cJSON_CreateArray();

	for (size_t i = 0; i < count; i++) {
		const cJSON *error =
			cJSON_GetObjectItemCaseSensitive(jobs[i].outcome, "error");

		if (error)
			say(jobs[i].code, "%s of %d failed: %s",
				wish->pause ? "pause" : "resume",
				(int)jobs[i].process->pid, word_of(error, "message"));
		else if (!wish->json)
			print_done(wish, &jobs[i]);
		cJSON_AddItemToArray(all, jobs[i].outcome);
	}
	if (wish->json)
		print_json(all);
	else
		cJSON_Delete(all);
}

/* False when a process has nothing to do with it. */
static bool begin(const struct wish *wish, struct job *job, struct process *process,
	const cJSON *snapshot)
{
	cJSON *request;

	job->process = process;
	if (wish->all && wish->tag_count && !snapshot) {
		finish_unanswered(job);
		return true;
	}
	request = request_for(wish, snapshot);
	if (!request)
		return false;
	if (!client_send(process, request))
		finish_unanswered(job);
	cJSON_Delete(request);
	return true;
}

/* Returns how many jobs there are. */
static size_t begin_all(
	const struct wish *wish, struct job *jobs, struct processes *found)
{
	cJSON **snapshots = need(calloc(found->count, sizeof *snapshots));
	size_t count = 0;

	if (wish->all && wish->tag_count)
		client_show(found->list, found->count, snapshots);
	for (size_t i = 0; i < found->count; i++) {
		count += begin(wish, &jobs[count], &found->list[i], snapshots[i]);
		cJSON_Delete(snapshots[i]);
	}
	free(snapshots);
	return count;
}

static int operate_on(const struct wish *wish, struct processes *found, size_t missing)
{
	struct job *jobs = calloc(found->count, sizeof *jobs);
	struct progress *progress = calloc(found->count, sizeof *progress);
	struct pollfd *polls = calloc(found->count, sizeof *polls);
	size_t count = 0;
	int code;

	if (jobs && progress && polls)
		count = begin_all(wish, jobs, found);
	if (jobs && progress && polls && count) {
		wait_for_all(wish, jobs, progress, polls, count);
		print_outcomes(wish, jobs, count);
		code = common_code(jobs, count, missing);
	} else if (!jobs || !progress || !polls) {
		code = say(NO_HOST_MEMORY, "no memory for %zu processes", found->count);
	} else {
		code = say(NO_TAG, "none of %zu processes has a region of that tag",
			found->count);
	}
	free(jobs);
	free(progress);
	free(polls);
	return code;
}

static int operate(bool pause, int argc, char **argv)
{
	struct wish wish = {.pause = pause,
		.pids = calloc(argc, sizeof(char *)),
		.tags = calloc(argc, sizeof(char *)),
		.request = client_request(pause ? "pause" : "resume")};
	struct processes found = {0};
	size_t missing;
	int code = wish.pids && wish.tags ? read_wish(&wish, argc, argv) : FAILED;

	if (code < 0) {
		client_choose(&found, wish.pids, wish.pid_count, wish.all, &missing);
		if (found.count)
			code = operate_on(&wish, &found, missing);
		else
			code = missing ? NO_PROCESS
				       : say(NO_PROCESS, "no process is under stayput");
		if (!found.count && wish.json)
			print_json(cJSON_CreateArray());
	}
	client_free(&found);
	cJSON_Delete(wish.request);
	free(wish.pids);
	free(wish.tags);
	return code;
}

static int pause_them(int argc, char **argv)
{
	return operate(true, argc, argv);
}

static int resume_them(int argc, char **argv)
{
	return operate(false, argc, argv);
}

const struct command pause_command = {
	"pause", pause_them, "give device memory of processes back", pause_help};
const struct command resume_command = {
	"resume", resume_them, "put it back, contents included", resume_help};
