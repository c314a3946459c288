// The fixture models that the tests across modules run: folders of tests/fixtures/models with a case.json.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace vlcache {

inline std::filesystem::path fixtures() { return std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models"; }

// Sorted.
inline std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) {
    if (!std::filesystem::exists(entry.path() / "case.json")) continue;
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace vlcache
