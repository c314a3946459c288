// Prompts that a tokenizer can make and a model cannot take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "engine/engine.h"

namespace vlcache {
namespace {

// A fine-tune added <pad> to the tokenizer and left the matrices as they were.
TEST(Prepare, NamesATokenThatTheModelLacks) {
  const std::filesystem::path fixture = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llama-gqa4";
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("vlcache_prepare_" + std::to_string(::getpid()));
  std::filesystem::copy(fixture, dir);
  const auto vocab = load_json(dir / "config.json")["vocab_size"].get<int64_t>();
  Json tokenizer = load_json(dir / "tokenizer.json");
  tokenizer["added_tokens"].push_back({{"id", vocab}, {"content", "<pad>"}, {"special", true}});
  std::ofstream(dir / "tokenizer.json") << tokenizer;
  const auto engine = Engine::load(dir, {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  std::filesystem::remove_all(dir);

  EXPECT_FALSE(engine->prepare_raw("plain text", {}).tokens.empty());
  try {
    engine->prepare_raw("text <pad>", {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_THAT(error.what(), testing::HasSubstr("\"<pad>\", token " + std::to_string(vocab)));
    EXPECT_THAT(error.what(), testing::HasSubstr("vocabulary ends at " + std::to_string(vocab)));
  }
}

}  // namespace
}  // namespace vlcache
