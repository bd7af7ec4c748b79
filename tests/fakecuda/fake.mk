# SPDX-License-Identifier: Apache-2.0
# The fake driver, runtimes and NVML, in $(B)/fake. Included by the top Makefile.

FAKE     := $(B)/fake
FAKE_SRC := tests/fakecuda
FAKE_DRIVER  := capture context copy device digest_kernel error event fill graph host index init inject \
                ipc ledger module multicast native op physical pointer pool proc report space \
                stream stream_info vmm
FAKE_RUNTIME := cudart_device cudart_error cudart_graph cudart_memory cudart_stream

FAKE_SO      = -shared -Wl,-soname,$(@F) -Wl,-Bsymbolic -Wl,-z,nodelete \
               $(if $(SAN),,-Wl,-z,defs)
FAKE_COMPILE = $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c -o $@ $<

fakecuda: $(FAKE)/libcuda.so.1 $(FAKE)/libcuda.so $(FAKE)/libcudart.so.11.0 \
	$(FAKE)/libcudart.so.12 $(FAKE)/libcudart.so.13 $(FAKE)/libcudart.so \
	$(FAKE)/libcudart_static.a $(FAKE)/libnvidia-ml.so.1

$(FAKE)/libcuda.so.1: $(FAKE_DRIVER:%=$(FAKE)/driver/%.o) $(B)/digest_reference.o
	$(CC) $(ALL_CFLAGS) $(FAKE_SO) -o $@ $^ -pthread $(LDFLAGS)

$(FAKE)/driver/%.o: $(FAKE_SRC)/%.c | $(FAKE)/driver
	$(FAKE_COMPILE)

# A runtime's symbols carry a version named as the library is.
$(FAKE)/%.map: | $(FAKE)
	printf '%s {\nglobal: cuda*; __cuda*;\nlocal: *;\n};\n' $* >$@

define FAKE_RUNTIME_RULES
$$(FAKE)/$(1): $$(FAKE_RUNTIME:%=$$(FAKE)/$(1)-objects/%.o) $$(FAKE)/$(1).map
	$$(CC) $$(ALL_CFLAGS) $$(FAKE_SO) -Wl,--version-script=$$(FAKE)/$(1).map -o $$@ \
		$$(filter %.o,$$^) -pthread -ldl $$(LDFLAGS)

$$(FAKE)/$(1)-objects/%.o: $$(FAKE_SRC)/%.c | $$(FAKE)/$(1)-objects
	$$(FAKE_COMPILE) -DFAKE_RUNTIME=$(2)
endef

$(eval $(call FAKE_RUNTIME_RULES,libcudart.so.11.0,11080))
$(eval $(call FAKE_RUNTIME_RULES,libcudart.so.12,12080))
$(eval $(call FAKE_RUNTIME_RULES,libcudart.so.13,13000))

# In the archive the functions are hidden: a program that links it does not export them.
$(FAKE)/libcudart_static.a: $(FAKE_RUNTIME:%=$(FAKE)/static/%.o)
	$(AR) rcs $@ $^

$(FAKE)/static/%.o: $(FAKE_SRC)/%.c | $(FAKE)/static
	$(FAKE_COMPILE) -DFAKE_RUNTIME=13000 -DFAKE_RUNTIME_STATIC

$(FAKE)/libnvidia-ml.so.1: $(FAKE)/nvml/nvml.o $(FAKE)/nvml/ledger.o
	$(CC) $(ALL_CFLAGS) $(FAKE_SO) -o $@ $^ -ldl $(LDFLAGS)

$(FAKE)/nvml/%.o: $(FAKE_SRC)/%.c | $(FAKE)/nvml
	$(FAKE_COMPILE)

$(FAKE)/libcuda.so: $(FAKE)/libcuda.so.1
	ln -sf $(<F) $@

$(FAKE)/libcudart.so: $(FAKE)/libcudart.so.13
	ln -sf $(<F) $@

# The fake's own test is linked to nothing else of ours.
FAKE_CASES := tests/test_fakecuda.c $(FAKE_SRC)/cases.c $(FAKE_SRC)/cases_process.c \
	$(FAKE_SRC)/cases_shared.c $(FAKE_SRC)/cases_stream.c

$(B)/test_fakecuda: $(FAKE_CASES) $(FAKE_SRC)/cases.h $(FAKE_SRC)/fakecuda.h tests/test.h \
	$(FAKE)/libcuda.so | fakecuda
	$(CC) $(filter-out -M%,$(ALL_CPPFLAGS)) $(ALL_CFLAGS) -o $@ $(FAKE_CASES) -L$(FAKE) \
		-lcuda -Wl,-rpath,'$$ORIGIN/fake' -Wl,--disable-new-dtags -ldl -pthread \
		$(LDFLAGS)

FAKE_DIRS := $(FAKE) $(FAKE)/driver $(FAKE)/static $(FAKE)/nvml \
	$(FAKE)/libcudart.so.11.0-objects $(FAKE)/libcudart.so.12-objects \
	$(FAKE)/libcudart.so.13-objects

$(FAKE_DIRS):
	mkdir -p $@

-include $(wildcard $(FAKE)/*/*.d)
.PHONY: fakecuda
