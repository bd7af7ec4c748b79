/* SPDX-License-Identifier: Apache-2.0 */
/* stayput - see and steer processes that run under libstayput.so. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "stayput.h"

static const struct command *const commands[] = {&run_command, &ps_command, &show_command,
	&pause_command, &resume_command, &top_command, &record_command, &metrics_command,
	&doctor_command};

enum { COMMANDS = sizeof commands / sizeof *commands };

int say(enum exit_code code, const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fputs("stayput: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return code;
}

int print_help(const struct command *command)
{
	fputs(command->help, stdout);
	return DONE;
}

int execute(char **argv)
{
	execvp(argv[0], argv);
	return say(errno == ENOENT ? NO_COMMAND : CANNOT_RUN, "%s cannot be run: %s",
		argv[0], strerror(errno));
}

bool read_whole(const char *text, long min, long max, long *value)
{
	long n = 0;

	for (const char *p = text; *p; p++)
		if (*p < '0' || *p > '9' || n > max || p - text > 18)
			return false;
		else
			n = n * 10 + (*p - '0');
	if (!*text || n < min || n > max)
		return false;
	*value = n;
	return true;
}

bool plain_options(
	const struct command *command, int argc, char **argv, bool *json, int *code)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
	int option;

	*code = USAGE;
	*json = false;
	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h')
			*code = print_help(command);
		if (option != 'j')
			return false;
		*json = true;
	}
	return true;
}

static void print_overview(FILE *out)
{
	fputs("usage: stayput COMMAND [OPTIONS] [ARGUMENTS]\n\n", out);
	for (int i = 0; i < COMMANDS; i++)
		fprintf(out, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
	fputs("\n`stayput COMMAND --help` has options and examples, stayput(1) all of "
	      "it.\n",
		out);
}

static const struct command *find(const char *name)
{
	for (int i = 0; i < COMMANDS; i++)
		if (strcmp(name, commands[i]->name) == 0)
			return commands[i];
	return NULL;
}

static int dispatch(const struct command *command, int argc, char **argv)
{
	char name[64];
	int code;

	snprintf(name, sizeof name, "stayput %s", command->name);
	argv[0] = name;
	code = command->run(argc, argv);
	if (fflush(stdout) != 0 || ferror(stdout))
		return say(
			FAILED, "standard output cannot be written: %s", strerror(errno));
	return code;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	const struct command *command;

	if (strcmp(name, DOCTOR_CHILD) == 0)
		return doctor_child();
	if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
		return printf("stayput %s\n", STAYPUT_VERSION) < 0;
	if (strcmp(name, "help") == 0 && argc > 2 && find(argv[2]))
		return print_help(find(argv[2]));
	if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 ||
		strcmp(name, "help") == 0) {
		print_overview(stdout);
		return DONE;
	}
	if (argc < 2) {
		print_overview(stderr);
		return USAGE;
	}
	command = find(name);
	if (!command)
		return say(USAGE, "there is no command \"%s\"; stayput --help lists them",
			name);
	return dispatch(command, argc - 1, argv + 1);
}
