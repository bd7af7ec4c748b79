/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of the program `stayput`, and how each of them ends. A command gets its own
 * name as argv[0] ("stayput ps", for getopt's complaints), prints data on standard output
 * and one sentence on standard error for what went wrong, and returns an exit code.
 */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>

/* Told to users in docs/stayput.1; numbers never change their meaning. */
enum exit_code {
	DONE = 0,
	FAILED = 1,     /* the driver, a file or a socket refused; doctor: bad */
	USAGE = 2,      /* the command line cannot be understood */
	NO_PROCESS = 3, /* no such process, or it does not listen */
	BUSY = 4,       /* another operation, a capture, or work in flight */
	NO_DEVICE_MEMORY = 5,
	NO_HOST_MEMORY = 6,
	PARTLY = 7,       /* some of several processes did as asked */
	NO_TAG = 8,       /* no region has that tag */
	CORRUPT = 9,      /* contents differ from what was saved */
	UNSUPPORTED = 10, /* not on this device, or not in this process */
	CANNOT_RUN = 126, /* run, record: the command is no program */
	NO_COMMAND = 127, /* run, record: the command was not found */
};

struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary; /* one line for `stayput --help` */
	const char *help;    /* what `stayput NAME --help` prints */
};

extern const struct command run_command, ps_command, show_command, pause_command,
	resume_command, top_command, record_command, doctor_command, metrics_command;

/* "stayput: " and the sentence on standard error. Returns `code`. */
int say(enum exit_code code, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* For `--help`: prints the command's help and returns DONE. */
int print_help(const struct command *command);

/* Executes argv[0] as the shell would find it. Returns only when that failed, having said
 * why, with CANNOT_RUN or NO_COMMAND. */
int execute(char **argv);

/* Reads a whole number from `min` to `max`, digits alone. */
bool read_whole(const char *text, long min, long max, long *value);

/* `--json`, where a command has only that and `--help`: false when it is to return
 * *code at once. The words left begin at optind. */
bool plain_options(
	const struct command *command, int argc, char **argv, bool *json, int *code);

#endif
