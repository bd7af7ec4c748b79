/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence behind a STAYPUT_ERR_*, kept per thread. Takes no lock. */
#ifndef ERROR_H
#define ERROR_H

#include <stddef.h>

#include <cuda.h>

/* Keeps the sentence for error_text() and returns `code`. Does not touch errno. */
int error_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a driver call that failed: names call, result and what it was for. */
int error_driver(const char *call, CUresult err, const char *what);

/* Copies the sentence, for error_set() after what may set another. */
void error_save(char *buf, size_t size);

/* This thread's last sentence, or "". */
const char *error_text(void);

const char *error_name(int code);

/* "CUDA_ERROR_OUT_OF_MEMORY" and the like; also before the driver is loaded. */
const char *error_cuda_name(CUresult err);

#endif
