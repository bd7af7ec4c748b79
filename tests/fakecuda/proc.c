/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress(): the newest form of a function that is not newer than the caller
 * asks for, nor than the version that this driver claims to be.
 */
#include "fake.h"

#include <string.h>

#if CUDA_VERSION < 12000
typedef int CUdriverProcAddressQueryResult;

CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
	cuuint64_t flags, CUdriverProcAddressQueryResult *status);
#endif

enum flavour { LEGACY, PER_THREAD };

struct row {
	const char *name;
	int since;
	enum flavour flavour;
	void *symbol;
};

#define ROW(name, since, flavour, symbol) {#name, since, flavour, (void *)symbol},

static const struct row rows[] = {
#include "proc_rows.h"
};

/* Status: 1, no such function; 2, it is newer than the caller asks for. */
static const struct row *find(
	const char *name, int version, enum flavour flavour, int *status)
{
	const struct row *best = NULL;

	*status = 1;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct row *row = &rows[i];

		if (row->since > settings()->version || row->flavour != flavour ||
			strcmp(row->name, name) != 0)
			continue;
		if (row->since > version)
			*status = 2;
		else if (!best || row->since > best->since)
			best = row;
	}
	if (best)
		*status = 0;
	return best;
}

static CUresult look_up(
	const char *name, void **function, int version, cuuint64_t flags, int *status)
{
	const struct row *row = NULL;

	if (!name || !*name || !function || flags > 2 || version > settings()->version)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		row = find(name, version, PER_THREAD, status);
	if (!row)
		row = find(name, version, LEGACY, status);
	*function = row ? row->symbol : NULL;
	return CUDA_SUCCESS;
}

API CUresult cuGetProcAddress(
	const char *name, void **function, int version, cuuint64_t flags)
{
	int status;

	return look_up(name, function, version, flags, &status);
}

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
	cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	int found = 1;
	CUresult err = look_up(name, function, version, flags, &found);

	if (status)
		*status = (CUdriverProcAddressQueryResult)found;
	return err;
}
