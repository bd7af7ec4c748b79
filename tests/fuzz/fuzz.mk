# SPDX-License-Identifier: Apache-2.0
# The reader of requests: replayed by the tests, and under libFuzzer by hand.

FUZZ_SECONDS ?= 600
FUZZED       := control_request config config_rules json log

$(B)/fuzz_request.o: tests/fuzz/request.c | $(B)/.gitignore
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c -o $@ $<

$(B)/test_request: tests/test_request.c $(B)/fuzz_request.o $(FUZZED:%=$(B)/%.o)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -DCORPUS='"$(abspath tests/fuzz/corpus)"' \
		-o $@ $(filter %.c %.o,$^) $(LDFLAGS)

# Wants clang. What it finds is kept in build/fuzz.
fuzz: tests/fuzz/request.c $(FUZZED:%=src/%.c) | $(B)/.gitignore
	mkdir -p $(B)/fuzz/corpus
	clang $(filter-out -MMD -MP,$(ALL_CPPFLAGS)) -std=gnu11 -g -O1 \
		-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
		-o $(B)/fuzz/request $^
	cd $(B)/fuzz && ./request -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 \
		-dict=$(abspath tests/fuzz/request.dict) corpus $(abspath tests/fuzz/corpus)
