/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of this folder check with: a false one ends the process. */
#ifndef CHECK_H
#define CHECK_H

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdio>

#include "stayput.h"

#define CHECK(cond)                                                                    \
	do {                                                                           \
		if (!(cond)) {                                                         \
			printf("%s:%d: %s is false (%s)\n", __FILE__, __LINE__, #cond, \
				stayput_last_error());                                 \
			fflush(stdout);                                                \
			_exit(1);                                                      \
		}                                                                      \
	} while (0)
#define CUDA(call) CHECK((call) == cudaSuccess)
#define OK(call) CHECK((call) == STAYPUT_OK)

#endif
