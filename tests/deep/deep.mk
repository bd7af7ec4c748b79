# SPDX-License-Identifier: Apache-2.0
# What tests/test_deep.c runs and loads, beside the programs of tests/loading in the same
# folder; and tests of the other library, over again with the deep one. Included by the
# top Makefile after the loading rules.

DEEP_SRC   := tests/deep
DEEP_AGAIN := $(patsubst %,$(B)/test_%_deep,region pause threads native rules ipc vmm)

OWN_RUNTIME := $(LOADING)/libown_runtime.so $(LOADING)/libnccl_own_runtime.so

deep: loading $(B)/libstayput-deep.so $(B)/test_deep $(B)/test_loading_deep $(DEEP_AGAIN) \
	$(LOADING)/deep_static $(LOADING)/deep_shared $(LOADING)/deep_lookup \
	$(LOADING)/libmallocs.so $(LOADING)/libanswer.so $(LOADING)/libcuda.so.stub \
	$(OWN_RUNTIME)

$(B)/test_deep: tests/test_deep.c | $(FAKE)
	$(LOADING_CC) -o $@ $< -ldl $(LDFLAGS)

$(B)/test_loading_deep: tests/test_loading.c | $(FAKE)
	$(LOADING_CC) -DUNDER_TEST='"stayput-deep"' -o $@ $< -ldl $(LDFLAGS)

$(B)/test_%_deep: tests/test_%.c $(B)/libstayput-deep.so fakecuda
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -o $@ $(filter %.c %.o,$^) \
		$(subst -lstayput,-lstayput-deep,$(LINK_TEST)) $(LDFLAGS)

$(B)/test_ipc_deep: $(B)/ipc.o $(B)/descriptor.o

$(LOADING)/deep_static: $(DEEP_SRC)/program.c $(FAKE)/libcudart_static.a | $(LOADING)
	$(LOADING_CC) -o $@ $^ -ldl $(LDFLAGS)

$(LOADING)/deep_shared: $(DEEP_SRC)/program.c $(FAKE)/libcudart.so.13 | $(LOADING)
	$(LOADING_CC) -o $@ $^ -ldl $(LDFLAGS)

$(LOADING)/deep_lookup: $(DEEP_SRC)/lookup.c | $(LOADING)
	$(LOADING_CC) -o $@ $< -ldl $(LDFLAGS)

$(OWN_RUNTIME): tests/loading/consumer.c $(FAKE)/libcudart_static.a | $(LOADING)
	$(LOADING_SO) -o $@ $^ -ldl $(LDFLAGS)

$(LOADING)/libanswer.so: $(DEEP_SRC)/answer.c | $(LOADING)
	$(LOADING_SO) -o $@ $< $(LDFLAGS)

$(LOADING)/libcuda.so.stub: $(DEEP_SRC)/stub.c | $(LOADING)
	$(LOADING_SO) -o $@ $< -ldl $(LDFLAGS)

# The compiler would take a malloc() that is called like this for its own.
$(LOADING)/libmallocs.so: $(DEEP_SRC)/mallocs.c | $(LOADING)
	$(LOADING_SO) -fno-builtin -o $@ $< -ldl $(LDFLAGS)

-include $(wildcard $(B)/test_deep.d $(B)/test_loading_deep.d)
.PHONY: deep
