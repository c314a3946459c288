// Creates folders for data that only their user may read: caches, sessions, logs.
#pragma once

#include <filesystem>

namespace vlcache {

// Creates the missing part of the path, each folder with mode 0700. Returns 0 if the folder exists afterwards, else the
// errno of the first call that failed.
int make_private_folders(const std::filesystem::path& folder);

}  // namespace vlcache
