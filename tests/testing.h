// Helpers that tests of several folders share.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <cstdlib>
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

// The same of an error that must have the code.
template <std::invocable F>
std::string error_of(const F& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return "no error";
}

// Whether tests do a part of their work, for the time that sanitizers take: in sanitized builds, unless
// VLCACHE_TEST_FULL is set (`make soak`).
inline bool shortened() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kSanitized = true;
#elif defined(__has_feature)
  constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  constexpr bool kSanitized = false;
#endif
  return kSanitized && std::getenv("VLCACHE_TEST_FULL") == nullptr;
}

// The folder of a small model with the real architecture and random weights (tests/fixtures/models).
inline std::filesystem::path fixture_model(std::string_view name) {
  return std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models" / name;
}

}  // namespace vlcache
