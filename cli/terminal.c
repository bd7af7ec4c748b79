/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static struct termios before;
static bool taken;
static volatile sig_atomic_t stopped, resized;

static void on_stop(int signal)
{
	stopped = signal;
}

static void on_resize(int signal)
{
	resized = signal;
}

static void catch_signal(int signal, void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler};

	sigaction(signal, &action, NULL);
}

bool terminal_take(void)
{
	struct termios raw;

	if (!isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before) != 0)
		return false;
	catch_signal(SIGINT, on_stop);
	catch_signal(SIGTERM, on_stop);
	catch_signal(SIGHUP, on_stop);
	catch_signal(SIGQUIT, on_stop);
	catch_signal(SIGWINCH, on_resize);
	raw = before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	raw.c_cc[VMIN] = 1;
	raw.c_cc[VTIME] = 0;
	/* Stopped and brought back by the shell, it would not be as it was: no ^Z. */
	raw.c_cc[VSUSP] = _POSIX_VDISABLE;
	taken = tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
	if (taken)
		fputs("\033[?1049h\033[?25l", stdout); /* second screen, no cursor */
	return taken;
}

void terminal_give_back(void)
{
	if (!taken)
		return;
	fputs("\033[?25h\033[?1049l", stdout);
	fflush(stdout);
	tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
	taken = false;
}

bool terminal_stopped(void)
{
	return stopped;
}

void terminal_size(size_t *columns, size_t *rows)
{
	struct winsize size;

	*columns = 80;
	*rows = 24;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row) {
		*columns = size.ws_col;
		*rows = size.ws_row;
	}
}

int terminal_wait(double seconds)
{
	struct timespec limit = {.tv_sec = (time_t)seconds,
		.tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
	struct pollfd keys = {.fd = taken ? STDIN_FILENO : -1, .events = POLLIN};
	sigset_t none, held;
	unsigned char key;
	int n = 0;

	/* A signal between the question and the wait would go unheard. */
	sigfillset(&held);
	sigprocmask(SIG_BLOCK, &held, &none);
	if (!stopped && !resized)
		n = ppoll(&keys, 1, &limit, &none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	resized = 0;
	if (n <= 0)
		return 0;
	if (read(STDIN_FILENO, &key, 1) == 1)
		return key;
	stopped = 1; /* the terminal has gone */
	return 0;
}
