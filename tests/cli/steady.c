/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that knows nothing of stayput: keeps a table in device memory, and for every
 * line on standard input says whether it is right. "grow" allocates some more, "quit" ends
 * it. Linked once to a shared runtime and once to a static one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

enum { PARTS = 3, PART_BYTES = 3 << 20, EXTRA_BYTES = 5 << 20 };

static unsigned char *host;

static unsigned char value_at(int part, size_t i)
{
	return (unsigned char)((i * 2654435761u + part * 40503u) >> 11);
}

static void *allocate(size_t size)
{
	void *device;

	if (cudaMalloc(&device, size) != cudaSuccess) {
		printf("cudaMalloc failed\n");
		exit(1);
	}
	return device;
}

static void fill(void *device, int part)
{
	for (size_t i = 0; i < PART_BYTES; i++)
		host[i] = value_at(part, i);
	if (cudaMemcpy(device, host, PART_BYTES, cudaMemcpyHostToDevice) != cudaSuccess) {
		printf("cudaMemcpy failed\n");
		exit(1);
	}
}

static size_t wrong_in(const void *device, int part)
{
	size_t wrong = 0;

	memset(host, 0, PART_BYTES);
	if (cudaMemcpy(host, device, PART_BYTES, cudaMemcpyDeviceToHost) != cudaSuccess)
		return PART_BYTES;
	for (size_t i = 0; i < PART_BYTES; i++)
		wrong += host[i] != value_at(part, i);
	return wrong;
}

int main(void)
{
	void *table[PARTS];
	char line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	host = malloc(PART_BYTES);
	if (!host)
		return 1;
	for (int part = 0; part < PARTS; part++) {
		table[part] = allocate(PART_BYTES);
		fill(table[part], part);
	}
	printf("ready\n");
	while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n") != 0) {
		size_t wrong = 0;

		if (strcmp(line, "grow\n") == 0)
			allocate(EXTRA_BYTES);
		for (int part = 0; part < PARTS; part++)
			wrong += wrong_in(table[part], part);
		if (wrong)
			printf("wrong %zu\n", wrong);
		else
			printf("right\n");
	}
	free(host);
	return 0;
}
