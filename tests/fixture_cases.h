// The fixture models that the tests across modules run: folders of tests/fixtures/models with a case.json.
#pragma once

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "model/model.h"

namespace vlcache {

inline std::filesystem::path fixtures() { return std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models"; }

// Sorted. Fixtures of families that are not implemented yet are left out, with a line on standard output for each.
// `part`: what follows a model_type in that of one of its parts ("_text"), whose fixtures are asked for.
inline std::vector<std::string> case_names(const std::string& part = "") {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) {
    if (!std::filesystem::exists(entry.path() / "case.json")) continue;
    const std::string name = entry.path().filename();
    try {
      find_family(load_json(entry.path() / "config.json")["model_type"].get<std::string>() + part, name);
      if (part.empty()) Model::read_config(Checkpoint(entry.path()));
      names.push_back(name);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUnsupported) throw;
      const std::string what = e.what();
      if (part.empty()) std::printf("skipped: %s\n", what.substr(0, what.find(';')).c_str());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace vlcache
