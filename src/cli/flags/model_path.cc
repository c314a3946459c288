#include "cli/flags/model_path.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

namespace vlcache {
namespace {

namespace fs = std::filesystem;

// As huggingface_hub finds it.
fs::path hub_cache() {
  const auto variable = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (!variable(name).empty()) return variable(name);
  }
  if (!variable("HF_HOME").empty()) return variable("HF_HOME") / "hub";
  const fs::path cache = variable("XDG_CACHE_HOME").empty() ? variable("HOME") / ".cache" : variable("XDG_CACHE_HOME");
  return cache / "huggingface" / "hub";
}

bool is_model(const fs::path& dir) {
  std::error_code error;
  return fs::is_regular_file(dir / "config.json", error);
}

// ORG/NAME: two parts of the characters that names on the hub have.
bool is_hub_name(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == text.npos || slash == 0 || slash + 1 == text.size() || text[0] == '.') return false;
  return text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./") == text.npos &&
         text.find('/', slash + 1) == text.npos;
}

// The snapshot that refs/main names, else the only one; "" if there is none.
fs::path snapshot_of(const fs::path& repository) {
  std::ifstream file(repository / "refs" / "main");
  std::string commit;
  if (file >> commit && is_model(repository / "snapshots" / commit)) return repository / "snapshots" / commit;
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", error)) {
    if (is_model(entry.path())) found.push_back(entry.path());
  }
  return found.size() == 1 ? found[0] : fs::path();
}

}  // namespace

std::string model_path(const std::string& text) {
  std::error_code error;
  const fs::path path = text;
  if (fs::is_directory(path, error)) {
    if (is_model(path)) return text;
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (is_model(entry.path())) inside.push_back(entry.path());
    }
    if (inside.size() == 1) return inside[0];
    const fs::path snapshot = inside.empty() ? snapshot_of(path) : fs::path();
    if (!snapshot.empty()) return snapshot;
    return text;
  }
  if (fs::exists(path, error) || !is_hub_name(text)) return text;
  std::string folder = "models--" + text;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path snapshot = snapshot_of(hub_cache() / folder);
  return snapshot.empty() ? text : snapshot.string();
}

}  // namespace vlcache
