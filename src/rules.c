/* SPDX-License-Identifier: Apache-2.0 */
#include "rules.h"

#include "caller.h"
#include "config.h"

/* What has been asked about a request so far. */
struct answers {
	bool knows_caller, knows_device;
	struct caller caller;
	int device;
};

static bool is_named(const struct request *request, size_t index, struct answers *answers)
{
	if (!answers->knows_caller)
		answers->caller = caller_find(request->caller);
	answers->knows_caller = true;
	return answers->caller.named >> index & 1;
}

static bool is_on(const struct request *request, int device, struct answers *answers)
{
	if (!answers->knows_device)
		answers->device = request->device(request);
	answers->knows_device = true;
	return answers->device == device;
}

int rules_match(const struct request *request)
{
	const struct config *c = config();
	struct answers answers = {.knows_caller = false};

	for (size_t i = 0; i < c->match_count; i++) {
		const struct config_match *m = &c->matches[i];

		if (request->size < m->size_least || request->size >= m->size_below)
			continue;
		if (m->module[0] && !is_named(request, i, &answers))
			continue;
		if (m->device >= 0 && !is_on(request, m->device, &answers))
			continue;
		return (int)i;
	}
	return -1;
}

bool rules_exclude(const struct request *request)
{
	return config()->exclude_count > 0 && caller_find(request->caller).excluded;
}
