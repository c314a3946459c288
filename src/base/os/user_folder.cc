#include "base/os/user_folder.h"

#include <cstdlib>

namespace vlcache {

std::filesystem::path user_folder(const char* variable, const char* below_home) {
  const char* folder = std::getenv(variable);
  if (folder != nullptr && *folder == '/') return folder;
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? std::filesystem::path() : std::filesystem::path(home) / below_home;
}

}  // namespace vlcache
