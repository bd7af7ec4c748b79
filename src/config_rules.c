/* SPDX-License-Identifier: Apache-2.0 */
#include "config_rules.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

/* The part up to `end`; *rest begins after that, or is NULL at the end. */
static struct config_part take(const char **rest, char end)
{
	const char *found = strchr(*rest, end);
	struct config_part part = {
		*rest, found ? (size_t)(found - *rest) : strlen(*rest)};

	*rest = found ? found + 1 : NULL;
	return part;
}

static size_t count_parts(const char *text, char end)
{
	size_t count = 1;

	while ((text = strchr(text, end))) {
		text++;
		count++;
	}
	return count;
}

/* Copies 1 to size - 1 bytes. */
static bool copy(char *to, size_t size, struct config_part part)
{
	if (part.len < 1 || part.len >= size)
		return false;
	memcpy(to, part.text, part.len);
	to[part.len] = '\0';
	return true;
}

/* Takes `name` away from the beginning of the part. */
static bool skip(struct config_part *part, const char *name)
{
	size_t len = strlen(name);

	if (part->len < len || memcmp(part->text, name, len) != 0)
		return false;
	part->text += len;
	part->len -= len;
	return true;
}

static bool read_size(struct config_part part, size_t *size)
{
	char text[32];

	return copy(text, sizeof text, part) && config_read_size(text, size);
}

static bool read_device(struct config_part part, int *device)
{
	*device = 0;
	for (size_t i = 0; i < part.len; i++) {
		if (part.text[i] < '0' || part.text[i] > '9')
			return false;
		*device = *device * 10 + (part.text[i] - '0');
	}
	return part.len >= 1 && part.len <= 3;
}

/* Each kind of condition at most once. */
static bool read_condition(struct config_match *match, struct config_part part)
{
	if (skip(&part, "size>="))
		return match->size_least == 0 && read_size(part, &match->size_least);
	if (skip(&part, "size<"))
		return match->size_below == SIZE_MAX &&
		       read_size(part, &match->size_below);
	if (skip(&part, "device="))
		return match->device < 0 && read_device(part, &match->device);
	if (skip(&part, "module="))
		return !match->module[0] &&
		       copy(match->module, sizeof match->module, part);
	return false;
}

/* Where the tag ends: a tag may have colons too. */
static const char *find_conditions(struct config_part rule)
{
	static const char *const names[] = {"size>=", "size<", "device=", "module="};

	for (size_t at = 0; at < rule.len; at++) {
		struct config_part rest = {rule.text + at + 1, rule.len - at - 1};

		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			if (rule.text[at] == ':' && skip(&rest, names[i]))
				return rule.text + at;
	}
	return NULL;
}

static bool read_match(struct config_match *match, struct config_part rule)
{
	const char *colon = find_conditions(rule), *end = rule.text + rule.len;
	struct config_part tag = {rule.text, colon ? (size_t)(colon - rule.text) : 0};

	*match = (struct config_match){.size_below = SIZE_MAX, .device = -1};
	if (!copy(match->tag, sizeof match->tag, tag) || !config_valid_tag(match->tag))
		return false;
	for (const char *at = colon + 1; at <= end;) {
		const char *comma = memchr(at, ',', (size_t)(end - at));
		struct config_part part = {at, (size_t)((comma ? comma : end) - at)};

		if (!read_condition(match, part))
			return false;
		at += part.len + 1;
	}
	return true;
}

bool config_rules_read(struct config *c, const char *text, struct config_part *bad)
{
	size_t count = count_parts(text, ';');
	struct config_match *matches;

	*bad = (struct config_part){text, strlen(text)};
	if (count > CONFIG_MATCHES)
		return false;
	matches = calloc(count, sizeof *matches);
	if (!matches)
		return true;
	for (size_t i = 0; i < count; i++) {
		*bad = take(&text, ';');
		if (!read_match(&matches[i], *bad)) {
			free(matches);
			return false;
		}
	}
	free(c->matches);
	c->matches = matches;
	c->match_count = count;
	return true;
}

/* Appends the parts of `text`, each after a + if `adds`. */
static bool read_parts(struct config *c, const char *text, bool adds,
	struct config_part *bad, size_t *count)
{
	while (text) {
		struct config_part part = *bad = take(&text, ',');

		if (skip(&part, "+") && !adds)
			return false;
		if (!copy(c->exclude[*count], CONFIG_PART_SIZE, part))
			return false;
		++*count;
	}
	return true;
}

bool config_exclude_read(struct config *c, const char *text, struct config_part *bad)
{
	struct config fresh = {.exclude_count = 0};
	bool adds = *text == '+';
	size_t kept = adds ? c->exclude_count : 0, count = kept;

	if (strcmp(text, "none") == 0) {
		c->exclude_count = 0;
		return true;
	}
	fresh.exclude = calloc(kept + count_parts(text, ','), sizeof *fresh.exclude);
	if (!fresh.exclude)
		return true;
	if (kept)
		memcpy(fresh.exclude, c->exclude, kept * sizeof *fresh.exclude);
	if (!read_parts(&fresh, text, adds, bad, &count)) {
		free(fresh.exclude);
		return false;
	}
	free(c->exclude);
	c->exclude = fresh.exclude;
	c->exclude_count = count;
	return true;
}
