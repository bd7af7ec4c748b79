/* SPDX-License-Identifier: Apache-2.0 */
#include "hook.h"

__thread unsigned hook_depth;
