/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of STAYPUT_RULES and STAYPUT_EXCLUDE. No lock. */
#ifndef CONFIG_RULES_H
#define CONFIG_RULES_H

#include <stdbool.h>
#include <stddef.h>

struct config;

/* Libraries that share memory with other processes, or register it with a network, by
 * means that a pause breaks. */
#define CONFIG_EXCLUDE_DEFAULT "libnccl,nvshmem,deep_ep,libuct_cuda,libucm,mooncake"

/* Part of a value. */
struct config_part {
	const char *text;
	size_t len;
};

/* Put what `text` says into *c, in the place of what is there. False: *c is as before, and
 * `bad` is what cannot be read. */
bool config_rules_read(struct config *c, const char *text, struct config_part *bad);
bool config_exclude_read(struct config *c, const char *text, struct config_part *bad);

#endif
