/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that is linked to nothing of CUDA and looks everything up by name. Jobs for
 * tests/test_deep.c.
 */
#include <cuda.h>

#include "../loading/libraries.h"
#include "../loading/preloaded.h"
#include "mallocs.h"

#undef cuGetProcAddress
typedef CUresult look_up_v1(const char *, void **, int, cuuint64_t);
typedef CUresult look_up_v2(const char *, void **, int, cuuint64_t, int *);
typedef cudaError_t entry_point_11(const char *, void **, unsigned long long);
typedef cudaError_t entry_point(const char *, void **, unsigned long long, int *);
typedef cudaError_t entry_point_by_version(
	const char *, void **, unsigned, unsigned long long, int *);

enum { LEGACY, PER_THREAD };

/* CU_MEM_HANDLE_TYPE_FABRIC, which older headers lack. */
enum { FABRIC_HANDLE = 8 };

struct row {
	const char *base;
	int since, flavour;
	const char *symbol;
};

#define LOOKUP_NAME(name)
#define LOOKUP_ROW(base, since, flavour, symbol) {#base, since, flavour, #symbol},
static const struct row hooked[] = {
#include "lookup_table.h"
};
#undef LOOKUP_NAME
#undef LOOKUP_ROW

#define LOOKUP_NAME(name) #name,
#define LOOKUP_ROW(base, since, flavour, symbol)
static const char *const hooked_names[] = {
#include "lookup_table.h"
};

/* What the fake driver has. */
#define ROW(base, since, flavour, symbol) {#base, since, flavour, #symbol},
static const struct row rows[] = {
#include "../fakecuda/proc_rows.h"
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void *open_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	CHECK(library);
	return library;
}

static const char *file_of(void *function)
{
	const char *slash;
	Dl_info info;

	CHECK(function);
	CHECK(dladdr(function, &info));
	slash = strrchr(info.dli_fname, '/');
	return slash ? slash + 1 : info.dli_fname;
}

/* It is the function of exactly that name: ours where we export one, else the library's.
 * Nothing of CUDA but our exports is in the global scope here. */
static void expect(void *function, void *library, const char *name)
{
	void *ours = dlsym(RTLD_DEFAULT, name);

	if (ours) {
		CHECK_HAS(file_of(ours), "libstayput-deep.so");
		CHECK(function == ours);
	} else {
		CHECK_HAS(file_of(function), "libcuda");
		CHECK(function == dlsym(library, name));
	}
}

static void find_by_handle(void)
{
	void *driver = open_library("libcuda.so.1");
	void *runtime = open_library("libcudart.so.13");

	for (int twice = 0; twice < 2; twice++) {
		for (size_t i = 0; i < COUNT(rows); i++)
			expect(dlsym(driver, rows[i].symbol), driver, rows[i].symbol);
		for (size_t i = 0; i < COUNT(hooked_names); i++) {
			void *function = dlsym(runtime, hooked_names[i]);

			/* Built with older headers, it lacks the newest. */
			if (strncmp(hooked_names[i], "cuda", 4) != 0 ||
				(!function && CUDA_VERSION < 12030))
				continue;
			expect(function, runtime, hooked_names[i]);
		}
		expect(dlsym(runtime, "cudaMemcpy"), runtime, "cudaMemcpy");
	}
	CHECK_HAS(file_of(dlsym(driver, "cuCtxDestroy")), "libcuda.so");
	CHECK_HAS(file_of(dlsym(driver, "cuStreamBeginCapture")), "libcuda.so");
}

/* What is called like a function of CUDA's and is somebody else's. */
static void leave_other_libraries_alone(void)
{
	void *shim = open_library("libshim.so");

	CHECK_HAS(file_of(dlsym(shim, "cudaMalloc")), "libshim.so");
	CHECK_HAS(file_of(dlsym(shim, "cudaFree")), "libshim.so");
}

static void answer_the_driver_itself(void)
{
	void *driver = open_library("libcuda.so.1");
	void *(*look_up)(void *, const char *) = (void *(*)(void *, const char *))symbol(
		open_library("libcuda.so.stub"), "stub_look_up");

	CHECK_HAS(file_of(look_up(driver, "cuMemAlloc_v2")), "libcuda.so.1");
	expect(dlsym(driver, "cuMemAlloc_v2"), driver, "cuMemAlloc_v2");
}

/* libanswer is preloaded too. */
static void leave_answers_of_others_alone(void)
{
	look_up_v2 *look_up =
		(look_up_v2 *)symbol(open_library("libcuda.so.1"), "cuGetProcAddress_v2");
	void *function = NULL;

	CHECK_HAS(file_of((void *)look_up), "libstayput-deep.so");
	CHECK_EQ(look_up("cuMemAlloc", &function, 12000, 0, NULL), 0);
	CHECK_HAS(file_of(function), "libanswer.so");
}

/* The second one's functions cannot be told from the first one's in the hook. */
static void leave_second_runtime_alone(void)
{
	void *first = open_library("libcudart.so.12");
	void *second = open_library("libcudart.so.13");

	expect(dlsym(first, "cudaMalloc"), first, "cudaMalloc");
	CHECK_HAS(file_of(dlsym(second, "cudaMalloc")), "libcudart.so.13");
}

static void *proc_address(void *driver, const struct row *row, int version)
{
	look_up_v2 *v2 = (look_up_v2 *)symbol(driver, "cuGetProcAddress_v2");
	look_up_v1 *v1 = (look_up_v1 *)symbol(driver, "cuGetProcAddress");
	void *one = NULL, *two = NULL;
	int status = -1;

	CHECK_EQ(v1(row->base, &one, version, row->flavour == PER_THREAD ? 2 : 0), 0);
	CHECK_EQ(
		v2(row->base, &two, version, row->flavour == PER_THREAD ? 2 : 0, &status),
		0);
	CHECK(one == two);
	CHECK_EQ(status, one ? 0 : 2);
	return one;
}

static void find_by_version(void)
{
	void *driver = open_library("libcuda.so.1");

	for (size_t i = 0; i < COUNT(rows); i++)
		expect(proc_address(driver, &rows[i], rows[i].since), driver,
			rows[i].symbol);
}

static const struct row *row_of(const char *symbol)
{
	for (size_t i = 0; i < COUNT(rows); i++)
		if (strcmp(rows[i].symbol, symbol) == 0)
			return &rows[i];
	return NULL;
}

/* What the generated table says is what the driver does, if it has the function. */
static void find_every_hook(void)
{
	void *driver = open_library("libcuda.so.1");

	for (size_t i = 0; i < COUNT(hooked); i++) {
		const struct row *theirs = row_of(hooked[i].symbol);

		/* Older headers lack the newest functions. */
		if (!theirs && CUDA_VERSION < 12030)
			continue;
		CHECK(theirs);
		CHECK_EQ(hooked[i].since, theirs->since);
		CHECK_EQ(hooked[i].flavour, theirs->flavour);
		expect(proc_address(driver, &hooked[i], hooked[i].since), driver,
			hooked[i].symbol);
	}
}

static void expect_symbol(
	void *driver, const char *base, int version, int flavour, const char *want)
{
	const struct row row = {base, version, flavour, want};
	void *function = proc_address(driver, &row, version);

	if (!want)
		CHECK(!function);
	else
		expect(function, driver, want);
}

static void find_the_version_asked_for(void)
{
	void *d = open_library("libcuda.so.1");

	expect_symbol(d, "cuMemAlloc", 2000, LEGACY, NULL);
	expect_symbol(d, "cuMemAlloc", 3020, LEGACY, "cuMemAlloc_v2");
	expect_symbol(d, "cuMemAlloc", 11030, PER_THREAD, "cuMemAlloc_v2");
	expect_symbol(d, "cuMemAlloc", 12000, LEGACY, "cuMemAlloc_v2");
	expect_symbol(d, "cuMemFreeAsync", 3020, PER_THREAD, NULL);
	expect_symbol(d, "cuMemFreeAsync", 11030, LEGACY, "cuMemFreeAsync");
	expect_symbol(d, "cuMemFreeAsync", 12000, PER_THREAD, "cuMemFreeAsync_ptsz");
	expect_symbol(d, "cuCtxDestroy", 3020, LEGACY, "cuCtxDestroy");
	expect_symbol(d, "cuCtxDestroy", 12000, PER_THREAD, "cuCtxDestroy_v2");
	expect_symbol(d, "cuStreamBeginCapture", 10000, LEGACY, "cuStreamBeginCapture");
	expect_symbol(d, "cuStreamBeginCapture", 10000, PER_THREAD,
		"cuStreamBeginCapture_ptsz");
	expect_symbol(d, "cuStreamBeginCapture", 12000, PER_THREAD,
		"cuStreamBeginCapture_v2_ptsz");
	expect_symbol(d, "cuGetProcAddress", 3020, LEGACY, NULL);
	expect_symbol(d, "cuGetProcAddress", 11030, PER_THREAD, "cuGetProcAddress");
	expect_symbol(d, "cuGetProcAddress", 12000, LEGACY, "cuGetProcAddress_v2");
	expect_symbol(
		d, "cuDevicePrimaryCtxReset", 10020, LEGACY, "cuDevicePrimaryCtxReset");
	expect_symbol(d, "cuDevicePrimaryCtxReset", 12000, LEGACY,
		"cuDevicePrimaryCtxReset_v2");
}

static void find_entry_points(const char *library, int flags)
{
	void *runtime = dlopen(library, RTLD_NOW | flags), *function = NULL;
	void *driver = open_library("libcuda.so.1");
	bool old = strstr(library, ".11.");
	const char *const names[] = {
		"cudaGetDriverEntryPoint", "cudaGetDriverEntryPoint_ptsz"};
	int status = -1;

	CHECK(runtime);
	for (int ptsz = 0; ptsz < 2; ptsz++) {
		void *get = dlsym(runtime, names[ptsz]);

		expect(get, runtime, names[ptsz]);
		for (int twice = 0; twice < 2; twice++) {
			CHECK_EQ(old ? ((entry_point_11 *)get)(
					       "cuMemFreeAsync", &function, 0)
				     : ((entry_point *)get)(
					       "cuMemFreeAsync", &function, 0, &status),
				0);
			expect(function, driver,
				ptsz ? "cuMemFreeAsync_ptsz" : "cuMemFreeAsync");
		}
	}
	CHECK_EQ(status, old ? -1 : 0);
}

static void find_entry_points_11(void)
{
	find_entry_points("libcudart.so.11.0", RTLD_LOCAL);
}

static void find_entry_points_12(void)
{
	find_entry_points("libcudart.so.12", RTLD_LOCAL);
}

static void find_entry_points_13(void)
{
	find_entry_points("libcudart.so.13", RTLD_LOCAL);
}

/* A runtime opened so calls the C library's dlsym() and not ours. */
static void find_entry_points_deep(void)
{
	find_entry_points("libcudart.so.13", RTLD_LOCAL | RTLD_DEEPBIND);
}

static void find_entry_points_by_version(void)
{
	void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_DEEPBIND);
	void *driver = open_library("libcuda.so.1"), *function = NULL;
	entry_point_by_version *get = (entry_point_by_version *)symbol(
		runtime, "cudaGetDriverEntryPointByVersion");
	entry_point_by_version *get_ptsz = (entry_point_by_version *)symbol(
		runtime, "cudaGetDriverEntryPointByVersion_ptsz");
	int status;

	CHECK_EQ(get("cuStreamBeginCapture", &function, 10000, 0, &status), 0);
	expect(function, driver, "cuStreamBeginCapture");
	CHECK_EQ(get("cuStreamBeginCapture", &function, 12000, 0, &status), 0);
	expect(function, driver, "cuStreamBeginCapture_v2");
	CHECK_EQ(get("cuStreamEndCapture", &function, 12000, 2, &status), 0);
	expect(function, driver, "cuStreamEndCapture_ptsz");
	CHECK_EQ(get_ptsz("cuStreamEndCapture", &function, 12000, 0, &status), 0);
	expect(function, driver, "cuStreamEndCapture_ptsz");
	CHECK_EQ(get_ptsz("cuStreamEndCapture", &function, 12000, 1, &status), 0);
	expect(function, driver, "cuStreamEndCapture");
	CHECK_EQ(get("cuGetProcAddress", &function, 11030, 0, &status), 0);
	expect(function, driver, "cuGetProcAddress");
}

/* As Numba and XLA do it. */
static void allocate_by_driver(void)
{
	void *driver = open_library("libcuda.so.1");
	typeof(&cuInit) init = (typeof(&cuInit))symbol(driver, "cuInit");
	typeof(&cuDevicePrimaryCtxRetain) retain =
		(typeof(&cuDevicePrimaryCtxRetain))symbol(
			driver, "cuDevicePrimaryCtxRetain");
	typeof(&cuCtxSetCurrent) set_current =
		(typeof(&cuCtxSetCurrent))symbol(driver, "cuCtxSetCurrent");
	typeof(&cuMemAlloc_v2) allocate =
		(typeof(&cuMemAlloc_v2))symbol(driver, "cuMemAlloc_v2");
	typeof(&cuMemFree_v2) release =
		(typeof(&cuMemFree_v2))symbol(driver, "cuMemFree_v2");
	CUcontext ctx;
	CUdeviceptr ptr;

	CHECK_EQ(init(0), 0);
	CHECK_EQ(retain(&ctx, 0), 0);
	CHECK_EQ(set_current(ctx), 0);
	CHECK_EQ(allocate(&ptr, 3 * MIB), 0);
	CHECK(is_region_memory((void *)ptr));
	CHECK_EQ(STAYPUT(stayput_pause)("engine"), STAYPUT_OK);
	CHECK_EQ(STAYPUT(stayput_resume)("engine"), STAYPUT_OK);
	CHECK_EQ(release(ptr), 0);
	CHECK(!is_region_memory((void *)ptr));
}

static bool allocates_in_region(const char *name)
{
	void *library = open_library(name), *ptr = NULL;
	typeof(&consumer_malloc) allocate =
		(typeof(&consumer_malloc))symbol(library, "consumer_malloc");
	typeof(&consumer_free) release =
		(typeof(&consumer_free))symbol(library, "consumer_free");
	bool in_region;

	CHECK_EQ(allocate(&ptr, 3 * MIB), 0);
	in_region = is_region_memory(ptr);
	CHECK_EQ(release(ptr), 0);
	return in_region;
}

/* Libraries with a runtime of their own, as NCCL has one. */
static void leave_excluded_libraries_alone(void)
{
	CHECK(allocates_in_region("libown_runtime.so"));
	CHECK(!allocates_in_region("libnccl_own_runtime.so"));
	begin_region();
	CHECK(!allocates_in_region("libnccl_own_runtime.so"));
	end_region();
}

static void *driver_symbol(const char *name)
{
	static void *driver;

	if (!driver)
		driver = open_library("libcuda.so.1");
	return symbol(driver, name);
}

#define DRIVER(function) ((typeof(&function))driver_symbol(#function))

static CUdeviceptr map_own(size_t size, CUmemGenericAllocationHandle *handle)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes =
			(CUmemAllocationHandleType)(FABRIC_HANDLE |
						    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.allocFlags = {.gpuDirectRDMACapable = 1},
	};
	const CUmemAccessDesc access = {
		.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr ptr;

	CHECK_EQ(DRIVER(cuMemCreate)(handle, size, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CHECK_EQ(DRIVER(cuMemCreate)(handle, size, &prop, 0), 0);
	CHECK_EQ(DRIVER(cuMemAddressReserve)(&ptr, size, 2 * MIB, 0, 0), 0);
	CHECK_EQ(DRIVER(cuMemMap)(ptr, size, 0, *handle, 0), 0);
	CHECK_EQ(DRIVER(cuMemSetAccess)(ptr, size, &access, 1), 0);
	return ptr;
}

/* As XLA makes all its memory. */
static void map_by_driver(void)
{
	CUmemGenericAllocationHandle handle;
	size_t before, during, total;
	CUcontext ctx;
	CUdeviceptr ptr;
	int value = 0;

	CHECK_EQ(DRIVER(cuInit)(0), 0);
	CHECK_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&ctx, 0), 0);
	CHECK_EQ(DRIVER(cuCtxSetCurrent)(ctx), 0);
	CHECK_EQ(DRIVER(cuMemGetInfo_v2)(&before, &total), 0);
	ptr = map_own(4 * MIB, &handle);
	CHECK(is_region_memory((void *)ptr));
	CHECK_EQ(DRIVER(cuMemsetD32_v2)(ptr, 1234, MIB), 0);
	CHECK_EQ(STAYPUT(stayput_pause)("engine"), STAYPUT_OK);
	CHECK_EQ(DRIVER(cuMemGetInfo_v2)(&during, &total), 0);
	CHECK_EQ(during, before);
	CHECK_EQ(STAYPUT(stayput_resume)("engine"), STAYPUT_OK);
	CHECK_EQ(DRIVER(cuMemcpyDtoH_v2)(
			 &value, ptr + 4 * MIB - sizeof value, sizeof value),
		0);
	CHECK_EQ(value, 1234);
	CHECK_EQ(DRIVER(cuCtxSynchronize)(), 0);
	CHECK_EQ(DRIVER(cuMemUnmap)(ptr, 4 * MIB), 0);
	CHECK_EQ(DRIVER(cuMemRelease)(handle), 0);
	CHECK_EQ(DRIVER(cuMemAddressFree)(ptr, 4 * MIB), 0);
	CHECK(!is_region_memory((void *)ptr));
}

/* As ctypes does it. */
static void allocate_by_runtime(void)
{
	void *runtime = open_library("libcudart.so.13"), *ptr = NULL;
	typeof(&cudaMalloc) allocate = (typeof(&cudaMalloc))symbol(runtime, "cudaMalloc");
	typeof(&cudaFree) release = (typeof(&cudaFree))symbol(runtime, "cudaFree");

	CHECK_EQ(allocate(&ptr, 3 * MIB), 0);
	CHECK(is_region_memory(ptr));
	CHECK_EQ(release(ptr), 0);
	CHECK(!is_region_memory(ptr));
}

static void tell_one(look_up_v2 *look_up, const char *name, int version, int flags)
{
	int status = -7, unasked = -7;
	void *function = (void *)1;
	CUresult err = look_up(name, &function, version, (cuuint64_t)flags, &status);

	printf("%s %d %d: %d, status %d, %s\n", name ? name : "NULL", version, flags,
		(int)err, status,
		!function               ? "NULL"
		: function == (void *)1 ? "unset"
					: "found");
	function = (void *)1;
	err = look_up(name, &function, version, (cuuint64_t)flags, NULL);
	printf("  without status: %d, %d\n", (int)err, unasked);
}

/* What does not depend on whether we are there. */
static void tell_answers(void)
{
	void *driver = open_library("libcuda.so.1"), *math = open_library("libm.so.6");
	look_up_v2 *v2 = (look_up_v2 *)symbol(driver, "cuGetProcAddress_v2");
	look_up_v1 *v1 = (look_up_v1 *)symbol(driver, "cuGetProcAddress");
	const char *const names[] = {"cuMemAlloc", "cuNothing", "", "cuMemAlloc_v2", NULL,
		"cudaMalloc", "cuStreamBeginCaptureToGraph", "cuGetProcAddress"};
	const int versions[] = {0, 2000, 3020, 11030, 12000, 13000, 99999, -1};
	const char *error;

	for (size_t n = 0; n < COUNT(names); n++)
		for (size_t v = 0; v < COUNT(versions); v++)
			for (int flags = 0; flags < 4; flags++)
				tell_one(v2, names[n], versions[v], flags);
	printf("%d\n", (int)v2("cuMemAlloc", NULL, 12000, 0, NULL));
	printf("%d\n", (int)v1("cuMemAlloc", NULL, 12000, 0));
	printf("%p %p\n", dlsym(driver, "cuNothing"), dlsym(driver, "cudaMalloc"));
	error = dlerror();
	printf("%s\n", error ? strrchr(error, ':') : "no error");
	printf("%p\n", dlsym(driver, ""));
	CHECK(dlsym(math, "cos") && dlsym(driver, "cuMemAlloc_v2"));
	printf("%s\n", dlerror() ? "an error is left" : "no error");
	printf("%s %s %s\n", file_of(dlsym(math, "cos")), file_of(dlsym(math, "cbrt")),
		file_of(dlsym(RTLD_DEFAULT, "malloc")));
	printf("%p %p\n", dlsym(RTLD_NEXT, "main"), dlsym(RTLD_DEFAULT, "cuNothing"));
	CHECK(dlsym(RTLD_NEXT, "strlen"));
}

static void look_up_inside_malloc(void)
{
	void *driver = open_library("libcuda.so.1"), *memory;

	CHECK_EQ(STAYPUT(mallocs_nested)(), 0);
	STAYPUT(mallocs_look_up)(driver, "cuMemAlloc_v2");
	memory = malloc(100);
	CHECK(memory);
	free(memory);
	CHECK(STAYPUT(mallocs_found)() == dlsym(driver, "cuMemAlloc_v2"));
	CHECK_EQ(STAYPUT(mallocs_nested)(), 0);
	STAYPUT(mallocs_look_up)(NULL, NULL);
}

int main(int argc, char **argv)
{
	static const struct job jobs[] = {
		JOB(find_by_handle),
		JOB(leave_other_libraries_alone),
		JOB(answer_the_driver_itself),
		JOB(leave_answers_of_others_alone),
		JOB(leave_second_runtime_alone),
		JOB(find_by_version),
		JOB(find_every_hook),
		JOB(find_the_version_asked_for),
		JOB(find_entry_points_11),
		JOB(find_entry_points_12),
		JOB(find_entry_points_13),
		JOB(find_entry_points_deep),
		JOB(find_entry_points_by_version),
		JOB(allocate_by_driver),
		JOB(map_by_driver),
		JOB(allocate_by_runtime),
		JOB(leave_excluded_libraries_alone),
		JOB(tell_answers),
		JOB(look_up_inside_malloc),
	};

	return do_job(jobs, sizeof jobs / sizeof *jobs, argc, argv);
}
