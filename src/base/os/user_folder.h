// The user's own folders, as the XDG base directory specification names them.
#pragma once

#include <filesystem>

namespace vlcache {

// $`variable` (XDG_CACHE_HOME, XDG_STATE_HOME) if it is an absolute path, else `below_home` in $HOME; empty without a
// home.
std::filesystem::path user_folder(const char* variable, const char* below_home);

}  // namespace vlcache
