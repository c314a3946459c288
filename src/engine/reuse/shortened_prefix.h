// A conversation whose oldest turns are taken out because the context is full: the KV of the turns that stay is moved
// to their new positions instead of being computed again (AttentionStore, arXiv:2403.19708, section 3.4). It was
// computed with the turns that are gone, so it is an approximation, and no other prompt finds it.
#pragma once

#include <cstdint>

#include "engine/prompt/prompt.h"
#include "engine/reuse/prefix_reuse.h"

namespace vlcache {

// Puts the KV of the beginning of `prompt` into the prefix cache, as far as `known` has it of `before`, a prompt with
// more turns and its answer: of the tokens that both begin with, and of the longest run after these that both have.
// Gives `prompt` a salt of its own. Returns the number of tokens of `prompt` whose KV it has; 0: none, and the salt
// stays.
int32_t shorten_prefix(Engine& engine, const PrefixTokens& before, const CachedPrefix& known, Prompt& prompt);

}  // namespace vlcache
