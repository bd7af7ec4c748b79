/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "format.h"
#include "gpu.h"

static const char *state_of(const cJSON *snapshot, const struct totals *t)
{
	const cJSON *running = cJSON_GetObjectItemCaseSensitive(snapshot, "running");
	const char *verb = word_of(cJSON_GetArrayItem(running, 0), "do");

	if (strcmp(verb, "pause") == 0)
		return "pausing";
	if (strcmp(verb, "resume") == 0)
		return "resuming";
	if (t->active == 0 && t->paused == 0)
		return "empty";
	return t->paused == 0 ? "active" : t->active == 0 ? "paused" : "partly";
}

/* What NVML sees of the process on its devices beyond what its regions have there. */
static double native_of(const struct process *process, const cJSON *snapshot)
{
	const cJSON *device;
	double native = -1;

	cJSON_ArrayForEach(device, cJSON_GetObjectItemCaseSensitive(snapshot, "devices"))
	{
		double all, own = number_of(device, "bytes_device");
		unsigned gpu;

		if (!gpu_by_uuid(word_of(device, "uuid"), &gpu) ||
			!gpu_process_memory(gpu, (unsigned)process->pid, &all))
			continue;
		native = (native < 0 ? 0 : native) + (all > own ? all - own : 0);
	}
	return native;
}

struct totals totals_of(const struct process *process, const cJSON *snapshot)
{
	struct totals t = {.native = native_of(process, snapshot)};
	const cJSON *region;

	cJSON_ArrayForEach(region, cJSON_GetObjectItemCaseSensitive(snapshot, "regions"))
	{
		t.active += number_of(region, "bytes_active");
		t.paused += number_of(region, "bytes_paused");
		t.device += number_of(region, "bytes_device");
		t.backup += number_of(region, "bytes_backup");
	}
	t.state = state_of(snapshot, &t);
	return t;
}

const char *size_cell(double bytes, char buf[CELL])
{
	strcpy(buf, ">-");
	if (bytes >= 0)
		bytes_text(bytes, buf + 1, CELL - 1);
	return buf;
}

const char *command_of(
	const struct process *process, const cJSON *snapshot, char *buf, size_t size)
{
	char path[64], raw[1024];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/cmdline", (int)process->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, raw, sizeof raw - 1);
		close(fd);
	}
	if (n <= 0)
		return clean_text(word_of(snapshot, "command"), buf, size);
	while (n > 0 && raw[n - 1] == '\0')
		n--;
	raw[n] = '\0';
	for (ssize_t i = 0; i < n; i++)
		if (raw[i] == '\0')
			raw[i] = ' ';
	return clean_text(raw, buf, size);
}
