/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered and managed memory: always native, and counted where a region is in force.
 */
#include <stddef.h>

#include "support.h"

cudaError_t cudaMallocAsync_ptsz(void **, size_t, cudaStream_t);
cudaError_t cudaMallocFromPoolAsync_ptsz(void **, size_t, cudaMemPool_t, cudaStream_t);
cudaError_t cudaFreeAsync_ptsz(void *, cudaStream_t);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);

static CUmemoryPool make_pool(int device)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	CUmemoryPool pool;

	CHECK_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
	return pool;
}

static void *ordered_malloc(const char *tag, size_t size)
{
	void *ptr = NULL;

	OK(stayput_region_push(tag, STAYPUT_HOST));
	CUDA(cudaMallocAsync(&ptr, size, NULL));
	OK(stayput_region_pop());
	return ptr;
}

static void every_way_to_allocate_and_free_is_counted_once(void)
{
	CUmemoryPool pool;
	CUdeviceptr p[8];

	CUDA(cudaFree(0));
	pool = make_pool(0);
	OK(stayput_region_push("r", STAYPUT_DISCARD));
	CUDA(cudaMallocAsync((void **)&p[0], MIB, NULL));
	CUDA(cudaMallocAsync_ptsz((void **)&p[1], MIB, NULL));
	CUDA(cudaMallocFromPoolAsync((void **)&p[2], MIB, pool, NULL));
	CUDA(cudaMallocFromPoolAsync_ptsz((void **)&p[3], MIB, pool, NULL));
	CHECK_EQ(cuMemAllocAsync(&p[4], MIB, NULL), CUDA_SUCCESS);
	CHECK_EQ(cuMemAllocAsync_ptsz(&p[5], MIB, NULL), CUDA_SUCCESS);
	CHECK_EQ(cuMemAllocFromPoolAsync(&p[6], MIB, pool, NULL), CUDA_SUCCESS);
	CHECK_EQ(cuMemAllocFromPoolAsync_ptsz(&p[7], MIB, pool, NULL), CUDA_SUCCESS);
	OK(stayput_region_pop());
	CHECK_EQ(region_info("r").count_stream_ordered, 8);
	CHECK_EQ(region_info("r").bytes_stream_ordered, 8 * MIB);
	CHECK_EQ(region_info("r").count_active, 0);
	CHECK_EQ(region_info("r").count_kept, 0);
	CUDA(cudaFree((void *)p[0]));
	CUDA(cudaFreeAsync((void *)p[1], NULL));
	CUDA(cudaFreeAsync_ptsz((void *)p[2], NULL));
	CHECK_EQ(cuMemFree(p[3]), CUDA_SUCCESS);
	CHECK_EQ(cuMemFreeAsync(p[4], NULL), CUDA_SUCCESS);
	CHECK_EQ(cuMemFreeAsync_ptsz(p[5], NULL), CUDA_SUCCESS);
	CHECK_EQ(region_info("r").count_stream_ordered, 2);
	CHECK_EQ(region_info("r").bytes_stream_ordered, 2 * MIB);
	CUDA(cudaFree((void *)p[6]));
	CUDA(cudaFree((void *)p[7]));
	CHECK_EQ(region_info("r").bytes_stream_ordered, 0);
}

static void outside_of_regions_nothing_is_counted(void)
{
	struct stayput_info info = {.struct_size = sizeof info};
	void *ptr, *other;
	size_t count;

	setenv("STAYPUT_RULES", "big:size>=2MiB", 1);
	CUDA(cudaMallocAsync(&ptr, MIB, NULL));
	CHECK_EQ(stayput_query(ptr, &info), STAYPUT_ERR_NOT_FOUND);
	CUDA(cudaFreeAsync(ptr, NULL));
	OK(stayput_region_list(NULL, 0, &count));
	CHECK_EQ(count, 0);
	CUDA(cudaMallocAsync(&other, 2 * MIB, NULL));
	CHECK_EQ(region_info("big").bytes_stream_ordered, 2 * MIB);
	CHECK_EQ(query(other).policy, STAYPUT_KEEP);
}

static void answers_of_the_real_function_stay(void)
{
	void *ptr = (void *)1;

	OK(stayput_region_push("r", STAYPUT_HOST));
	CHECK_EQ(cudaMallocAsync(&ptr, 5 * GIB, NULL), cudaErrorMemoryAllocation);
	CHECK(ptr == (void *)1);
	CHECK_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
	CHECK_EQ(cudaMallocAsync(NULL, MIB, NULL), cudaErrorInvalidValue);
	CUDA(cudaMallocAsync(&ptr, 0, NULL));
	CHECK(!ptr);
	CHECK_EQ(region_info("r").count_stream_ordered, 0);
}

static const char *snapshot(void)
{
	static char json[8192];

	CHECK(stayput_snapshot_json(json, sizeof json) < sizeof json);
	return json;
}

static void memory_counts_on_the_device_that_it_is_on(void)
{
	void *ptr;

	setenv("FAKECUDA_DEVICES", "2", 1);
	CUDA(cudaSetDevice(1));
	CUDA(cudaFree(0));
	CUDA(cudaSetDevice(0));
	ordered_malloc("r", MIB);
	OK(stayput_region_push("r", STAYPUT_HOST));
	CUDA(cudaMallocFromPoolAsync(&ptr, 3 * MIB, make_pool(1), NULL));
	CHECK_HAS(snapshot(), "\"bytes_stream_ordered\":4194304,"
			      "\"count_stream_ordered\":2,"
			      "\"stream_ordered_by_device\":{\"0\":1048576,"
			      "\"1\":3145728}}");
	CUDA(cudaFree(ptr));
	CHECK_HAS(snapshot(), "\"stream_ordered_by_device\":{\"0\":1048576}}");
}

static void a_pause_says_how_much_it_leaves(void)
{
	struct stayput_report report = {.struct_size = sizeof report};
	char *ptr, *ours;

	setenv("STAYPUT_LOG", "info", 1);
	catch_stderr();
	ptr = ordered_malloc("r", 3 * MIB);
	ours = region_malloc("r", STAYPUT_HOST, 4 * MIB);
	write_pattern(ptr, 3 * MIB, 1);
	OK(stayput_pause_ex(NULL, 0, NULL, &report));
	CHECK_EQ(report.bytes_stream_ordered, 3 * MIB);
	CHECK_EQ(report.total.bytes_released, 4 * MIB);
	CHECK_EQ(region_info("r").state, STAYPUT_PAUSED);
	CHECK_EQ(wrong_bytes(ptr, 3 * MIB, 1), 0);
	CHECK_HAS(stderr_text(), "warning: region r: 3145728 bytes that were allocated "
				 "in it are stream-ordered memory");
	CHECK_HAS(stderr_text(), "paused 1 allocations");
	CHECK_HAS(stderr_text(), "; 3145728 bytes of stream-ordered memory stay on the");
	OK(stayput_resume(NULL));
	OK(stayput_pause(NULL));
	CHECK(!strstr(strstr(stderr_text(), "in it are") + 1, "in it are"));
	CUDA(cudaFree(ours));
	CUDA(cudaFree(ptr));
}

/* Frees 8 MiB into the device's pool, which holds on to it. */
static void fill_pool(const char *tag)
{
	cuuint64_t all = UINT64_MAX;
	CUmemoryPool pool;
	void *ptr;

	CUDA(cudaFree(0));
	CHECK_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
		CUDA_SUCCESS);
	ptr = ordered_malloc(tag, 8 * MIB);
	CUDA(cudaFreeAsync(ptr, NULL));
	CUDA(cudaDeviceSynchronize());
	CHECK_EQ(device_used(0), 8 * MIB);
}

static void a_pause_trims_the_pools_of_its_devices(void)
{
	fill_pool("other");
	region_malloc("r", STAYPUT_DISCARD, 4 * MIB);
	OK(stayput_pause("r"));
	CHECK_EQ(device_used(0), 0);
}

static void a_pause_of_stream_ordered_memory_alone_trims_pools_too(void)
{
	fill_pool("r");
	OK(stayput_pause("r"));
	CHECK_EQ(device_used(0), 0);
}

static void the_current_pool_is_trimmed_beside_the_default_one(void)
{
	cuuint64_t all = UINT64_MAX;
	CUmemoryPool pool;
	void *ptr;

	fill_pool("r");
	pool = make_pool(0);
	CHECK_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all),
		CUDA_SUCCESS);
	CHECK_EQ(cuDeviceSetMemPool(0, pool), CUDA_SUCCESS);
	ptr = ordered_malloc("r", 2 * MIB);
	CUDA(cudaFreeAsync(ptr, NULL));
	CUDA(cudaDeviceSynchronize());
	CHECK_EQ(device_used(0), 10 * MIB);
	OK(stayput_pause("r"));
	CHECK_EQ(device_used(0), 0);
}

static void a_pool_that_cannot_be_trimmed_is_no_error(void)
{
	fill_pool("r");
	region_malloc("r", STAYPUT_DISCARD, 4 * MIB);
	fakecuda_fail("cuMemPoolTrimTo:*:NOT_SUPPORTED");
	OK(stayput_pause("r"));
	CHECK_EQ(fakecuda_failed() > 0, 1);
	CHECK_EQ(device_used(0), 8 * MIB);
}

static void memory_of_a_captured_graph_is_not_counted(void)
{
	cudaStream_t stream;
	cudaGraph_t graph = NULL;
	void *ptr = NULL;
	unsigned long asked;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	OK(stayput_region_push("r", STAYPUT_HOST));
	asked = fakecuda_calls("cuPointerGetAttribute");
	CUDA(cudaMallocAsync(&ptr, MIB, stream));
	CHECK(ptr);
	CHECK_EQ(cuMemAllocAsync((CUdeviceptr *)&ptr, MIB, stream), CUDA_SUCCESS);
	CUDA(cudaFreeAsync(ptr, stream));
	OK(stayput_region_pop());
	CHECK_EQ(region_info("r").count_stream_ordered, 0);
	CHECK_EQ(fakecuda_calls("cuPointerGetAttribute"), asked);
	CUDA(cudaStreamEndCapture(stream, &graph));
	CHECK(graph);
}

static void managed_memory_is_kept_and_told_once(void)
{
	CUdeviceptr driver;
	void *runtime;

	catch_stderr();
	CUDA(cudaFree(0));
	OK(stayput_region_push("r", STAYPUT_HOST));
	CUDA(cudaMallocManaged(&runtime, MIB, cudaMemAttachGlobal));
	CHECK_EQ(cuMemAllocManaged(&driver, 2 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
	CHECK_EQ(
		cudaMallocManaged(NULL, MIB, cudaMemAttachGlobal), cudaErrorInvalidValue);
	OK(stayput_region_pop());
	CHECK_EQ(region_info("r").bytes_kept, 3 * MIB);
	CHECK_EQ(region_info("r").count_kept, 2);
	CHECK_HAS(stderr_text(), "region r: managed memory");
	CHECK(!strstr(strstr(stderr_text(), "managed") + 1, "managed"));
	OK(stayput_pause("r"));
	memset(runtime, 1, MIB);
	CUDA(cudaFree(runtime));
	CHECK_EQ(cuMemFree(driver), CUDA_SUCCESS);
	CHECK_EQ(region_info("r").count_kept, 0);
	CUDA(cudaMallocManaged(&runtime, MIB, cudaMemAttachGlobal));
	CHECK_EQ(region_info("r").count_kept, 0);
}

static void what_cannot_be_asked_about_goes_uncounted(void)
{
	void *ptr;

	CUDA(cudaFree(0));
	fakecuda_fail("cuPointerGetAttribute:1:UNKNOWN");
	ptr = ordered_malloc("r", MIB);
	CHECK_EQ(region_info("r").count_stream_ordered, 0);
	fakecuda_fail("cuStreamIsCapturing:1:UNKNOWN");
	ordered_malloc("r", MIB);
	CHECK_EQ(region_info("r").count_stream_ordered, 0);
	CUDA(cudaFreeAsync(ptr, NULL));
}

static void a_reset_ends_the_count(void)
{
	ordered_malloc("r", MIB);
	CUDA(cudaDeviceReset());
	CHECK_EQ(region_info("r").count_stream_ordered, 0);
	CHECK_EQ(region_info("r").bytes_stream_ordered, 0);
}

static void callers_of_smaller_structs_get_what_they_know(void)
{
	struct stayput_region_info infos[2];
	const size_t old = offsetof(struct stayput_region_info, bytes_stream_ordered);
	struct stayput_region_info *second = (void *)((char *)infos + old);
	struct stayput_report report;
	size_t count;

	ordered_malloc("first", MIB);
	region_malloc("second", STAYPUT_HOST, 4 * MIB);
	memset(infos, 0xff, sizeof infos);
	infos[0].struct_size = old;
	OK(stayput_region_info("first", infos));
	CHECK_EQ(infos[0].struct_size, old);
	CHECK_EQ(infos[0].bytes_stream_ordered, -1);
	OK(stayput_region_list(infos, 2, &count));
	CHECK_EQ(second->struct_size, old);
	CHECK_EQ(strcmp(second->tag, "second"), 0);
	CHECK_EQ(second->bytes_stream_ordered, -1);
	memset(&report, 0xff, sizeof report);
	report.struct_size = offsetof(struct stayput_report, bytes_stream_ordered);
	OK(stayput_pause_ex(NULL, 0, NULL, &report));
	CHECK_EQ(report.allocations, 1);
	CHECK_EQ(report.struct_size,
		offsetof(struct stayput_report, bytes_stream_ordered));
	CHECK_EQ(report.bytes_stream_ordered, -1);
	infos[0].struct_size = old - 8;
	CHECK_EQ(stayput_region_info("first", infos), STAYPUT_ERR_INVALID);
	infos[0].struct_size = sizeof *infos + 8;
	CHECK_EQ(stayput_region_info("first", infos), STAYPUT_ERR_INVALID);
	CHECK_EQ(stayput_region_list(infos, 2, &count), STAYPUT_ERR_INVALID);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		TEST(every_way_to_allocate_and_free_is_counted_once),
		TEST(outside_of_regions_nothing_is_counted),
		TEST(answers_of_the_real_function_stay),
		TEST(memory_counts_on_the_device_that_it_is_on),
		TEST(a_pause_says_how_much_it_leaves),
		TEST(a_pause_trims_the_pools_of_its_devices),
		TEST(a_pause_of_stream_ordered_memory_alone_trims_pools_too),
		TEST(the_current_pool_is_trimmed_beside_the_default_one),
		TEST(a_pool_that_cannot_be_trimmed_is_no_error),
		TEST(memory_of_a_captured_graph_is_not_counted),
		TEST(managed_memory_is_kept_and_told_once),
		TEST(what_cannot_be_asked_about_goes_uncounted),
		TEST(a_reset_ends_the_count),
		TEST(callers_of_smaller_structs_get_what_they_know),
	};

	return test_main(tests, sizeof tests / sizeof *tests, argc, argv);
}
