/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runtime's lookups in the driver: how PyTorch reaches what its expandable segments are
 * made with. In libstayput-deep.so they are answered as all others (hook_lookup.c); in
 * libstayput.so only those of memory that others make themselves are, with the functions of
 * hook_vmm.c, which count and change nothing.
 */
#include <cuda.h>
#include <driver_types.h>
#include <string.h>

#include "hook.h"
#include "real.h"

/* Without `status` in runtimes before 12, whose callers leave anything in that register:
 * it is passed on and not looked at. */
STAYPUT_HOOK cudaError_t cudaGetDriverEntryPoint(
	const char *, void **, unsigned long long, void *status);
STAYPUT_HOOK cudaError_t cudaGetDriverEntryPoint_ptsz(
	const char *, void **, unsigned long long, void *status);
STAYPUT_HOOK cudaError_t cudaGetDriverEntryPointByVersion(
	const char *, void **, unsigned int, unsigned long long, void *status);
STAYPUT_HOOK cudaError_t cudaGetDriverEntryPointByVersion_ptsz(
	const char *, void **, unsigned int, unsigned long long, void *status);

static void answer(const char *name, void **function, int version, cuuint64_t flags)
{
	static const struct {
		const char *name;
		void *hook;
	} rows[] = {{"cuMemCreate", (void *)hook_vmm_create},
		{"cuMemRelease", (void *)hook_vmm_release}};

	if (hook_replace) {
		hook_replace(name, function, version, flags);
		return;
	}
	if (!name || !function || !*function)
		return;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (strcmp(rows[i].name, name) == 0 && *function == real_in_driver(name))
			*function = rows[i].hook;
}

/* The version that the forms of cudaGetDriverEntryPoint() without one ask for. */
static int runtime_version(void *caller)
{
	typedef cudaError_t get_version(int *);
	get_version *get = (get_version *)real_find("cudaRuntimeGetVersion", caller);
	int version = 0;

	return get && get(&version) == cudaSuccess ? version : 0;
}

static cuuint64_t per_thread(unsigned long long flags)
{
	return flags ? flags : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
}

STAYPUT_HOOK cudaError_t cudaGetDriverEntryPoint(
	const char *name, void **function, unsigned long long flags, void *status)
{
	typeof(&cudaGetDriverEntryPoint) real = REAL(cudaGetDriverEntryPoint);
	cudaError_t err =
		real ? real(name, function, flags, status) : cudaErrorInitializationError;

	if (err == cudaSuccess)
		answer(name, function, runtime_version(__builtin_return_address(0)),
			flags);
	return err;
}

STAYPUT_HOOK cudaError_t cudaGetDriverEntryPoint_ptsz(
	const char *name, void **function, unsigned long long flags, void *status)
{
	typeof(&cudaGetDriverEntryPoint_ptsz) real = REAL(cudaGetDriverEntryPoint_ptsz);
	cudaError_t err =
		real ? real(name, function, flags, status) : cudaErrorInitializationError;

	if (err == cudaSuccess)
		answer(name, function, runtime_version(__builtin_return_address(0)),
			per_thread(flags));
	return err;
}

STAYPUT_HOOK cudaError_t cudaGetDriverEntryPointByVersion(const char *name,
	void **function, unsigned int version, unsigned long long flags, void *status)
{
	typeof(&cudaGetDriverEntryPointByVersion) real =
		REAL(cudaGetDriverEntryPointByVersion);
	cudaError_t err = real ? real(name, function, version, flags, status)
			       : cudaErrorInitializationError;

	if (err == cudaSuccess)
		answer(name, function, (int)version, flags);
	return err;
}

STAYPUT_HOOK cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *name,
	void **function, unsigned int version, unsigned long long flags, void *status)
{
	typeof(&cudaGetDriverEntryPointByVersion_ptsz) real =
		REAL(cudaGetDriverEntryPointByVersion_ptsz);
	cudaError_t err = real ? real(name, function, version, flags, status)
			       : cudaErrorInitializationError;

	if (err == cudaSuccess)
		answer(name, function, (int)version, per_thread(flags));
	return err;
}
