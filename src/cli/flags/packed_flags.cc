#include "cli/flags/packed_flags.h"

#include <cstdio>

#include "api/cache_options.h"
#include "base/os/user_folder.h"

namespace vlcache {

Flag add_packed_cache(const Command& command, std::string& value) {
  return command
      .add("--packed-cache", value,
           "Folder for quantised models, which the next start loads instead of quantising again, and its size limit "
           "(default $XDG_CACHE_HOME/vlcache/packed or ~/.cache/vlcache/packed; at most 40GiB and half the free "
           "space). off: quantise at every start")
      .value_name("DIR[,BYTES]|off")
      .group("Machine")
      .share_environment();
}

Flag add_packed_share(const Command& command, bool& value) {
  return command
      .add("--packed-share", value,
           "Map the weights from the file of --packed-cache, so that all processes on this machine share one copy in "
           "memory; decoding can be slightly slower (docs/weights.md)")
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
    options.off_reason = "no home folder; --packed-cache DIR names a folder, --packed-cache off hides this line";
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
