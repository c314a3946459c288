// Every fixture model from text and pictures to tokens, through the engine: ids as transformers' processor makes them,
// its greedy answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "engine/batch.h"
#include "io/chat/chat_template.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

std::filesystem::path fixtures() { return std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models"; }

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) {
    if (std::filesystem::exists(entry.path() / "case.json")) names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

class Pipeline : public testing::TestWithParam<std::string> {
 protected:
  Pipeline()
      : dir_(fixtures() / GetParam()), case_(parse_ordered_json(read_text_file(dir_ / "case.json"), "case.json")) {
    EngineOptions options;
    options.dtype = DType::kF32;
    options.kv_memory_bytes = 256 << 20;
    engine_ = Engine::load(dir_, options);
  }

  std::vector<Image> images() const {
    std::vector<Image> images;
    for (const auto& name : case_.value("images", nlohmann::ordered_json::array()))
      images.push_back(load_image(dir_ / name.get<std::string>()));
    return images;
  }

  std::filesystem::path dir_;
  nlohmann::ordered_json case_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(Pipeline, RawTextBecomesTheProcessorsIds) {
  const Prompt prompt = engine_->prepare_raw(case_["prompt"].get<std::string>(), images());
  EXPECT_EQ(prompt.tokens, case_["input_ids"].get<std::vector<int32_t>>());
}

TEST_P(Pipeline, ChatBecomesTheProcessorsIds) {
  if (!case_.contains("chat")) GTEST_SKIP() << "this checkpoint has no chat template";
  const Prompt prompt = engine_->prepare_chat(case_["chat"]["messages"], images());
  EXPECT_EQ(prompt.tokens, case_["chat"]["input_ids"].get<std::vector<int32_t>>());
}

TEST_P(Pipeline, GreedyAnswerIsTransformers) {
  const auto expected = case_["greedy"].get<std::vector<int32_t>>();
  Request request;
  request.prompt = engine_->prepare_raw(case_["prompt"].get<std::string>(), images());
  request.policy = parse_policy("full");
  request.options.max_tokens = static_cast<int32_t>(expected.size());
  request.options.ignore_eos = true;
  const GenerateResult result = generate(*engine_, std::move(request));
  std::vector<int32_t> ids;
  for (const GeneratedToken& token : result.tokens) ids.push_back(token.id);
  EXPECT_EQ(ids, expected);
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Pipeline, testing::ValuesIn(case_names()), test_name);

}  // namespace
}  // namespace vlcache
