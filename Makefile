# SPDX-License-Identifier: Apache-2.0
# make             build/libstayput.so
# make demo        the main job in one run: on the GPU if there is one, else on the fake
# make test        every test, on the fake driver; TEST=name runs one; SAN=address, thread
# make check-gpu   the same tests that a real driver can run, on this machine's GPU
# make lint format install uninstall clean
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
LINK_SO      = -shared -Wl,-soname,$(@F) -Wl,--version-script=src/stayput.map \
               -Wl,-Bsymbolic-functions -Wl,-z,now,-z,relro,-z,nodelete \
               $(if $(SAN),,-Wl,-z,defs)

OBJ   := $(patsubst src/%.c,$(B)/%.o,$(wildcard src/*.c))
TESTS := $(patsubst tests/%.c,$(B)/%,$(wildcard tests/test_*.c))

all: $(B)/libstayput.so

$(B)/libstayput.so: $(OBJ) src/stayput.map
	$(CC) $(ALL_CFLAGS) $(LINK_SO) -o $@ $(OBJ) $(LDFLAGS)

$(B)/%.o: src/%.c | $(B)/fake
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c -o $@ $<

$(B)/fake:
	mkdir -p $@
	echo '*' >$(B)/.gitignore

clean:
	rm -rf build build-address build-thread

-include $(wildcard tests/fakecuda/fake.mk)
-include $(wildcard $(B)/*.d $(B)/fake/*.d)
.PHONY: all clean
