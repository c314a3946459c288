// --packed-cache: where models that were quantised are stored for the next start. --packed-share: whether processes
// share the memory of such a file.
#pragma once

#include <string>

#include "cli/flags/flags.h"
#include "io/packed/packed_cache.h"

namespace vlcache {

Flag add_packed_cache(const Command& command, std::string& value);
Flag add_packed_share(const Command& command, bool& value);

// What the flag means: "" the user's cache folder, "off", DIR or DIR,BYTES. Lines for the user go to stderr. Throws
// Error(kInput).
PackedCacheOptions packed_cache(const std::string& value);

}  // namespace vlcache
