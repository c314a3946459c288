#include "cli/flags/packed_flags.h"

#include <cstdio>

#include "api/cache_options.h"
#include "base/user_folder.h"

namespace vlcache {

Flag add_packed_cache(const Command& command, std::string& value) {
  return command
      .add("--packed-cache", value,
           "where a model that was quantised is stored for the next start, and how many bytes of models at most "
           "($XDG_CACHE_HOME/vlcache/packed or ~/.cache/vlcache/packed, 40GiB and half of what is free); off: not")
      .value_name("DIR[,BYTES]|off")
      .group("Machine")
      .share_environment();
}

Flag add_packed_share(const Command& command, bool& value) {
  return command
      .add("--packed-share", value,
           "weights stay in the file of --packed-cache, mapped, so that processes on this machine hold one copy of "
           "them in memory; tokens may come a little more slowly than from memory of the process (docs/weights.md)")
      .group("Machine")
      .share_environment();
}

PackedCacheOptions packed_cache(const std::string& value) {
  PackedCacheOptions options;
  options.say = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  if (value == "off") return options;
  if (value.empty()) {
    const std::filesystem::path cache = user_folder("XDG_CACHE_HOME", ".cache");
    options.folder = cache.empty() ? cache : cache / "vlcache" / "packed";
    options.off_reason = "no home folder; --packed-cache DIR names another, off says no more of it";
    return options;
  }
  const FolderLimit limit = parse_folder_limit("--packed-cache", value);
  options.folder = limit.folder;
  if (limit.bytes) {
    options.max_bytes = *limit.bytes;
    options.half_of_free = false;
  }
  return options;
}

}  // namespace vlcache
