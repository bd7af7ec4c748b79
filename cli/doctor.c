/* SPDX-License-Identifier: Apache-2.0 */
/* stayput doctor - whether this machine has what a pause and a resume need. */
#include "doctor.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "format.h"
#include "gpu.h"
#include "preload.h"

static const char help[] =
	"usage: stayput doctor [--no-link] [--json]\n"
	"\n"
	"Looks at driver, devices, host memory and limits, whether the preload takes "
	"effect, and\n"
	"how fast pinned memory is copied each way (for which it takes 1 GiB of each "
	"device for\n"
	"a second, and a context). Exit code 0 when nothing is bad, else 1.\n"
	"\n"
	"  --no-link    no copies, no context\n"
	"  --json       an array of objects with level, what, text and advice\n"
	"  -h, --help\n"
	"\n"
	"  stayput doctor\n"
	"  stayput doctor --json | jq '.[] | select(.level != \"good\")'\n";

static const char *const level_names[] = {"good", "warning", "bad"};

struct doctor {
	cJSON *findings; /* NULL: they are printed as they come */
	bool bad;
};

void doctor_note(struct doctor *doctor, enum level level, const char *what,
	const char *advice, const char *format, ...)
{
	char text[1024];
	va_list args;
	cJSON *object;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	doctor->bad |= level == BAD;
	if (!doctor->findings) {
		printf("%-8s %s: %s\n", level_names[level], what, text);
		if (advice)
			printf("%-8s   %s\n", "", advice);
		fflush(stdout);
		return;
	}
	object = cJSON_CreateObject();
	cJSON_AddStringToObject(object, "level", level_names[level]);
	cJSON_AddStringToObject(object, "what", what);
	cJSON_AddStringToObject(object, "text", text);
	if (advice)
		cJSON_AddStringToObject(object, "advice", advice);
	cJSON_AddItemToArray(doctor->findings, object);
}

int doctor_child(void)
{
	return dlsym(RTLD_DEFAULT, "stayput_version") ? DONE : FAILED;
}

/* The exit code of this program as a child with the library preloaded; -1: none. */
static int run_child(const char *library)
{
	const char *old = getenv("LD_PRELOAD");
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		char *list = preload_list(old, library);
		int null = open("/dev/null", O_WRONLY);

		dup2(null, STDERR_FILENO); /* the loader's complaints are told in ours */
		if (list)
			setenv("LD_PRELOAD", list, 1);
		execl("/proc/self/exe", "stayput", DOCTOR_CHILD, (char *)NULL);
		_exit(NO_COMMAND);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

static void check_preload(struct doctor *doctor, bool deep)
{
	const char *what = deep ? "preload, deep" : "preload";
	char path[PATH_MAX + 64];

	if (!preload_find(deep, path, sizeof path))
		doctor_note(doctor, BAD, what,
			"build it with make, or keep program and library together",
			"the library was not found beside this program");
	else if (run_child(path) != DONE)
		doctor_note(doctor, BAD, what,
			"ldd on the library says what it lacks; its architecture and "
			"libc "
			"must be this program's",
			"a child does not have %s", path);
	else
		doctor_note(doctor, GOOD, what, NULL, "a child has %s", path);
}

static void check_nvml(struct doctor *doctor)
{
	char version[96];

	if (!gpu_open())
		doctor_note(doctor, WARNING, "NVML",
			"record and top lack what the GPUs say; in a container the "
			"\"utility\" capability of the driver brings it",
			"libnvidia-ml.so.1 cannot be opened");
	else if (gpu_driver_version(version, sizeof version))
		doctor_note(doctor, GOOD, "NVML", NULL, "GPUs: %u, driver %s",
			gpu_count(), version);
	else
		doctor_note(doctor, GOOD, "NVML", NULL, "GPUs: %u", gpu_count());
}

static int doctor(int argc, char **argv)
{
	static const struct option options[] = {{"no-link", no_argument, NULL, 'n'},
		{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
	struct doctor doctor = {0};
	bool link = true, json = false;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 'h')
			return print_help(&doctor_command);
		if (option == '?')
			return USAGE;
		link &= option != 'n';
		json |= option == 'j';
	}
	if (optind < argc)
		return say(USAGE, "doctor takes no arguments");
	if (json)
		doctor.findings = cJSON_CreateArray();
	/* Before CUDA is used here: a child of a process that did has to exec, but why
	 * rely on it. */
	check_preload(&doctor, false);
	check_preload(&doctor, true);
	check_nvml(&doctor);
	doctor_check_host(&doctor, doctor_check_devices(&doctor, link));
	if (json)
		print_json(doctor.findings);
	return doctor.bad ? FAILED : DONE;
}

const struct command doctor_command = {
	"doctor", doctor, "whether this machine has what is needed", help};
