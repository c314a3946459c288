// Helpers that tests of several folders share.
#pragma once

#include <concepts>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace vlcache {

// The message of the error that f() throws, as the user would read it.
template <std::invocable F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// The folder of a small model with the real architecture and random weights (tests/fixtures/models).
inline std::filesystem::path fixture_model(std::string_view name) {
  return std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models" / name;
}

}  // namespace vlcache
