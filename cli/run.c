/* SPDX-License-Identifier: Apache-2.0 */
/* stayput run - a command with the library preloaded and the environment set. */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "cli.h"
#include "config.h"
#include "preload.h"

extern char **environ;

static const char help[] =
	"usage: stayput run [OPTIONS] -- COMMAND [ARGUMENTS]\n"
	"\n"
	"Runs COMMAND with libstayput.so added to LD_PRELOAD. Options set the variables "
	"that\n"
	"they are named after; what is not given stays as the environment has it.\n"
	"\n"
	"  --regions LIST     which tags may be released, and how: "
	"kv_cache=discard,*=host\n"
	"  --default TAG      tag for allocations outside any region\n"
	"  --rules LIST       tags by property: "
	"\"kv_cache:size>=1GiB;weights:module=libggml\"\n"
	"  --exclude LIST     callers whose allocations stay native; +x adds to the "
	"default\n"
	"  --deep             libstayput-deep.so instead: static runtimes, lookups by "
	"name\n"
	"  --host-limit SIZE  most host memory for backups: 64GiB, 50%\n"
	"  --host-keep SIZE   how much of it stays pinned after a resume: 64GiB, all, 0\n"
	"  --wait SECONDS     how long a resume waits for device memory\n"
	"  --log LEVEL        error, warn, info or debug\n"
	"  --no-control       do not listen for this program\n"
	"  --control PATH     listen there\n"
	"  --dry-run          print what would be set and run, as shell text\n"
	"  -h, --help\n"
	"\n"
	"  stayput run --default engine -- python3 serve.py\n"
	"  stayput run --deep --regions kv_cache=discard,weights=host -- ./engine --port "
	"8000\n"
	"  eval \"$(stayput run --dry-run --default engine)\"    # for this shell's "
	"programs\n";

/* Options that set a variable, in the order of `options`. */
static const struct option options[] = {
	{"regions", required_argument, NULL, 0},
	{"default", required_argument, NULL, 0},
	{"rules", required_argument, NULL, 0},
	{"exclude", required_argument, NULL, 0},
	{"host-limit", required_argument, NULL, 0},
	{"host-keep", required_argument, NULL, 0},
	{"wait", required_argument, NULL, 0},
	{"log", required_argument, NULL, 0},
	{"control", required_argument, NULL, 0},
	{"no-control", no_argument, NULL, 'n'},
	{"deep", no_argument, NULL, 'd'},
	{"dry-run", no_argument, NULL, 'p'},
	{"help", no_argument, NULL, 'h'},
	{0},
};

static const char *const variables[] = {
	"STAYPUT_REGIONS",
	"STAYPUT_DEFAULT",
	"STAYPUT_RULES",
	"STAYPUT_EXCLUDE",
	"STAYPUT_HOST_LIMIT",
	"STAYPUT_HOST_KEEP",
	"STAYPUT_RESUME_WAIT",
	"STAYPUT_LOG",
	"STAYPUT_CONTROL",
};

enum { VARIABLES = sizeof variables / sizeof *variables, CONTROL = VARIABLES - 1 };

/* Of a socket's address, for its path and NUL. */
#define PATH_ROOM sizeof(((struct sockaddr_un *)NULL)->sun_path)

struct settings {
	const char *value[VARIABLES]; /* NULL: not given */
	char *preload;
	bool deep, dry_run;
};

/* config_read() asks by name and has no argument to pass on. */
static const char *checked_name, *checked_value;

static const char *get_checked(const char *name)
{
	return strcmp(name, checked_name) == 0 ? checked_value : NULL;
}

/* The library's own reader judges, in its own words but for what it would use instead. */
static bool check(int index, const char *value)
{
	char complaint[2048] = "", *text = complaint, *instead = NULL;
	struct config config;

	checked_name = variables[index];
	checked_value = value;
	config_read(&config, get_checked, complaint, sizeof complaint);
	free(config.rules);
	if (!*value) {
		say(USAGE, "--%s wants a value", options[index].name);
		return false;
	}
	if (index == CONTROL && strlen(value) >= PATH_ROOM) {
		say(USAGE, "--control: the path has %zu bytes and may have %zu",
			strlen(value), PATH_ROOM - 1);
		return false;
	}
	if (!*complaint)
		return true;
	complaint[strcspn(complaint, "\n")] = '\0';
	for (char *p = complaint; (p = strstr(p, "; using ")); p++)
		instead = p;
	if (instead)
		*instead = '\0';
	if (strncmp(text, checked_name, strlen(checked_name)) == 0)
		text += strlen(checked_name);
	say(USAGE, "--%s%s", options[index].name, text);
	return false;
}

/* -1 when the command is to go on. */
static int read_options(struct settings *s, int argc, char **argv)
{
	int option, index;

	while ((option = getopt_long(argc, argv, "+h", options, &index)) != -1) {
		switch (option) {
		case 0:
			if (!check(index, optarg))
				return USAGE;
			s->value[index] = optarg;
			break;
		case 'n':
			s->value[CONTROL] = "0";
			break;
		case 'd':
			s->deep = true;
			break;
		case 'p':
			s->dry_run = true;
			break;
		case 'h':
			return print_help(&run_command);
		default:
			return USAGE;
		}
	}
	if (optind == argc && !s->dry_run)
		return say(
			USAGE, "run wants a command: stayput run [OPTIONS] -- COMMAND");
	return -1;
}

/* A word as the shell reads it back. */
static void print_word(const char *word)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				    "0123456789_.,:/=+%@-";

	if (*word && !word[strspn(word, plain)]) {
		fputs(word, stdout);
		return;
	}
	putchar('\'');
	for (; *word; word++)
		if (*word == '\'')
			fputs("'\\''", stdout);
		else
			putchar(*word);
	putchar('\'');
}

static void print_export(const char *name, const char *value)
{
	printf("export %s=", name);
	print_word(value);
	putchar('\n');
}

static void print_settings(const struct settings *s, char **command)
{
	print_export("LD_PRELOAD", s->preload);
	for (int i = 0; i < VARIABLES; i++)
		if (s->value[i])
			print_export(variables[i], s->value[i]);
	if (!*command)
		return;
	fputs("exec", stdout);
	for (; *command; command++) {
		putchar(' ');
		print_word(*command);
	}
	putchar('\n');
}

static int run(int argc, char **argv)
{
	struct settings s = {0};
	const char *preload = getenv("LD_PRELOAD");
	char library[PATH_MAX + 64];
	int code = read_options(&s, argc, argv);

	if (code >= 0)
		return code;
	if (s.deep && preload_has_tms(preload))
		return say(USAGE, "--deep: LD_PRELOAD has libstayput-tms.so, of which "
				  "there is no deep "
				  "one");
	if (!preload_find(s.deep, library, sizeof library))
		return FAILED;
	s.preload = preload_list(preload, library);
	if (!s.preload)
		return say(NO_HOST_MEMORY, "no memory for LD_PRELOAD");
	if (!s.value[CONTROL] && !getenv(variables[CONTROL]))
		s.value[CONTROL] = "1";
	if (s.dry_run) {
		print_settings(&s, argv + optind);
		free(s.preload);
		return DONE;
	}
	setenv("LD_PRELOAD", s.preload, 1);
	for (int i = 0; i < VARIABLES; i++)
		if (s.value[i])
			setenv(variables[i], s.value[i], 1);
	free(s.preload);
	return execute(argv + optind);
}

const struct command run_command = {
	"run", run, "run a command with the library preloaded", help};
