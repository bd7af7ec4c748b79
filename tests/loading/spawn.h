/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs programs with chosen preloads and tells how they ended and what they printed.
 * Names of libraries and programs are those of the build's loading/ folder, but for
 * "stayput", the library under test, and "stayput-deep".
 */
#ifndef SPAWN_H
#define SPAWN_H

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>

#include "../test.h"

#ifndef UNDER_TEST
#define UNDER_TEST "stayput"
#endif

/* Less than a test may take, so that it is the program that is said to hang. */
enum { SPAWN_SECONDS = 40, NOT_FOUND = 127 };

struct outcome {
	int status; /* exit status, or 128 and the signal */
	const char
		*text; /* of both standard output and error; valid until the next run */
};

/* The folder that the tests were built into. */
static inline const char *build_folder(void)
{
	static char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

	CHECK(n > 0);
	*strrchr(path, '/') = '\0';
	return path;
}

/* The runtime of the sanitizer that this was built with, or "": it has to come before
 * whatever else is preloaded. */
static inline const char *sanitizer_runtime(void)
{
	void *start = dlsym(RTLD_DEFAULT, "__asan_init");
	Dl_info info;

	if (!start)
		start = dlsym(RTLD_DEFAULT, "__tsan_init");
	return start && dladdr(start, &info) ? info.dli_fname : "";
}

__attribute__((format(printf, 3, 4))) static inline void append(
	char *text, size_t size, const char *format, ...)
{
	size_t len = strlen(text);
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text + len, size - len, format, args);
	va_end(args);
	CHECK(n >= 0 && (size_t)n < size - len);
}

/* `preloads` are separated by spaces. */
static inline void set_preload(const char *preloads)
{
	char list[8 * PATH_MAX] = "", names[256] = "", *name;

	append(list, sizeof list, "%s", sanitizer_runtime());
	append(names, sizeof names, "%s", preloads);
	for (name = strtok(names, " "); name; name = strtok(NULL, " "))
		append(list, sizeof list, "%s%s/%slib%s.so", *list ? " " : "",
			build_folder(),
			strncmp(name, "stayput", 7) == 0 ? "" : "loading/",
			strcmp(name, "stayput") == 0 ? UNDER_TEST : name);
	if (*list)
		setenv("LD_PRELOAD", list, 1);
	else
		unsetenv("LD_PRELOAD");
}

/* Where libraries are looked for: folders of the build, separated by spaces. */
static inline void set_library_path(const char *folders)
{
	char list[4 * PATH_MAX] = "", names[256] = "", *name;

	append(names, sizeof names, "%s", folders);
	for (name = strtok(names, " "); name; name = strtok(NULL, " "))
		append(list, sizeof list, "%s%s/%s", *list ? ":" : "", build_folder(),
			name);
	setenv("LD_LIBRARY_PATH", list, 1);
}

static inline struct outcome collect(pid_t pid, int output)
{
	static char text[4 << 20];
	struct outcome outcome = {.text = text};
	int status;
	ssize_t n;

	CHECK(waitpid(pid, &status, 0) == pid);
	n = pread(output, text, sizeof text - 1, 0);
	CHECK(n >= 0);
	text[n] = '\0';
	close(output);
	outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	return outcome;
}

/* Runs a program of the system. */
static inline struct outcome run_system(const char *preloads, const char *const *argv)
{
	int output = memfd_create("output", 0);
	pid_t pid;

	CHECK(output >= 0);
	pid = fork();
	if (pid == 0) {
		dup2(output, STDOUT_FILENO);
		dup2(output, STDERR_FILENO);
		alarm(SPAWN_SECONDS);
		set_preload(preloads);
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(NOT_FOUND);
	}
	CHECK(pid > 0);
	return collect(pid, output);
}

/* Runs a program of ours. */
static inline struct outcome run(
	const char *preloads, const char *program, const char *job)
{
	char path[PATH_MAX] = "";
	const char *argv[] = {path, job, NULL};

	append(path, sizeof path, "%s/loading/%s", build_folder(), program);
	return run_system(preloads, argv);
}

#endif
