# SPDX-License-Identifier: Apache-2.0
# Tests of the program: shell scripts under the names of test programs, and what they run.
# Included by the top Makefile after the fake's rules.

CLI_TESTS := $(patsubst tests/cli/test_%.sh,$(B)/test_cli_%,$(wildcard tests/cli/test_*.sh))
CLI_BIN   := $(B)/cli-tests

cli-tests: all fakecuda $(CLI_TESTS) $(CLI_BIN)/steady_shared $(CLI_BIN)/steady_static

$(B)/test_cli_%: tests/cli/test_%.sh | $(B)/.gitignore
	ln -sf $(abspath $<) $@

$(CLI_BIN)/steady_shared: tests/cli/steady.c $(FAKE)/libcudart.so.13 | $(CLI_BIN)
	$(CC) $(ALL_CPPFLAGS) -MF $@.d -MT $@ $(ALL_CFLAGS) -o $@ $^ $(LDFLAGS)

$(CLI_BIN)/steady_static: tests/cli/steady.c $(FAKE)/libcudart_static.a | $(CLI_BIN)
	$(CC) $(ALL_CPPFLAGS) -MF $@.d -MT $@ $(ALL_CFLAGS) -o $@ $^ -ldl $(LDFLAGS)

$(CLI_BIN): | $(B)/.gitignore
	mkdir -p $@

-include $(wildcard $(CLI_BIN)/*.d)
.PHONY: cli-tests
