/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups by name, answered with our hooks: how programs with a static runtime, and those
 * that open the driver themselves, reach us. In libstayput-deep.so only.
 *
 * The real lookup always comes first, and its status, errors and NULLs stay. What it
 * found is replaced when it is one of CUDA's own functions that we stand in front of, in
 * the same version and stream flavour. Nothing here may allocate, lock or log on the way
 * of dlsym(): malloc() itself may be what calls it.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

#include "dl.h"
#include "hook.h"
#include "lookup.h"
#include "real.h"

#undef cuGetProcAddress
#if CUDA_VERSION < 12000
typedef int CUdriverProcAddressQueryResult;
STAYPUT_HOOK CUresult cuGetProcAddress_v2(
	const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
#endif
STAYPUT_HOOK CUresult cuGetProcAddress(const char *, void **, int, cuuint64_t);

/* The rest of dlsym() below: a handle, and a name that begins with "cu". */
__attribute__((visibility("hidden"))) void *hook_dlsym(void *handle, const char *name);

/*
 * Whose RTLD_NEXT is meant, dlsym() tells by its return address, so everything that is
 * not for us has to get there by a jump, which the compiler does not promise to make.
 * RTLD_DEFAULT is 0 and RTLD_NEXT -1.
 */
#if defined(__x86_64__)
__asm__(".pushsection .text\n"
	".globl dlsym\n"
	".type dlsym, @function\n"
	".hidden dl_found\n"
	".hidden dl_find\n"
	".hidden hook_dlsym\n"
	"dlsym:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	leaq	1(%rdi), %rax\n"
	"	cmpq	$1, %rax\n"
	"	jbe	1f\n"
	"	testq	%rsi, %rsi\n"
	"	je	1f\n"
	"	cmpb	$'c', (%rsi)\n"
	"	jne	1f\n"
	"	cmpb	$'u', 1(%rsi)\n"
	"	jne	1f\n"
	"	jmp	hook_dlsym\n"
	"1:	movq	dl_found(%rip), %rax\n"
	"	testq	%rax, %rax\n"
	"	je	2f\n"
	"	jmp	*%rax\n"
	"2:	pushq	%rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq	%rsi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	subq	$8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call	dl_find\n"
	"	addq	$8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq	%rsi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq	%rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	testq	%rax, %rax\n"
	"	je	3f\n"
	"	jmp	*%rax\n"
	"3:	ret\n"
	"	.cfi_endproc\n"
	".size dlsym, . - dlsym\n"
	".popsection\n");
#elif defined(__aarch64__)
__asm__(".pushsection .text\n"
	".globl dlsym\n"
	".type dlsym, %function\n"
	".hidden dl_found\n"
	".hidden dl_find\n"
	".hidden hook_dlsym\n"
	".balign 4\n"
	"dlsym:\n"
	"	.cfi_startproc\n"
	"	hint	#34\n" /* bti c */
	"	add	x16, x0, #1\n"
	"	cmp	x16, #1\n"
	"	b.ls	1f\n"
	"	cbz	x1, 1f\n"
	"	ldrb	w16, [x1]\n"
	"	cmp	w16, #'c'\n"
	"	b.ne	1f\n"
	"	ldrb	w16, [x1, #1]\n"
	"	cmp	w16, #'u'\n"
	"	b.ne	1f\n"
	"	b	hook_dlsym\n"
	"1:	adrp	x16, dl_found\n"
	"	ldr	x16, [x16, #:lo12:dl_found]\n"
	"	cbz	x16, 2f\n"
	"	br	x16\n"
	"2:	stp	x29, x30, [sp, #-32]!\n"
	"	.cfi_def_cfa_offset 32\n"
	"	.cfi_offset x29, -32\n"
	"	.cfi_offset x30, -24\n"
	"	stp	x0, x1, [sp, #16]\n"
	"	bl	dl_find\n"
	"	mov	x16, x0\n"
	"	ldp	x0, x1, [sp, #16]\n"
	"	ldp	x29, x30, [sp], #32\n"
	"	.cfi_restore x30\n"
	"	.cfi_restore x29\n"
	"	.cfi_def_cfa_offset 0\n"
	"	cbz	x16, 3f\n"
	"	br	x16\n"
	"3:	mov	x0, #0\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size dlsym, . - dlsym\n"
	".popsection\n");
#else
#error "dlsym() is written for x86-64 and aarch64"
#endif

static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static bool begins(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* libcudart.so.13, or libcudart-a1b2c3d4.so.12 as wheels carry it. */
static bool is_runtime(const char *path)
{
	return begins(file_name(path), "libcudart.so") ||
	       begins(file_name(path), "libcudart-");
}

static int note_runtime(struct dl_phdr_info *info, size_t size, void *first)
{
	(void)size;
	if (!is_runtime(info->dlpi_name))
		return 0;
	*(const char **)first = info->dlpi_name;
	return 1;
}

/* A caller that is linked to no runtime, such as an interpreter's, is sent on from our
 * hook to the first runtime of the process: only that one's functions are replaced. */
static bool is_first_runtime(const char *path)
{
	const char *first = NULL;

	dl_iterate_phdr(note_runtime, &first);
	return first && strcmp(first, path) == 0;
}

static const char *file_of(void *code)
{
	Dl_info info;

	return dladdr(code, &info) && info.dli_fname ? info.dli_fname : "";
}

static bool is_driver(const char *path)
{
	return begins(file_name(path), "libcuda.so");
}

static bool is_of_cuda(void *function)
{
	const char *path = file_of(function);

	return is_driver(path) || (is_runtime(path) && is_first_runtime(path));
}

void *hook_dlsym(void *handle, const char *name)
{
	void *found = dl_symbol(handle, name);
	void *hook = found ? lookup_hook(name) : NULL;

	/* Under WSL libcuda.so.1 is a stub that looks up what it stands for: a hook would
	 * send it on to itself. */
	if (!hook || !is_of_cuda(found) ||
		is_driver(file_of(__builtin_return_address(0))))
		return found;
	return hook;
}

/* A newer form than the table knows, or an interposer's function, is not what the row
 * says and stays. */
void hook_replace(const char *name, void **function, int version, cuuint64_t flags)
{
	bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	const struct lookup_row *row;

	if (!name || !function || !*function)
		return;
	row = lookup_row(name, version, per_thread);
	if (row && *function == real_in_driver(row->symbol))
		*function = row->hook;
}

STAYPUT_HOOK CUresult cuGetProcAddress(
	const char *name, void **function, int version, cuuint64_t flags)
{
	typeof(&cuGetProcAddress) real = REAL(cuGetProcAddress);
	CUresult err =
		real ? real(name, function, version, flags) : CUDA_ERROR_NOT_INITIALIZED;

	if (err == CUDA_SUCCESS)
		hook_replace(name, function, version, flags);
	return err;
}

STAYPUT_HOOK CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
	cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	typeof(&cuGetProcAddress_v2) real = REAL(cuGetProcAddress_v2);
	CUresult err = real ? real(name, function, version, flags, status)
			    : CUDA_ERROR_NOT_INITIALIZED;

	if (err == CUDA_SUCCESS)
		hook_replace(name, function, version, flags);
	return err;
}
