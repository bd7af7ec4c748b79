/* SPDX-License-Identifier: Apache-2.0 */
/* A library with a consumer, and so the runtime, among its dependencies. */
#include "libraries.h"

cudaError_t outer_malloc(void **ptr, size_t size)
{
	return consumer_malloc(ptr, size);
}

cudaError_t outer_free(void *ptr)
{
	return consumer_free(ptr);
}
