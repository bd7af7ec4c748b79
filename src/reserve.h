/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory ahead of need, filled by a thread that ends with it. */
#ifndef RESERVE_H
#define RESERVE_H

#include <stddef.h>

struct device;

/* Begins to get `size` bytes of idle memory for the device's pool, which have been booked,
 * and loads the digest kernel. STAYPUT_ERR_HOST_MEMORY with the sentence: nothing is booked
 * any more. */
int reserve_start(struct device *dev, size_t size);

#endif
