# SPDX-License-Identifier: Apache-2.0
# make             build/stayput, build/libstayput.so, -deep.so and -tms.so
# make demo        the main job in one run: on the GPU if there is one, else on the fake
# make test        every test, on the fake driver; TEST=name runs one; SAN=address, thread
# make wheel       the Python package with the libraries: build/wheel/stayput-*.whl
# make lint-python types and style of the Python package
# make fuzz        the reader of requests under libFuzzer, FUZZ_SECONDS=600
# make bench       the library against the hardware, on this machine's GPU
# make install uninstall format clean
PREFIX ?= /usr/local
CFLAGS ?= -O2 -g
SAN    ?=
B      ?= build$(if $(SAN),-$(SAN))

WARN := -Wall -Wextra -Wshadow -Wundef -Wvla -Wcast-qual -Wwrite-strings \
        -Wstrict-prototypes -Wmissing-prototypes

CUDA_INCLUDE := $(shell sh src/find_cuda.sh)
ifeq ($(CUDA_INCLUDE),)
ifneq ($(filter-out clean format,$(or $(MAKECMDGOALS),all)),)
$(error cuda.h and cuda_runtime_api.h were not found. Looked in $$CUDA_HOME/include, \
/usr/local/cuda/include, the compiler's own path and the nvidia packages of python3. \
Install the CUDA headers or set CUDA_HOME)
endif
endif

SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -DSTAYPUT_CHECKS)

# CFLAGS and CPPFLAGS belong to whoever builds; what the code cannot do without is here.
ALL_CFLAGS   = -std=gnu11 -fPIC -pthread -fvisibility=hidden -ftls-model=initial-exec \
               $(WARN) $(CFLAGS) $(SANFLAGS)
ALL_CPPFLAGS = -D_GNU_SOURCE -Iinclude -Isrc -isystem $(CUDA_INCLUDE) -MMD -MP $(CPPFLAGS)
LINK_SO      = -shared -Wl,-soname,$(@F) -Wl,--version-script=$(filter %.map,$^) \
               -Wl,-Bsymbolic-functions -Wl,-z,now,-z,relro,-z,nodelete \
               $(if $(SAN),,-Wl,-z,defs)

# The deep library is the first one and these; so is that in torch_memory_saver's place.
DEEP  := $(B)/hook_lookup.o $(B)/lookup.o
TMS   := $(B)/compat_tms.o
OBJ   := $(filter-out $(DEEP) $(TMS),$(patsubst src/%.c,$(B)/%.o,$(wildcard src/*.c)))
TESTS := $(patsubst tests/%.c,$(B)/%,$(wildcard tests/test_*.c)) \
         $(patsubst tests/%.sh,$(B)/%,$(wildcard tests/test_*.sh))

all: $(B)/libstayput.so $(B)/libstayput-deep.so $(B)/libstayput-tms.so $(B)/stayput

$(B)/libstayput.so: $(OBJ) src/stayput.map
	$(CC) $(ALL_CFLAGS) $(LINK_SO) -o $@ $(OBJ) $(LDFLAGS)

$(B)/libstayput-deep.so: $(OBJ) $(DEEP) $(B)/stayput-deep.map
	$(CC) $(ALL_CFLAGS) $(LINK_SO) -o $@ $(OBJ) $(DEEP) $(LDFLAGS)

$(B)/stayput-deep.map: src/stayput.map src/lookup.names | $(B)/.gitignore
	sed -n '/^[a-z]/s/.*/	&;/p' src/lookup.names | \
		sed '/^global:/r /dev/stdin' src/stayput.map >$@

$(B)/libstayput-tms.so: $(OBJ) $(TMS) $(B)/stayput-tms.map
	$(CC) $(ALL_CFLAGS) $(LINK_SO) -o $@ $(OBJ) $(TMS) $(LDFLAGS)

$(B)/stayput-tms.map: src/stayput.map src/compat_tms.names | $(B)/.gitignore
	sed -n 's/^[a-z].*/	&;/p' src/compat_tms.names | \
		sed '/^global:/r /dev/stdin' src/stayput.map >$@

# By hand when a hook is added, since older headers lack newer functions.
lookup-table:
	python3 src/make_lookup_table.py $(CUDA_INCLUDE)/cudaTypedefs.h src/stayput.map \
		src/lookup.names >src/lookup_table.h

$(B)/%.o: src/%.c | $(B)/.gitignore
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c -o $@ $<

# The program, which reads settings and host memory with the library's own code. In a Python
# wheel libcjson stands beside the libraries.
CLI_OBJ := $(patsubst cli/%.c,$(B)/cli/%.o,$(wildcard cli/*.c)) $(B)/config.o $(B)/config_rules.o \
           $(B)/log.o $(B)/hostmem.o

$(B)/stayput: $(CLI_OBJ)
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDFLAGS) -lcjson -ldl -Wl,-rpath,'$$ORIGIN/../lib'

$(B)/cli/%.o: cli/%.c | $(B)/cli
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c -o $@ $<

$(B)/cli: | $(B)/.gitignore
	@echo '#include <cjson/cJSON.h>' | $(CC) $(CPPFLAGS) -E - >/dev/null 2>&1 || \
		{ echo 'cjson/cJSON.h was not found, which $(B)/stayput needs. Install' \
		'libcjson-dev (Debian, Ubuntu) or cjson-devel (Fedora)' >&2; exit 1; }
	mkdir -p $@

# Build folders are ignored by git without a file at the top that says so.
$(B)/.gitignore:
	mkdir -p $(@D)
	echo '*' >$@

# Tests are linked to the library before the runtime, as if it had been preloaded.
LINK_TEST = -L$(B) -lstayput -L$(B)/fake -lcudart -lcuda \
            -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/fake' -Wl,--no-as-needed

$(B)/test_%: tests/test_%.c $(B)/libstayput.so fakecuda
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -o $@ $< $(LINK_TEST) $(LDFLAGS)

# Tests that are scripts: SCRIPT BUILD [TEST].
$(B)/test_%: tests/test_%.sh | $(B)/.gitignore
	printf '#!/bin/sh\nexec %s/tests/test_$*.sh %s "$$@"\n' '$(CURDIR)' '$(CURDIR)/$(B)' >$@
	chmod +x $@

$(B)/test_rules $(B)/test_silence $(B)/test_vmm $(B)/test_vmm_deep: | loading

$(B)/digest_reference.o: tests/digest_reference.c | $(B)/.gitignore
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c -o $@ $<

$(B)/test_backup: tests/test_backup.c $(B)/digest_reference.o $(B)/hostmem.o \
		$(B)/libstayput.so fakecuda
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -o $@ $(filter %.c %.o,$^) $(LINK_TEST) $(LDFLAGS)

$(B)/test_ipc: tests/test_ipc.c $(B)/ipc.o $(B)/descriptor.o $(B)/libstayput.so fakecuda
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -o $@ $(filter %.c %.o,$^) $(LINK_TEST) $(LDFLAGS)

$(B)/test_config: tests/test_config.c $(B)/config.o $(B)/config_rules.o $(B)/log.o
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -o $@ $^ $(LDFLAGS)

$(B)/test_tms: tests/test_tms.c $(B)/libstayput-tms.so fakecuda
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -o $@ $< \
		$(LINK_TEST:-lstayput=-lstayput-tms) $(LDFLAGS)

-include tests/fakecuda/fake.mk tests/loading/loading.mk tests/deep/deep.mk \
	tests/python/python.mk tests/fuzz/fuzz.mk tests/cli/cli.mk

test: all fakecuda loading deep python cli-tests $(TESTS)
	tests/run.sh $(B) $(TEST)

check-elf: all
	tests/check_elf.sh $(B)/libstayput.so src/stayput.map $(OBJ)
	tests/check_elf.sh $(B)/libstayput-deep.so $(B)/stayput-deep.map $(OBJ) $(DEEP)
	tests/check_elf.sh $(B)/libstayput-tms.so $(B)/stayput-tms.map $(OBJ) $(TMS)

bench: all fakecuda
	tests/bench/run.sh $(B)

demo: all fakecuda
	examples/demo.sh $(B)

VERSION   := $(shell sed -n 's/^\#define STAYPUT_VERSION "\(.*\)"/\1/p' include/stayput.h)
PLACE      = $(DESTDIR)$(PREFIX)
COMPLETION = $(PLACE)/share/bash-completion/completions/stayput
# torch_memory_saver's Python package takes a preload whose path has its name in it.
TMS_FOLDER := stayput/torch_memory_saver

install: all
	install -D -m 755 $(B)/stayput $(PLACE)/bin/stayput
	install -D -m 755 $(B)/libstayput.so $(PLACE)/lib/libstayput.so
	install -D -m 755 $(B)/libstayput-deep.so $(PLACE)/lib/libstayput-deep.so
	install -D -m 755 $(B)/libstayput-tms.so $(PLACE)/lib/$(TMS_FOLDER)/libstayput-tms.so
	install -D -m 644 include/stayput.h $(PLACE)/include/stayput.h
	install -D -m 644 docs/stayput.1 $(PLACE)/share/man/man1/stayput.1
	install -D -m 644 cli/stayput.bash $(COMPLETION)
	install -d $(PLACE)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' cli/stayput.pc.in \
		>$(PLACE)/lib/pkgconfig/stayput.pc
	chmod 644 $(PLACE)/lib/pkgconfig/stayput.pc

# Folders stay: others may have files there.
uninstall:
	rm -f $(PLACE)/bin/stayput $(PLACE)/lib/libstayput.so $(PLACE)/lib/libstayput-deep.so \
		$(PLACE)/lib/$(TMS_FOLDER)/libstayput-tms.so \
		$(PLACE)/include/stayput.h $(PLACE)/share/man/man1/stayput.1 \
		$(COMPLETION) $(PLACE)/lib/pkgconfig/stayput.pc

format:
	clang-format --style=file:.ci/clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf build build-address build-thread python/build python/*.egg-info

-include $(wildcard $(B)/*.d $(B)/cli/*.d $(B)/fake/*.d)
.PHONY: all lookup-table test check-elf bench demo install uninstall format clean fakecuda loading \
	deep python fuzz
