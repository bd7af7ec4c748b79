/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules and kernels. Any image is taken; a kernel is whatever a test registered under
 * its name. If the image is PTX, the sizes of its parameters are read there; otherwise
 * every kernel is taken to have sixteen parameters of eight bytes, read with care, as the
 * array that the caller gave may be shorter.
 */
#include "fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KERNELS = 64, NAME_BYTES = 128, PINS = 4096 };

struct registered {
	char name[NAME_BYTES];
	void (*fn)(void **params, unsigned grid_blocks);
};

struct CUfunc_st {
	struct CUfunc_st *next;
	struct CUmod_st *module;
	char name[NAME_BYTES];
	unsigned count; /* of parameters; 0 with is_unknown */
	bool is_unknown;
	unsigned short sizes[KERNEL_PARAMS];
};

struct CUmod_st {
	struct CUmod_st *next;
	char *text; /* PTX, or NULL */
};

static struct registered kernels[KERNELS] = {{"stayput_digest", digest_kernel}};
static struct CUmod_st *modules;
static struct CUfunc_st *functions;

void fakecuda_kernel(const char *name, void (*fn)(void **params, unsigned grid_blocks))
{
	struct registered *at = NULL;

	fake_lock();
	for (size_t i = 0; i < KERNELS; i++)
		if (strcmp(kernels[i].name, name) == 0 || (!at && !kernels[i].name[0]))
			at = &kernels[i];
	if (at && strlen(name) < NAME_BYTES) {
		strcpy(at->name, name);
		at->fn = fn;
	} else {
		fprintf(stderr, "fakecuda: no room for the kernel %s\n", name);
	}
	fake_unlock();
}

static struct registered *find_kernel_locked(const char *name)
{
	for (size_t i = 0; i < KERNELS; i++)
		if (kernels[i].fn && strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}

struct kernel_run {
	struct CUctx_st *ctx;
	bool has_faulted;
	size_t count;
	struct window pins[PINS];
};

/* [ptr, ptr + size) in one mapping, pinned by the caller's window. */
static bool pin_range_locked(
	CUdeviceptr ptr, size_t size, const struct access *access, struct window *w)
{
	struct range *range = space_find_locked(ptr);

	if (!range || size > range->base + range->size - ptr ||
		!space_pin_locked(ptr, size, access, w))
		return false;
	physical_touch_locked(range->phys, range->offset + (ptr - range->base), size);
	return true;
}

static void *look_locked(CUdeviceptr ptr, size_t size)
{
	struct range *range = space_find_locked(ptr);
	size_t offset;

	if (!range || size > range->base + range->size - ptr)
		return NULL;
	offset = range->offset + (ptr - range->base);
	physical_touch_locked(range->phys, offset, size);
	return range->phys->bytes + offset;
}

static void *reach_locked(struct kernel_run *run, CUdeviceptr ptr, size_t size)
{
	const struct access access = {.ctx = run->ctx};

	if (host_is_pinned_locked((void *)ptr, size))
		return (void *)ptr;
	if (run->count < PINS &&
		pin_range_locked(ptr, size, &access, &run->pins[run->count]))
		return run->pins[run->count++].bytes;
	run->has_faulted = true;
	return NULL;
}

void *fakecuda_at(CUdeviceptr ptr, size_t size)
{
	struct thread *thread = thread_self();
	void *at;

	fake_lock();
	if (thread && thread->run)
		at = reach_locked(thread->run, ptr, size);
	else
		at = look_locked(ptr, size);
	fake_unlock();
	return at;
}

/* Memory that was taken away while the kernel ran is an illegal access, too. */
CUresult kernel_run(struct kernel *kernel, struct CUctx_st *ctx)
{
	struct kernel_run *run = calloc(1, sizeof *run);
	void *params[KERNEL_PARAMS];
	bool is_good;

	if (!run)
		return CUDA_ERROR_OUT_OF_MEMORY;
	run->ctx = ctx;
	for (size_t i = 0; i < KERNEL_PARAMS; i++)
		params[i] = kernel->bytes + kernel->offsets[i];
	thread_self()->run = run;
	kernel->fn(params, kernel->grid_blocks);
	thread_self()->run = NULL;
	is_good = !run->has_faulted;
	for (size_t i = 0; i < run->count; i++)
		is_good = space_unpin(&run->pins[i]) && is_good;
	free(run);
	return is_good ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* ".b8 name[24]" is 24 bytes, ".u64 name" eight. 0: not understood. */
static size_t parameter_size(const char *text, const char *end)
{
	const char *bits = text, *bracket = memchr(text, '[', end - text);
	size_t size;

	while (bits < end && !isdigit((unsigned char)*bits))
		bits++;
	size = strtoul(bits, NULL, 10) / 8;
	return bracket ? size * strtoul(bracket + 1, NULL, 10) : size;
}

/* The text after ".entry name(", or NULL. */
static const char *find_entry(const char *text, const char *name)
{
	size_t len = strlen(name);

	while ((text = strstr(text, ".entry")) != NULL) {
		text += strlen(".entry");
		text += strspn(text, " \t\r\n");
		if (strncmp(text, name, len) == 0 && strchr("( \t\r\n", text[len]))
			return text + len;
	}
	return NULL;
}

static bool parse_parameters(const char *text, struct CUfunc_st *fn)
{
	const char *at = find_entry(text, fn->name), *close;

	close = at ? strchr(at, ')') : NULL;
	if (!close || memchr(at, '{', close - at))
		return at != NULL;
	while ((at = strstr(at, ".param")) != NULL && at < close) {
		const char *end = at + strcspn(at, ",)");

		/* The type is the last word with digits behind a dot, past any .align. */
		const char *type = strstr(at, ".b");

		at += strlen(".param");
		if (!type || type > end)
			type = at;
		if (fn->count == KERNEL_PARAMS)
			return false;
		fn->sizes[fn->count++] = parameter_size(type, end);
	}
	return true;
}

static bool is_ptx(const char *image)
{
	image += strspn(image, " \t\r\n");
	return strncmp(image, "//", 2) == 0 || strncmp(image, ".version", 8) == 0;
}

static CUresult load(CUmodule *made, const void *image)
{
	struct CUmod_st *module;

	if (!made || !image)
		return CUDA_ERROR_INVALID_VALUE;
	if (!settings()->jit)
		return is_ptx(image) ? CUDA_ERROR_INVALID_PTX
				     : CUDA_ERROR_NO_BINARY_FOR_GPU;
	module = calloc(1, sizeof *module);
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (is_ptx(image))
		module->text = strdup(image);
	fake_lock();
	module->next = modules;
	modules = module;
	fake_unlock();
	*made = module;
	return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : load(module, image), "%p", image);
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
	CUjit_option *options, void **values)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	(void)options;
	(void)values;
	return done(__func__, err ? err : load(module, image), "%p, %u options", image,
		count);
}

static void forget_functions_locked(const struct CUmod_st *module)
{
	struct CUfunc_st **at = &functions;

	while (*at) {
		struct CUfunc_st *fn = *at;

		if (fn->module == module) {
			*at = fn->next;
			free(fn);
		} else {
			at = &fn->next;
		}
	}
}

static CUresult unload(CUmodule module)
{
	struct CUmod_st **at = &modules;
	bool found;

	fake_lock();
	while (*at && *at != module)
		at = &(*at)->next;
	found = *at;
	if (found) {
		*at = module->next;
		forget_functions_locked(module);
		free(module->text);
		free(module);
	}
	fake_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuModuleUnload(CUmodule module)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : unload(module), "%p", (void *)module);
}

static bool is_module_locked(const struct CUmod_st *module)
{
	for (const struct CUmod_st *m = modules; m; m = m->next)
		if (m == module)
			return true;
	return false;
}

static CUresult get_function_locked(CUfunction *made, CUmodule module, const char *name)
{
	struct CUfunc_st *fn;

	if (!is_module_locked(module))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!find_kernel_locked(name))
		return CUDA_ERROR_NOT_FOUND;
	fn = calloc(1, sizeof *fn);
	if (!fn)
		return CUDA_ERROR_OUT_OF_MEMORY;
	strcpy(fn->name, name);
	fn->module = module;
	fn->is_unknown = !module->text || !parse_parameters(module->text, fn);
	fn->next = functions;
	functions = fn;
	*made = fn;
	return CUDA_SUCCESS;
}

static CUresult get_function(CUfunction *made, CUmodule module, const char *name)
{
	CUresult err;

	if (!made || !name || strlen(name) >= NAME_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	err = get_function_locked(made, module, name);
	fake_unlock();
	return err;
}

API CUresult cuModuleGetFunction(CUfunction *fn, CUmodule module, const char *name)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : get_function(fn, module, name);
	return done(__func__, err, "%p, %s", (void *)module, name ? name : "NULL");
}

static struct CUfunc_st *find_function_locked(CUfunction fn)
{
	for (struct CUfunc_st *f = functions; f; f = f->next)
		if (f == fn)
			return f;
	return NULL;
}

static CUresult function_attribute(int *value, CUfunction_attribute which, CUfunction fn)
{
	bool found;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	found = find_function_locked(fn);
	fake_unlock();
	if (!found)
		return CUDA_ERROR_INVALID_HANDLE;
	*value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
	return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction fn)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	err = err ? err : function_attribute(value, which, fn);
	return done(__func__, err, "%d, %p", (int)which, (void *)fn);
}

/* A read that fails, instead of crashing, where nothing is. */
static bool read_carefully(void *to, const void *from, size_t size)
{
	struct iovec local = {to, size}, remote = {(void *)(uintptr_t)from, size};

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size;
}

static void copy_unknown(struct kernel *kernel, void **params)
{
	for (size_t i = 0; i < KERNEL_PARAMS; i++) {
		void *at;

		kernel->offsets[i] = i * 8;
		if (read_carefully(&at, params + i, sizeof at))
			read_carefully(kernel->bytes + i * 8, at, 8);
	}
}

static CUresult copy_known(
	struct kernel *kernel, void **params, const struct CUfunc_st *fn)
{
	size_t at = 0;

	for (unsigned i = 0; i < fn->count; i++) {
		size_t size = fn->sizes[i];

		if (at + size > KERNEL_PARAM_BYTES)
			return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
		kernel->offsets[i] = at;
		memcpy(kernel->bytes + at, params[i], size);
		at += (size + 7) / 8 * 8;
	}
	return CUDA_SUCCESS;
}

static CUresult prepare(CUfunction handle, void **params, struct kernel *kernel)
{
	struct registered *registered;
	struct CUfunc_st *fn;
	CUresult err = CUDA_SUCCESS;

	fake_lock();
	fn = find_function_locked(handle);
	registered = fn ? find_kernel_locked(fn->name) : NULL;
	if (!registered)
		err = CUDA_ERROR_INVALID_HANDLE;
	else if (!fn->is_unknown && fn->count && !params)
		err = CUDA_ERROR_INVALID_VALUE;
	else if (!fn->is_unknown)
		err = copy_known(kernel, params, fn);
	else if (params)
		copy_unknown(kernel, params);
	if (registered)
		kernel->fn = registered->fn;
	fake_unlock();
	return err;
}

static CUresult launch(CUfunction fn, unsigned long blocks, unsigned long threads,
	void **params, CUstream stream)
{
	struct op op = {.kind = OP_KERNEL};
	CUresult err;

	if (!blocks || !threads || threads > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	op.kernel.grid_blocks = blocks;
	err = prepare(fn, params, &op.kernel);
	return err ? err : stream_enqueue(stream, &op, false);
}

API CUresult cuLaunchKernel(CUfunction fn, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	unsigned int block_z, unsigned int shared, CUstream stream, void **params,
	void **extra)
{
	CUresult err = gate(__func__, GATE_CONTEXT);
	unsigned long blocks = (unsigned long)grid_x * grid_y * grid_z;
	unsigned long threads = (unsigned long)block_x * block_y * block_z;

	if (err == CUDA_SUCCESS && extra)
		err = CUDA_ERROR_NOT_SUPPORTED;
	err = err ? err : launch(fn, blocks, threads, params, stream);
	return done(__func__, err, "%p, %lu blocks, %lu threads, %u, %p", (void *)fn,
		blocks, threads, shared, (void *)stream);
}

API CUresult cuLaunchKernel_ptsz(CUfunction fn, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	unsigned int block_z, unsigned int shared, CUstream stream, void **params,
	void **extra)
{
	return cuLaunchKernel(fn, grid_x, grid_y, grid_z, block_x, block_y, block_z,
		shared, per_thread(stream), params, extra);
}

static CUresult launch_host(CUstream stream, CUhostFn fn, void *user)
{
	struct op op = {.kind = OP_HOST, .host = {fn, user}};

	return fn ? stream_enqueue(stream, &op, false) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *user)
{
	CUresult err = gate(__func__, GATE_CONTEXT);

	return done(__func__, err ? err : launch_host(stream, fn, user), "%p, %p",
		(void *)stream, user);
}

API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn fn, void *user)
{
	return cuLaunchHostFunc(per_thread(stream), fn, user);
}
