/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The length read; `buf` is then NUL-terminated. */
static size_t read_file(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;
	ssize_t n = 1;

	while (fd >= 0 && n > 0 && len < size - 1) {
		n = read(fd, buf + len, size - 1 - len);
		len += n > 0 ? n : 0;
	}
	if (fd >= 0)
		close(fd);
	buf[len] = '\0';
	return len;
}

void process_command(char *buf, size_t size)
{
	size_t len = read_file("/proc/self/cmdline", buf, size);

	while (len > 0 && buf[len - 1] == '\0')
		len--;
	for (size_t i = 0; i < len; i++)
		if (buf[i] == '\0')
			buf[i] = ' ';
}

double process_uptime(void)
{
	char text[1024], *p;
	struct timespec now;
	double started;

	if (read_file("/proc/self/stat", text, sizeof text) == 0)
		return 0;
	/* The name, in brackets, may hold anything; the start is 20 numbers after it. */
	p = strrchr(text, ')');
	for (int i = 0; i < 20 && p; i++)
		p = strchr(p + 1, ' ');
	if (!p || clock_gettime(CLOCK_BOOTTIME, &now) != 0)
		return 0;
	started = (double)strtoull(p + 1, NULL, 10) / sysconf(_SC_CLK_TCK);
	return now.tv_sec + now.tv_nsec * 1e-9 - started;
}
