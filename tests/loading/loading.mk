# SPDX-License-Identifier: Apache-2.0
# What tests/test_loading.c and test_torch.c run and load, in $(B)/loading, and these tests
# themselves, which are linked to nothing of CUDA. Included by the top Makefile after the fake's rules.

LOADING     := $(B)/loading
LOADING_SRC := tests/loading
# Dependencies are tracked under the name of the result, which is built in one step.
LOADING_CC   = $(CC) $(ALL_CPPFLAGS) -MF $@.d -MT $@ $(ALL_CFLAGS)
# A tail call would make a library's own caller look like the caller of cudaMalloc().
LOADING_SO   = $(LOADING_CC) -fvisibility=default -fno-optimize-sibling-calls -shared \
	       -Wl,-soname,$(@F)

MAPPERS := $(LOADING)/libmapper.so $(LOADING)/libnvshmem_host.so \
	$(LOADING)/libc10_cuda_mapper.so

# The same code under several names, each at the same address when that is free.
PLACED := $(LOADING)/libplaced_a.so $(LOADING)/libplaced_b.so $(LOADING)/libnccl.so

# The same under two runtimes.
PLACED_UNDER := $(LOADING)/libplaced12.so $(LOADING)/libplaced13.so

# A framework's own pool, under names that tell whose it is.
POOLS := $(LOADING)/libc10_cuda.so $(LOADING)/libxla_plugin.so $(LOADING)/libpool.so \
	$(LOADING)/libnccl_pool.so

loading: fakecuda $(B)/libstayput.so $(B)/test_loading $(B)/test_torch $(LOADING)/host \
	$(LOADING)/nodriver/libcuda.so.1 $(LOADING)/program11.0 \
	$(LOADING)/program12 $(LOADING)/program13 \
	$(LOADING)/libconsumer12.so $(LOADING)/libconsumer13.so \
	$(LOADING)/libconsumer_hashed.so $(LOADING)/libouter.so $(LOADING)/libearly.so \
	$(LOADING)/liblate.so $(LOADING)/libshim.so $(PLACED) $(PLACED_UNDER) \
	$(POOLS) $(MAPPERS)

$(B)/test_loading: tests/test_loading.c | $(FAKE)
	$(LOADING_CC) -o $@ $< -ldl $(LDFLAGS)

$(B)/test_torch: tests/test_torch.c | $(FAKE)
	$(LOADING_CC) -o $@ $< -Wl,--disable-new-dtags \
		-Wl,-rpath,'$$ORIGIN:$$ORIGIN/loading:$$ORIGIN/fake' -ldl $(LDFLAGS)

$(LOADING)/host: $(LOADING_SRC)/host.c | $(LOADING)
	$(LOADING_CC) -rdynamic -o $@ $< -ldl $(LDFLAGS)

$(LOADING)/program%: $(LOADING_SRC)/program.c $(FAKE)/libcudart.so.% | $(LOADING)
	$(LOADING_CC) -o $@ $^ -ldl $(LDFLAGS)

$(LOADING)/libconsumer%.so: $(LOADING_SRC)/consumer.c $(FAKE)/libcudart.so.% | $(LOADING)
	$(LOADING_SO) -o $@ $^ $(LDFLAGS)

# A runtime as wheels carry it: under a name of its own, which the library asks for.
HASHED := libcudart-a1b2c3d4.so.12

$(LOADING)/$(HASHED): $(FAKE_RUNTIME:%=$(FAKE)/libcudart.so.12-objects/%.o) \
		$(FAKE)/libcudart.so.12.map | $(LOADING)
	$(CC) $(ALL_CFLAGS) $(FAKE_SO) -Wl,--version-script=$(FAKE)/libcudart.so.12.map \
		-o $@ $(filter %.o,$^) -ldl $(LDFLAGS)

$(LOADING)/libconsumer_hashed.so: $(LOADING_SRC)/consumer.c $(LOADING)/$(HASHED)
	$(LOADING_SO) -o $@ $^ $(LDFLAGS)

$(LOADING)/libouter.so: $(LOADING_SRC)/outer.c $(LOADING)/libconsumer13.so
	$(LOADING_SO) -o $@ $^ -Wl,-rpath-link,$(FAKE) $(LDFLAGS)

$(LOADING)/libearly.so $(LOADING)/liblate.so: $(LOADING)/lib%.so: $(LOADING_SRC)/%.c \
		$(FAKE)/libcudart.so.13 | $(LOADING)
	$(LOADING_SO) -o $@ $^ -ldl $(LDFLAGS)

$(PLACED): $(LOADING_SRC)/consumer.c $(FAKE)/libcudart.so.13 | $(LOADING)
	$(LOADING_SO) -Wl,-Ttext-segment=0x20000000000 -o $@ $^ $(LDFLAGS)

$(PLACED_UNDER): $(LOADING)/libplaced%.so: $(LOADING_SRC)/consumer.c $(FAKE)/libcudart.so.% \
		| $(LOADING)
	$(LOADING_SO) -Wl,-Ttext-segment=0x20000000000 -o $@ $^ $(LDFLAGS)

$(POOLS): $(LOADING_SRC)/pool.c $(FAKE)/libcudart.so.13 | $(LOADING)
	$(LOADING_SO) -o $@ $^ $(LDFLAGS)

$(MAPPERS): $(LOADING_SRC)/mapper.c $(FAKE)/libcuda.so.1 | $(LOADING)
	$(LOADING_SO) -o $@ $^ $(LDFLAGS)

$(LOADING)/libshim.so: $(LOADING_SRC)/shim.c | $(LOADING)
	$(LOADING_SO) -o $@ $< -ldl $(LDFLAGS)

# No library: whoever opens it gets an error, as on a machine without a driver.
$(LOADING)/nodriver/libcuda.so.1: | $(LOADING)/nodriver
	: >$@

$(LOADING) $(LOADING)/nodriver: | $(FAKE)
	mkdir -p $@

-include $(wildcard $(LOADING)/*.d $(B)/test_loading.d $(B)/test_torch.d)
.PHONY: loading
