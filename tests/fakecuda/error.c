/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* By number, so that headers that lack the newer ones will do. */
struct error_name {
	int code;
	const char *name;
	const char *sentence; /* NULL: the name says enough */
};

static const struct error_name names[] = {
	{0, "CUDA_SUCCESS", "no error"},
	{1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{5, "CUDA_ERROR_PROFILER_DISABLED", NULL},
	{6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", NULL},
	{7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", NULL},
	{8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", NULL},
	{34, "CUDA_ERROR_STUB_LIBRARY", NULL},
	{36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", NULL},
	{46, "CUDA_ERROR_DEVICE_UNAVAILABLE", NULL},
	{100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{102, "CUDA_ERROR_DEVICE_NOT_LICENSED", NULL},
	{200, "CUDA_ERROR_INVALID_IMAGE", NULL},
	{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", NULL},
	{205, "CUDA_ERROR_MAP_FAILED", NULL},
	{206, "CUDA_ERROR_UNMAP_FAILED", NULL},
	{207, "CUDA_ERROR_ARRAY_IS_MAPPED", NULL},
	{208, "CUDA_ERROR_ALREADY_MAPPED", NULL},
	{209, "CUDA_ERROR_NO_BINARY_FOR_GPU", NULL},
	{210, "CUDA_ERROR_ALREADY_ACQUIRED", NULL},
	{211, "CUDA_ERROR_NOT_MAPPED", NULL},
	{212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", NULL},
	{213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", NULL},
	{214, "CUDA_ERROR_ECC_UNCORRECTABLE", NULL},
	{215, "CUDA_ERROR_UNSUPPORTED_LIMIT", NULL},
	{216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", NULL},
	{217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", NULL},
	{218, "CUDA_ERROR_INVALID_PTX", NULL},
	{219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", NULL},
	{220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", NULL},
	{221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", NULL},
	{222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", NULL},
	{223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", NULL},
	{224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", NULL},
	{225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", NULL},
	{226, "CUDA_ERROR_CONTAINED", NULL},
	{300, "CUDA_ERROR_INVALID_SOURCE", NULL},
	{301, "CUDA_ERROR_FILE_NOT_FOUND", NULL},
	{302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", NULL},
	{303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", NULL},
	{304, "CUDA_ERROR_OPERATING_SYSTEM", NULL},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{401, "CUDA_ERROR_ILLEGAL_STATE", NULL},
	{402, "CUDA_ERROR_LOSSY_QUERY", NULL},
	{500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "CUDA_ERROR_NOT_READY", "device not ready"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", NULL},
	{702, "CUDA_ERROR_LAUNCH_TIMEOUT", NULL},
	{703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", NULL},
	{704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", NULL},
	{705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", NULL},
	{708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", NULL},
	{709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{710, "CUDA_ERROR_ASSERT", NULL},
	{711, "CUDA_ERROR_TOO_MANY_PEERS", NULL},
	{712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
		"part or all of the requested memory range is already mapped"},
	{713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
		"pointer does not correspond to a registered memory region"},
	{714, "CUDA_ERROR_HARDWARE_STACK_ERROR", NULL},
	{715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", NULL},
	{716, "CUDA_ERROR_MISALIGNED_ADDRESS", NULL},
	{717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", NULL},
	{718, "CUDA_ERROR_INVALID_PC", NULL},
	{719, "CUDA_ERROR_LAUNCH_FAILED", NULL},
	{720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", NULL},
	{721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", NULL},
	{800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{802, "CUDA_ERROR_SYSTEM_NOT_READY", NULL},
	{803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", NULL},
	{804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", NULL},
	{805, "CUDA_ERROR_MPS_CONNECTION_FAILED", NULL},
	{806, "CUDA_ERROR_MPS_RPC_FAILURE", NULL},
	{807, "CUDA_ERROR_MPS_SERVER_NOT_READY", NULL},
	{808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", NULL},
	{809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", NULL},
	{810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", NULL},
	{811, "CUDA_ERROR_CDP_NOT_SUPPORTED", NULL},
	{812, "CUDA_ERROR_CDP_VERSION_MISMATCH", NULL},
	{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
		"operation not permitted when stream is capturing"},
	{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
		"operation failed due to a previous error during capture"},
	{902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", NULL},
	{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", NULL},
	{904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", NULL},
	{905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", NULL},
	{906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
		"operation would make the legacy stream depend on a capturing blocking "
		"stream"},
	{907, "CUDA_ERROR_CAPTURED_EVENT", NULL},
	{908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
		"attempt to terminate a thread-local capture sequence from another "
		"thread"},
	{909, "CUDA_ERROR_TIMEOUT", NULL},
	{910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", NULL},
	{911, "CUDA_ERROR_EXTERNAL_DEVICE", NULL},
	{912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", NULL},
	{913, "CUDA_ERROR_FUNCTION_NOT_LOADED", NULL},
	{914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", NULL},
	{915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", NULL},
	{916, "CUDA_ERROR_KEY_ROTATION", NULL},
	{999, "CUDA_ERROR_UNKNOWN", NULL},
};

static const struct error_name *find(int code)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].code == code)
			return &names[i];
	return NULL;
}

static const char *short_form(const char *name)
{
	return strncmp(name, "CUDA_ERROR_", 11) == 0 ? name + 11 : name + 5;
}

const char *error_short_name(CUresult err)
{
	const struct error_name *found = find(err);

	return found ? short_form(found->name) : NULL;
}

bool error_parse(const char *text, size_t len, CUresult *err)
{
	char *end;
	long number = strtol(text, &end, 10);

	if (len && end == text + len) {
		*err = number;
		return true;
	}
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *name = short_form(names[i].name);

		if (strlen(name) == len && strncmp(name, text, len) == 0) {
			*err = names[i].code;
			return true;
		}
	}
	return false;
}

API CUresult cuGetErrorName(CUresult error, const char **name)
{
	const struct error_name *found = find(error);

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = found ? found->name : NULL;
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **text)
{
	const struct error_name *found = find(error);

	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = NULL;
	if (!found)
		return CUDA_ERROR_INVALID_VALUE;
	*text = found->sentence ? found->sentence : found->name;
	return CUDA_SUCCESS;
}
