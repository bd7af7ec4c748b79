/* SPDX-License-Identifier: Apache-2.0 */
/* Reports and codes as JSON: the one place that names their members. */
#ifndef REPORT_H
#define REPORT_H

#include "json.h"
#include "stayput.h"

/* {"seconds":...,"allocations":...,"failed":...,"total":{...},"devices":[...]} */
void report_write(struct json *j, const struct stayput_report *report);

/* "code":-3,"name":"BUSY","message":"..." */
void report_write_code(struct json *j, int code, const char *message);

#endif
