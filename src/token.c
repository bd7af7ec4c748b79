/* SPDX-License-Identifier: Apache-2.0 */
/* A name is the place in a list and how often that place has been used, so that a name
 * that was released is not mistaken for a later one. */
#include "token.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE_BITS = 24 };

static const uint64_t PLACE_MASK = (1 << PLACE_BITS) - 1;
static const CUmemGenericAllocationHandle MARK = UINT64_C(0x5350) << 48;

struct place_of_token {
	struct token *token;
	uint64_t uses;
};

static struct place_of_token *places;
static size_t place_count;
static size_t first_free; /* none before it is */

static bool grow(void)
{
	size_t count = place_count ? 2 * place_count : 64;
	struct place_of_token *grown = NULL;

	if (count <= PLACE_MASK)
		grown = realloc(places, count * sizeof *places);
	if (!grown)
		return false;
	memset(grown + place_count, 0, (count - place_count) * sizeof *places);
	places = grown;
	place_count = count;
	return true;
}

bool token_add_locked(struct token *token)
{
	struct place_of_token *place;

	while (first_free < place_count && places[first_free].token)
		first_free++;
	if (first_free == place_count && !grow())
		return false;
	place = &places[first_free];
	place->token = token;
	place->uses++;
	token->refs = 1;
	token->name = MARK | (place->uses & PLACE_MASK) << PLACE_BITS | first_free;
	return true;
}

void token_remove_locked(struct token *token)
{
	size_t i = token->name & PLACE_MASK;

	places[i].token = NULL;
	if (i < first_free)
		first_free = i;
}

struct token *token_find_locked(CUmemGenericAllocationHandle name)
{
	size_t i = name & PLACE_MASK;
	struct token *token = i < place_count ? places[i].token : NULL;

	return token && token->name == name && token->refs ? token : NULL;
}

size_t token_idle_bytes_locked(const struct space *space)
{
	size_t bytes = 0;

	for (size_t i = 0; i < place_count; i++) {
		const struct token *t = places[i].token;

		if (t && t->choice.region == space->region &&
			t->choice.policy == space->policy && t->device == space->device &&
			!t->mappings && t->handle)
			bytes += t->size;
	}
	return bytes;
}
