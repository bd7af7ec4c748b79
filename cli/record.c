/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stayput record - memory over time, as CSV. A process that does not answer for a while
 * holds nothing up: what NVML sees is written at each step, answers when they come.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "client.h"
#include "clock.h"
#include "gpu.h"

static const char help[] =
	"usage: stayput record --out FILE [--interval-ms N] PID...\n"
	"       stayput record --out FILE [--interval-ms N] -- COMMAND [ARGUMENTS]\n"
	"\n"
	"Writes what memory regions and GPUs have in use, step by step, until the "
	"processes end\n"
	"or ^C. Of COMMAND all processes are recorded that it starts and that are under\n"
	"stayput; the exit code is COMMAND's.\n"
	"\n"
	"  --out FILE         CSV; - is standard output\n"
	"  --interval-ms N    10 to 1000 (default 100)\n"
	"  -h, --help\n"
	"\n"
	"Columns: seconds (since the start), pid, source, name, state, bytes_active,\n"
	"bytes_paused, bytes_kept, bytes_device, bytes_backup. Sources are region (name: "
	"its\n"
	"tag), host (of backups, all regions), process (device memory of the process on "
	"GPU\n"
	"name, by NVML) and gpu (of all processes there, by NVML).\n"
	"\n"
	"  stayput record --out memory.csv 4711\n"
	"  stayput record --out memory.csv -- stayput run --default engine -- python3 "
	"serve.py\n";

enum { FIND_MS = 200 };

struct recorder {
	FILE *out;
	const char *path;
	long interval_ms;
	double start;
	pid_t child; /* 0: there are pids instead */
	char **pids;
	size_t pid_count;
	struct processes found;
	bool *asked; /* by index: an answer is on its way */
};

static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
	stop = signal;
}

/* Of a process: false when it has gone, or is dead and only waits to be reaped, which in a
 * container may take for ever. */
static bool is_alive(pid_t pid, pid_t *parent)
{
	char path[64], text[512], *end;
	int threads = 0;
	FILE *file;
	char state;
	size_t n;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	n = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[n] = '\0';
	/* The name before may hold anything but ends with the last parenthesis. */
	end = strrchr(text, ')');
	if (!end || sscanf(end + 1,
			    " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			    "%*s %*s %d",
			    &state, parent, &threads) != 3)
		return false;
	/* Where main() has ended by itself, threads may go on. */
	return state != 'Z' || threads > 1;
}

static bool is_wanted(const struct recorder *r, pid_t pid)
{
	for (size_t i = 0; i < r->pid_count; i++)
		if (strtol(r->pids[i], NULL, 10) == pid)
			return true;
	while (r->child && pid > 1 && pid != r->child)
		if (!is_alive(pid, &pid))
			return false;
	return r->child && pid == r->child;
}

/* Takes up what listens by now. Those that are not wanted are not kept connected. */
static bool look_around(struct recorder *r)
{
	size_t before = r->found.count;
	bool *grown;

	client_find(&r->found);
	for (size_t i = r->found.count; i-- > before;)
		if (!is_wanted(r, r->found.list[i].pid))
			client_drop(&r->found, i);
	grown = realloc(r->asked, (r->found.count + 1) * sizeof *grown);
	if (!grown)
		return false;
	r->asked = grown;
	for (size_t i = before; i < r->found.count; i++)
		r->asked[i] = false;
	return true;
}

static void forget(struct recorder *r, size_t i)
{
	client_drop(&r->found, i);
	memmove(r->asked + i, r->asked + i + 1, (r->found.count - i) * sizeof *r->asked);
}

static void write_snapshot(struct recorder *r, pid_t pid, const cJSON *snapshot)
{
	double seconds = clock_now() - r->start;
	const cJSON *g;

	cJSON_ArrayForEach(g, cJSON_GetObjectItemCaseSensitive(snapshot, "regions"))
		fprintf(r->out, "%.4f,%d,region,%s,%s,%.0f,%.0f,%.0f,%.0f,%.0f\n",
			seconds, (int)pid, word_of(g, "tag"), word_of(g, "state"),
			number_of(g, "bytes_active"), number_of(g, "bytes_paused"),
			number_of(g, "bytes_kept"), number_of(g, "bytes_device"),
			number_of(g, "bytes_backup"));
	fprintf(r->out, "%.4f,%d,host,,,,,,,%.0f\n", seconds, (int)pid,
		number_of(snapshot, "host_bytes"));
}

static void write_gpus(struct recorder *r)
{
	double seconds = clock_now() - r->start, bytes, total;

	for (unsigned g = 0; g < gpu_count(); g++) {
		if (gpu_memory(g, &bytes, &total))
			fprintf(r->out, "%.4f,,gpu,%u,,,,,%.0f,\n", seconds, g, bytes);
		for (size_t i = 0; i < r->found.count; i++)
			if (gpu_process_memory(g, r->found.list[i].pid, &bytes))
				fprintf(r->out, "%.4f,%d,process,%u,,,,,%.0f,\n", seconds,
					(int)r->found.list[i].pid, g, bytes);
	}
}

static void take_answers(struct recorder *r)
{
	for (size_t i = r->found.count; i-- > 0;) {
		cJSON *answer;

		client_fill(&r->found.list[i]);
		while ((answer = client_next(&r->found.list[i]))) {
			const cJSON *result =
				cJSON_GetObjectItemCaseSensitive(answer, "result");

			if (result)
				write_snapshot(r, r->found.list[i].pid, result);
			r->asked[i] = false;
			cJSON_Delete(answer);
		}
		if (r->found.list[i].fd < 0)
			forget(r, i);
	}
}

/* Asks those that owe no answer. */
static void ask(struct recorder *r)
{
	cJSON *request = client_request("show");

	for (size_t i = r->found.count; i-- > 0;) {
		if (r->asked[i])
			continue;
		r->asked[i] = client_send(&r->found.list[i], request);
		if (!r->asked[i])
			forget(r, i);
	}
	cJSON_Delete(request);
}

/* Takes answers as they come until `until`, on clock_now(). */
static void wait_until(struct recorder *r, double until)
{
	struct pollfd *polls = calloc(r->found.count + 1, sizeof *polls);
	double left;

	while (polls && (left = until - clock_now()) > 0 && (r->child || !stop)) {
		for (size_t i = 0; i < r->found.count; i++)
			polls[i] = (struct pollfd){
				.fd = r->found.list[i].fd, .events = POLLIN};
		poll(polls, r->found.count, (int)(left * 1000) + 1);
		take_answers(r);
	}
	free(polls);
}

/* True while what is recorded goes on; the child's exit code once it has ended. */
static bool goes_on(struct recorder *r, int *code)
{
	bool alive = false;
	pid_t parent;
	int status;

	if (!r->child) {
		for (size_t i = 0; i < r->pid_count && !alive; i++)
			alive = is_alive((pid_t)strtol(r->pids[i], NULL, 10), &parent);
		return alive && !stop;
	}
	if (stop == SIGTERM) { /* ^C has reached it already */
		kill(r->child, SIGTERM);
		stop = 0;
	}
	if (waitpid(r->child, &status, WNOHANG) != r->child)
		return true;
	*code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	return false;
}

static int record_all(struct recorder *r)
{
	double next = clock_now(), find_at = next;
	int code = DONE;

	r->start = next;
	fputs("seconds,pid,source,name,state,bytes_active,bytes_paused,bytes_kept,"
	      "bytes_device,bytes_backup\n",
		r->out);
	while (goes_on(r, &code) && !ferror(r->out)) {
		if (clock_now() >= find_at) {
			if (!look_around(r))
				return say(
					NO_HOST_MEMORY, "no memory for another process");
			find_at = clock_now() + FIND_MS / 1000.0;
		}
		ask(r);
		write_gpus(r);
		fflush(r->out);
		next += r->interval_ms / 1000.0;
		if (next < clock_now())
			next = clock_now(); /* steps that were missed are not made up */
		wait_until(r, next);
	}
	client_free(&r->found);
	free(r->asked);
	if (ferror(r->out) || fflush(r->out) != 0)
		return say(FAILED, "%s cannot be written: %s", r->path, strerror(errno));
	return code;
}

/* -1 without one, which has been said. */
static pid_t start_child(char **argv)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(execute(argv));
	if (pid < 0)
		say(FAILED, "no process can be started: %s", strerror(errno));
	return pid;
}

/* With a command it is that one's end that counts, which may take until after ^C. */
static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static int check_pids(struct recorder *r)
{
	size_t missing;

	if (!client_pids("record", r->pids, (int)r->pid_count))
		return USAGE;
	client_choose(&r->found, r->pids, r->pid_count, false, &missing);
	client_free(&r->found);
	return missing ? NO_PROCESS : -1;
}

/* -1 when all is well. Words after "--" are a command, others pids. */
static int read_options(struct recorder *r, int argc, char **argv)
{
	static const struct option options[] = {{"out", required_argument, NULL, 'o'},
		{"interval-ms", required_argument, NULL, 'i'},
		{"help", no_argument, NULL, 'h'}, {0}};
	int option;

	while ((option = getopt_long(argc, argv, "+ho:", options, NULL)) != -1) {
		if (option == 'h')
			return print_help(&record_command);
		if (option == 'o')
			r->path = optarg;
		else if (option != 'i')
			return USAGE;
		else if (!read_whole(optarg, 10, 1000, &r->interval_ms))
			return say(USAGE,
				"--interval-ms: \"%s\" is not a number from 10 to 1000",
				optarg);
	}
	if (!r->path)
		return say(USAGE, "record wants --out FILE");
	if (optind == argc)
		return say(USAGE, "record wants a pid, or -- and a command");
	if (strcmp(argv[optind - 1], "--") == 0)
		return -1;
	r->pids = argv + optind;
	r->pid_count = argc - optind;
	return check_pids(r);
}

static int record(int argc, char **argv)
{
	struct recorder r = {.interval_ms = 100};
	int code = read_options(&r, argc, argv);

	if (code >= 0)
		return code;
	r.out = strcmp(r.path, "-") == 0 ? stdout : fopen(r.path, "we");
	if (!r.out)
		return say(FAILED, "%s cannot be written: %s", r.path, strerror(errno));
	if (!r.pids)
		r.child = start_child(argv + optind);
	if (r.child < 0)
		return FAILED;
	catch_signals();
	code = record_all(&r);
	if (r.out != stdout && fclose(r.out) != 0)
		return say(FAILED, "%s cannot be written: %s", r.path, strerror(errno));
	return code;
}

const struct command record_command = {
	"record", record, "memory over time, as CSV", help};
