// Registers the flags of storage that outlives the process, for every command with a model and for `vlcache cache`.
#pragma once

#include "api/cache_options.h"
#include "cli/flags/flags.h"

namespace vlcache {

// --cache-salt and what a Redis server or cluster requires (--cache-redis-password-file, -ca, -cert, -key, -allow),
// wherever its address comes from.
void add_cache_secrets(const Command& command, CacheOptions& options);
void add_cache_flags(const Command& command, CacheOptions& options);

}  // namespace vlcache
