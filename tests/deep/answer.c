/* SPDX-License-Identifier: Apache-2.0 */
/* Somebody else's preload: answers each lookup in the driver with a function of its own.
 * Without CUDA's header, which does not know this form before 12. */
int cuGetProcAddress_v2(const char *name, void **function, int version,
	unsigned long long flags, int *status);

static int nothing(void)
{
	return 0;
}

int cuGetProcAddress_v2(const char *name, void **function, int version,
	unsigned long long flags, int *status)
{
	(void)name, (void)version, (void)flags, (void)status;
	*function = (void *)nothing;
	return 0;
}
