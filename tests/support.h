/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the library on the fake driver share. Everything CHECKs. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>

#include "fakecuda/fakecuda.h"
#include "stayput.h"
#include "test.h"

#define CUDA(call) CHECK_EQ((call), cudaSuccess)
#define OK(call) CHECK_EQ((call), STAYPUT_OK)

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static inline void *region_malloc(const char *tag, int policy, size_t size)
{
	void *ptr = NULL;

	OK(stayput_region_push(tag, policy));
	CUDA(cudaMalloc(&ptr, size));
	OK(stayput_region_pop());
	return ptr;
}

/* The byte at `i` of the pattern that `seed` names: every byte depends on its position.
 */
static inline unsigned char pattern_at(size_t i, unsigned seed)
{
	return (unsigned char)((i * 2654435761u + seed * 40503u) >> 11);
}

static inline void write_pattern(void *device, size_t size, unsigned seed)
{
	unsigned char *host = malloc(size);

	CHECK(host);
	for (size_t i = 0; i < size; i++)
		host[i] = pattern_at(i, seed);
	CUDA(cudaMemcpy(device, host, size, cudaMemcpyHostToDevice));
	free(host);
}

/* Bytes of the device's memory that differ from the pattern. */
static inline size_t wrong_bytes(const void *device, size_t size, unsigned seed)
{
	unsigned char *host = malloc(size);
	size_t wrong = 0;

	CHECK(host);
	CUDA(cudaMemcpy(host, device, size, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < size; i++)
		wrong += host[i] != pattern_at(i, seed);
	free(host);
	return wrong;
}

/* Bytes that are not `value`. */
static inline size_t bytes_other_than(
	const void *device, size_t size, unsigned char value)
{
	unsigned char *host = malloc(size);
	size_t wrong = 0;

	CHECK(host);
	CUDA(cudaMemcpy(host, device, size, cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < size; i++)
		wrong += host[i] != value;
	free(host);
	return wrong;
}

static inline size_t device_used(int device)
{
	struct fakecuda_report report;

	fakecuda_report(&report);
	return report.bytes_used[device];
}

static inline unsigned long faults(void)
{
	struct fakecuda_report report;

	fakecuda_report(&report);
	return report.faults;
}

static inline struct stayput_region_info region_info(const char *tag)
{
	struct stayput_region_info info = {.struct_size = sizeof info};

	OK(stayput_region_info(tag, &info));
	return info;
}

static inline struct stayput_info query(const void *ptr)
{
	struct stayput_info info = {.struct_size = sizeof info};

	OK(stayput_query(ptr, &info));
	return info;
}

/* From here standard error goes to a file, which stderr_text() reads back. */
static inline void catch_stderr(void)
{
	int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);

	test_log = dup(STDERR_FILENO);
	CHECK(fd >= 0 && test_log >= 0);
	CHECK(dup2(fd, STDERR_FILENO) == STDERR_FILENO);
}

static inline const char *stderr_text(void)
{
	static char text[8192];
	ssize_t n = pread(STDERR_FILENO, text, sizeof text - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

#endif
