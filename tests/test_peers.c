/* SPDX-License-Identifier: Apache-2.0 */
/* Region memory and other devices: what peer access gives native memory, ours has too. */
#include "support.h"

/* Writes memory of device 0 from device 1, as a kernel there would. */
static cudaError_t write_from_peer(void *ptr, int value)
{
	cudaError_t err;

	CUDA(cudaSetDevice(1));
	err = cudaMemset(ptr, value, 3 * MIB);
	cudaGetLastError();
	CUDA(cudaSetDevice(0));
	return err;
}

static void let_peer(bool allowed)
{
	CUDA(cudaSetDevice(1));
	if (allowed)
		CUDA(cudaDeviceEnablePeerAccess(0, 0));
	else
		CUDA(cudaDeviceDisablePeerAccess(0));
	CUDA(cudaSetDevice(0));
}

static char *large_on_device_0(void)
{
	setenv("FAKECUDA_DEVICES", "2", 1);
	CUDA(cudaSetDevice(0));
	return region_malloc("peer", STAYPUT_HOST, 3 * MIB);
}

static void check_peer_writes(void *ptr, int value)
{
	CUDA(write_from_peer(ptr, value));
	CHECK_EQ(bytes_other_than(ptr, 3 * MIB, value), 0);
}

static void without_peer_access_other_devices_cannot_write(void)
{
	char *p = large_on_device_0();

	CHECK_EQ(write_from_peer(p, 1), cudaErrorInvalidValue);
}

static void access_enabled_before_the_allocation_holds(void)
{
	char *p;

	setenv("FAKECUDA_DEVICES", "2", 1);
	let_peer(true);
	p = large_on_device_0();
	check_peer_writes(p, 1);
}

static void access_enabled_after_the_allocation_holds(void)
{
	char *p = large_on_device_0();
	char *small = region_malloc("peer", STAYPUT_HOST, 4096);

	let_peer(true);
	check_peer_writes(p, 1);
	CUDA(cudaSetDevice(1));
	CUDA(cudaMemset(small, 3, 4096));
	CUDA(cudaSetDevice(0));
	CHECK_EQ(bytes_other_than(small, 4096, 3), 0);
}

static void access_survives_pause_and_resume(void)
{
	char *p = large_on_device_0();

	let_peer(true);
	check_peer_writes(p, 1);
	for (int i = 2; i < 4; i++) {
		OK(stayput_pause("peer"));
		OK(stayput_resume("peer"));
		CHECK_EQ(bytes_other_than(p, 3 * MIB, i - 1), 0);
		check_peer_writes(p, i);
	}
}

static void access_enabled_while_paused_holds_after_resume(void)
{
	char *p = large_on_device_0();

	OK(stayput_pause("peer"));
	let_peer(true);
	OK(stayput_resume("peer"));
	check_peer_writes(p, 1);
}

static void let_peer_in(int change, const char *tag, const struct stayput_range *ranges,
	size_t count, void *user)
{
	(void)tag;
	(void)ranges;
	(void)count;
	(void)user;
	if (change == STAYPUT_RELEASING)
		let_peer(true);
}

static void access_enabled_in_a_callback_holds_when_the_pause_fails(void)
{
	char *p;

	setenv("STAYPUT_HOST_LIMIT", "1MiB", 1);
	p = large_on_device_0();
	OK(stayput_on_change(let_peer_in, NULL));
	CHECK_EQ(stayput_pause("peer"), STAYPUT_ERR_HOST_MEMORY);
	check_peer_writes(p, 1);
}

static void disabled_access_is_gone(void)
{
	char *p = large_on_device_0();

	let_peer(true);
	check_peer_writes(p, 1);
	let_peer(false);
	CHECK_EQ(write_from_peer(p, 2), cudaErrorInvalidValue);
	OK(stayput_pause("peer"));
	OK(stayput_resume("peer"));
	CHECK_EQ(write_from_peer(p, 2), cudaErrorInvalidValue);
	CHECK_EQ(bytes_other_than(p, 3 * MIB, 1), 0);
	let_peer(true);
	check_peer_writes(p, 2);
}

static void the_drivers_calls_count_as_well(void)
{
	char *p = large_on_device_0();
	CUcontext owner, accessor;

	CHECK_EQ(cuDevicePrimaryCtxRetain(&owner, 0), CUDA_SUCCESS);
	CHECK_EQ(cuDevicePrimaryCtxRetain(&accessor, 1), CUDA_SUCCESS);
	CHECK_EQ(cuCtxPushCurrent(accessor), CUDA_SUCCESS);
	CHECK_EQ(cuCtxEnablePeerAccess(owner, 0), CUDA_SUCCESS);
	CHECK_EQ(cuCtxEnablePeerAccess(owner, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	CHECK_EQ(cuCtxPopCurrent(&accessor), CUDA_SUCCESS);
	check_peer_writes(p, 1);
	CHECK_EQ(cuCtxPushCurrent(accessor), CUDA_SUCCESS);
	CHECK_EQ(cuCtxDisablePeerAccess(owner), CUDA_SUCCESS);
	CHECK_EQ(cuCtxPopCurrent(&accessor), CUDA_SUCCESS);
	CHECK_EQ(write_from_peer(p, 2), cudaErrorInvalidValue);
}

static void copies_between_devices_work_before_and_after_a_pause(void)
{
	char *p = large_on_device_0(), *other;

	CUDA(cudaSetDevice(1));
	other = region_malloc("peer", STAYPUT_HOST, 3 * MIB);
	CUDA(cudaSetDevice(0));
	let_peer(true);
	for (int i = 0; i < 2; i++) {
		write_pattern(p, 3 * MIB, i);
		CUDA(cudaMemcpyPeer(other, 1, p, 0, 3 * MIB));
		CUDA(cudaSetDevice(1));
		CHECK_EQ(wrong_bytes(other, 3 * MIB, i), 0);
		CUDA(cudaMemset(other, 0, 3 * MIB));
		CUDA(cudaMemcpy(other, p, 3 * MIB, cudaMemcpyDefault));
		CHECK_EQ(wrong_bytes(other, 3 * MIB, i), 0);
		CUDA(cudaSetDevice(0));
		OK(stayput_pause(NULL));
		OK(stayput_resume(NULL));
	}
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(without_peer_access_other_devices_cannot_write),
		TEST(access_enabled_before_the_allocation_holds),
		TEST(access_enabled_after_the_allocation_holds),
		TEST(access_survives_pause_and_resume),
		TEST(access_enabled_while_paused_holds_after_resume),
		TEST(access_enabled_in_a_callback_holds_when_the_pause_fails),
		TEST(disabled_access_is_gone),
		TEST(the_drivers_calls_count_as_well),
		TEST(copies_between_devices_work_before_and_after_a_pause),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
