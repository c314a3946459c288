// Flags of what outlives the process, shared by every command with a model and by `vlcache cache`.
#pragma once

#include "api/cache_options.h"
#include "cli/flags/flags.h"

namespace vlcache {

// --cache-salt and --cache-redis-password-file, which whoever opens a tier needs, whatever says where it is.
void add_cache_secrets(const Command& command, CacheOptions& options);
void add_cache_flags(const Command& command, CacheOptions& options);

}  // namespace vlcache
