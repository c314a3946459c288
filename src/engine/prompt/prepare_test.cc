// Metadata of a prompt's tokens, and prompts that a tokenizer can produce and a model cannot take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "engine/engine.h"
#include "io/chat/chat_templates.h"

namespace vlcache {
namespace {

// A fine-tune added <pad> to the tokenizer and left the matrices as they were.
TEST(Prepare, ErrorNamesTheTokenThatTheModelLacks) {
  const std::filesystem::path fixture = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llama-gqa4";
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / ("vlcache_prepare_" + std::to_string(::getpid()));
  std::filesystem::copy(fixture, dir);
  const auto vocab = load_json(dir / "config.json")["vocab_size"].get<int64_t>();
  Json tokenizer = load_json(dir / "tokenizer.json");
  tokenizer["added_tokens"].push_back({{"id", vocab}, {"content", "<pad>"}, {"special", true}});
  std::ofstream(dir / "tokenizer.json") << tokenizer;
  const auto engine =
      Engine::load(Checkpoint(dir), {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
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

TEST(Prepare, ClassifiesEveryToken) {
  const auto engine = Engine::load(Checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/models/tinydoc"),
                                   {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  const Prompt prompt = engine->prepare_raw("<s>User: <image>\nA?", std::vector{Image(224, 224)});
  const std::vector<TokenInfo> tokens = prompt.token_infos();
  EXPECT_EQ(tokens.front().token_class, TokenClass::kSpecial);
  EXPECT_EQ(tokens[1].token_class, TokenClass::kOther);
  EXPECT_EQ(tokens.back().token_class, TokenClass::kPunctuation);
  const auto is_vision = [](const TokenInfo& t) { return t.meta.modality == Modality::kVision; };
  EXPECT_EQ(std::ranges::count_if(tokens, is_vision), 256);
  const auto first = std::ranges::find_if(tokens, is_vision);
  EXPECT_EQ(first->meta.segment, 0);
  EXPECT_EQ(first->meta.position, Position::all(static_cast<int32_t>(first - tokens.begin())));
  EXPECT_EQ(first->token_class, TokenClass::kSpecial);  // its placeholder's
  EXPECT_EQ(tokens.back().meta.segment, -1);
}

// A fixture with another chat template.
class Templates : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::copy(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llama-gqa4", dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::unique_ptr<Engine> engine(std::string_view chat_template) const {
    std::ofstream(dir_ / "chat_template.jinja") << chat_template;
    return Engine::load(Checkpoint(dir_), {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  }
  static Prompt prompt(const Engine& engine, const nlohmann::ordered_json& messages, const TemplateInput& more = {}) {
    return engine.prepare_rendered(engine.chat_templates()->render(messages, engine.tokenizer(), more), {});
  }
  static std::vector<int32_t> ids(const Engine& engine, std::string_view text) {
    return engine.tokenizer().encode(text, /*add_special_tokens=*/false);
  }
  const std::filesystem::path dir_ =
      std::filesystem::path(testing::TempDir()) / ("vlcache_templates_" + std::to_string(::getpid()));
  const nlohmann::ordered_json question_ = nlohmann::ordered_json::parse(R"([{"role": "user", "content": "What?"}])");
};

constexpr std::string_view kThinkingTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}.\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if enable_thinking is defined and not enable_thinking %} thought "
    "nothing{% endif %}{% endif %}";

// A replay's instruction ends as the request's own question does.
TEST_F(Templates, ReplayTextFollowsTheVariablesOfTheRequest) {
  const auto e = engine(kThinkingTemplate);
  const auto variables = nlohmann::ordered_json::parse(R"({"enable_thinking": false})");
  const auto usual = ids(*e, ".\nassistant:"), silent = ids(*e, ".\nassistant: thought nothing");
  EXPECT_EQ(prompt(*e, question_).replay_text.suffix, usual);
  EXPECT_EQ(prompt(*e, question_, {.variables = &variables}).replay_text.suffix, silent);
  EXPECT_EQ(prompt(*e, question_, {.variables = &variables, .open_answer = false}).replay_text.suffix, silent);
  EXPECT_EQ(prompt(*e, question_).copy().replay_text.suffix, usual);
  EXPECT_EQ(e->prepare_raw("What?", {}).replay_text.suffix, usual);
  const auto strict = engine(
      "{% if messages | length < 2 %}{{ raise_exception('no') }}{% endif %}{% for m in messages %}"
      "{{ m.content }}{% endfor %}");
  EXPECT_EQ(strict->prepare_raw("What?", {}).replay_text.suffix, ids(*strict, "\n"));
}

// The tokens before the first message's text, system message or not; none where no template wrote them.
TEST_F(Templates, CountTheTokensBeforeTheFirstMessage) {
  const auto e = engine(kThinkingTemplate);
  const auto n = [&](std::string_view text) { return std::ssize(ids(*e, text)); };
  Prompt user = prompt(*e, question_);
  EXPECT_EQ(user.n_template, n("<s>user:"));
  EXPECT_EQ(user.copy().shape().n_template, user.n_template);
  EXPECT_EQ(user.shape_until(1).n_template, 1);
  const auto messages = nlohmann::ordered_json::parse(
      R"([{"role": "system", "content": "Be short"}, {"role": "user", "content": "What?"}])");
  EXPECT_EQ(prompt(*e, messages).n_template, n("<s>system: "));  // the space is a token: "Be" is none after it
  EXPECT_EQ(e->prepare_raw("user: What?", {}).n_template, 0);
  EXPECT_EQ(e->prepare_tokens(user.tokens).n_template, 0);
}

}  // namespace
}  // namespace vlcache
