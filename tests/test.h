/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test program is static functions that CHECK things, listed once in main(). Each
 * runs in a child of its own, so that a crash, a hang or leaked state fails one test.
 * The parent never touches CUDA: a child of a process that did cannot use it.
 *
 *   build/test_pause                     every test of the program
 *   build/test_pause resume_keeps_bytes  one test
 */
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where a failed CHECK tells: standard error, also when a test has caught that. */
static int test_log = STDERR_FILENO;

/* Under a sanitizer everything takes several times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_SECONDS = 300 };
#else
enum { TEST_SECONDS = 60 };
#endif

enum { TEST_SKIPPED = 77 };

struct test {
	const char *name;
	void (*run)(void);
};

#define TEST(fn)                         \
	{                                \
		.name = #fn, .run = (fn) \
	}

#define CHECK(cond)                                                                   \
	do {                                                                          \
		if (!(cond)) {                                                        \
			dprintf(test_log, "%s:%d: %s is false\n", __FILE__, __LINE__, \
				#cond);                                               \
			_exit(1);                                                     \
		}                                                                     \
	} while (0)

#define CHECK_EQ(got, want)                                                              \
	do {                                                                             \
		long long got_ = (long long)(got), want_ = (long long)(want);            \
		if (got_ != want_) {                                                     \
			dprintf(test_log,                                                \
				"%s:%d: %s is %lld (0x%llx), want %s = %lld (0x%llx)\n", \
				__FILE__, __LINE__, #got, got_,                          \
				(unsigned long long)got_, #want, want_,                  \
				(unsigned long long)want_);                              \
			_exit(1);                                                        \
		}                                                                        \
	} while (0)

/* `text` contains `part`; prints both when it does not. */
#define CHECK_HAS(text, part)                                                       \
	do {                                                                        \
		const char *text_ = (text), *part_ = (part);                        \
		if (!strstr(text_, part_)) {                                        \
			dprintf(test_log, "%s:%d: \"%s\" lacks \"%s\"\n", __FILE__, \
				__LINE__, text_, part_);                            \
			_exit(1);                                                   \
		}                                                                   \
	} while (0)

#define SKIP(why)                                        \
	do {                                             \
		dprintf(test_log, "skipped: %s\n", why); \
		_exit(TEST_SKIPPED);                     \
	} while (0)

static inline int test_run(const struct test *t)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		alarm(TEST_SECONDS);
		t->run();
		exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int test_main(const struct test *tests, size_t n, int argc, char **argv)
{
	int failed = 0, found = 0;

	for (size_t i = 0; i < n; i++) {
		const char *word = "FAIL";
		int rc;

		if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
			continue;
		found++;
		rc = test_run(&tests[i]);
		if (rc == 0)
			word = "ok";
		else if (rc == TEST_SKIPPED)
			word = "skip";
		printf("%s %s", word, tests[i].name);
		if (rc != 0 && rc != 1 && rc != TEST_SKIPPED)
			printf(" (%s %d)", rc > 128 ? "signal" : "status",
				rc > 128 ? rc - 128 : rc);
		printf("\n");
		failed += rc != 0 && rc != TEST_SKIPPED;
	}
	if (!found)
		fprintf(stderr, "no test of that name\n");
	return failed != 0 || !found;
}

#endif
