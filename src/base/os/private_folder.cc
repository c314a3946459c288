#include "base/os/private_folder.h"

#include <sys/stat.h>

#include <cerrno>

namespace vlcache {

int make_private_folders(const std::filesystem::path& folder) {
  std::filesystem::path so_far;
  int first = 0;
  for (const std::filesystem::path& part : folder) {
    so_far /= part;
    if (mkdir(so_far.c_str(), 0700) != 0 && errno != EEXIST && first == 0) first = errno;
  }
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return 0;
  return first != 0 ? first : ENOTDIR;
}

}  // namespace vlcache
