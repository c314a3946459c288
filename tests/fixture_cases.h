// The fixture models: folders of tests/fixtures/models with a case.json, and their names in tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"

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

// Matrices of a fixture of tests/fixtures/quantised that it stores as codes, each stacked expert by itself.
inline int64_t n_coded_matrices(const std::filesystem::path& fixture) {
  int64_t n = 0;
  const Json matrices = load_json(fixture / "case.json")["matrices"];
  for (const Json& matrix : matrices) n += matrix["shape"].size() == 3 ? matrix["shape"][0].get<int64_t>() : 1;
  return n;
}

// As a part of a test's name, which has letters, digits and "_" only.
inline std::string test_name(std::string fixture) {
  std::ranges::replace_if(
      fixture, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return fixture;
}

// For INSTANTIATE_TEST_SUITE_P over names of fixtures.
template <typename Name>
std::string fixture_test_name(const testing::TestParamInfo<Name>& info) {
  return test_name(std::string(info.param));
}

}  // namespace vlcache
