/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that the library carries as PTX, against its reference in C. */
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
#include "digest_reference.h"
}
#include "digest_constants.h"
#include "digest_ptx.h"

#define CHECK(call)                                                                      \
	do {                                                                             \
		int err = (call);                                                        \
		if (err) {                                                               \
			printf("%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, err);   \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

int main()
{
	const unsigned count = 8;
	const size_t size = count * (size_t)DIGEST_PIECE;
	unsigned char *host = (unsigned char *)malloc(size);
	CUdeviceptr memory, *pieces;
	struct digest *digests;
	CUfunction function;
	CUcontext context;
	CUmodule module;
	CUdevice device;

	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, digest_ptx));
	CHECK(cuModuleGetFunction(&function, module, "stayput_digest"));
	CHECK(cuMemAlloc(&memory, size));
	CHECK(cuMemHostAlloc((void **)&pieces, count * 8, CU_MEMHOSTALLOC_DEVICEMAP));
	CHECK(cuMemHostAlloc((void **)&digests, count * 16, CU_MEMHOSTALLOC_DEVICEMAP));
	for (size_t i = 0; i < size; i++)
		host[i] = (unsigned char)rand();
	memset(host, 0, DIGEST_PIECE);
	memset(host + DIGEST_PIECE, 0xff, DIGEST_PIECE);
	CHECK(cuMemcpyHtoD(memory, host, size));
	for (unsigned i = 0; i < count; i++)
		pieces[i] = memory + i * (size_t)DIGEST_PIECE;
	void *parameters[] = {&pieces, &digests};
	CHECK(cuLaunchKernel(
		function, count, 1, 1, DIGEST_THREADS, 1, 1, 0, 0, parameters, 0));
	CHECK(cuCtxSynchronize());
	for (unsigned i = 0; i < count; i++) {
		struct digest want = digest_reference(host + i * (size_t)DIGEST_PIECE);

		CHECK(memcmp(&want, &digests[i], sizeof want) != 0);
	}
	printf("%u digests as the reference gives them\n", count);
	return 0;
}
