// hired: the same tokens as transformers' attentions give (tools/fixtures/policies/hired.py), prompts that are
// shortened by them, and what later turns keep.
#include "engine/scheduler/image_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"
#include "ops/factory.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::HasSubstr;

const std::filesystem::path kFixtures = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures";

struct Fixture {
  std::unique_ptr<Engine> engine;
  std::string text;
  std::vector<Image> images;

  Fixture(const std::string& model, std::string_view backend) {
    EngineOptions options;
    options.backend = backend;
    options.dtype = DType::kF32;
    options.kv_memory_bytes = 64 << 20;
    const std::filesystem::path dir = kFixtures / "models" / model;
    engine = Engine::load(Checkpoint(dir), options);
    const Json about = load_json(dir / "case.json");
    text = about["prompt"].get<std::string>();
    for (const Json& name : about["images"]) images.push_back(load_image(dir / name.get<std::string>()));
  }
  Prompt prompt(const std::string& more = "") const { return engine->prepare_raw(text + more, images); }
  GenerateResult ask(Prompt prompt, std::string_view policy, std::string_view budget = "") const {
    Request request;
    request.prompt = std::move(prompt);
    request.policy = parse_policy(policy, budget);
    request.options = {.sampling = {}, .max_tokens = 6, .ignore_eos = true, .stop = {}, .stop_tokens = {}};
    return generate(*engine, std::move(request));
  }
};

class Selection : public testing::TestWithParam<std::string_view> {};

TEST_P(Selection, MatchesTransformersAttentions) {
  std::map<std::string, Fixture> models;
  const Json cases = load_json(kFixtures / "policies/hired.json")["cases"];
  ASSERT_EQ(cases.size(), 13u);
  for (const Json& c : cases) {
    const auto model = c["model"].get<std::string>();
    const std::string budget = c["budget"].dump();
    const Fixture& f = models.try_emplace(model, model, GetParam()).first->second;
    const Prompt whole = f.prompt();
    Prompt prompt = f.prompt();
    const auto kept = c["kept"].get<std::vector<int32_t>>();
    EXPECT_EQ(select_image_tokens(*f.engine, *parse_policy("hired", budget), prompt), kept) << model << " " << budget;
    ASSERT_EQ(prompt.n_tokens(), std::ssize(kept));
    const std::vector<TokenInfo> tokens = prompt.token_infos(), before = whole.token_infos();
    std::vector<int32_t> row(before.size(), -1), row_now(tokens.size(), -1);
    const auto name_rows = [](const Prompt& p, std::vector<int32_t>& rows) {
      for (const ImageSpan& s : p.spans) {
        for (int32_t t = s.begin; t < s.end; ++t) rows[static_cast<size_t>(t)] = s.row_of(t);
      }
    };
    name_rows(whole, row);
    name_rows(prompt, row_now);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto old = static_cast<size_t>(kept[i]);
      EXPECT_EQ(tokens[i].id, before[old].id);
      EXPECT_EQ(tokens[i].token_class, before[old].token_class);
      EXPECT_EQ(tokens[i].meta.segment, before[old].meta.segment);
      EXPECT_EQ(tokens[i].meta.position.t, static_cast<int32_t>(i)) << "positions close up";
      EXPECT_EQ(row_now[i], row[old]);
    }
  }
}

// The answer is that of the prompt without those tokens; what is held is the budget.
TEST_P(Selection, DropsBeforeTheLanguageModel) {
  const Fixture f("llava-next-mistral", GetParam());
  Prompt shortened = f.prompt();
  select_image_tokens(*f.engine, *parse_policy("hired", "0.5"), shortened);
  shortened.selection.reset();  // so that it is encoded again
  const GenerateResult a = f.ask(f.prompt(), "hired", "0.5"), b = f.ask(std::move(shortened), "full");
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.kv.slots, b.kv.slots);
  EXPECT_EQ(a.kv.slots[0][0], std::min(79 + 5, 64 - 1));  // and 5 of the answer; the window is 64
  EXPECT_EQ(a.n_prompt, 158);
  EXPECT_EQ(b.n_prompt, 79);
  EXPECT_GT(a.timings.compress_ms, 0);
  EXPECT_GT(a.timings.vision_ms, 0);
  for (const char* budget : {"1", "0.999", "500"}) {
    EXPECT_EQ(f.ask(f.prompt(), "hired", budget).text, f.ask(f.prompt(), "full").text) << budget;
  }
}

TEST_P(Selection, RejectsImpossibleBudgets) {
  const Fixture f("llava-next-llama", GetParam());  // 130 tokens, 32 of them text, 3 images
  EXPECT_THAT(error_of([&] { f.ask(f.prompt(), "hired", "0.26"); }),
              HasSubstr("hired: the KV budget is 34 of 130 tokens, but 32 are text or chosen before, and each image "
                        "keeps one: the least possible is 35 tokens"));
  EXPECT_EQ(f.ask(f.prompt(), "hired", "35").kv.slots[0][0], 40);
  EXPECT_EQ(f.ask(f.engine->prepare_raw("no picture", {}), "hired", "0.1").text,
            f.ask(f.engine->prepare_raw("no picture", {}), "full").text);
  EXPECT_THAT(error_of([&] { f.ask(f.prompt(), "hired:late=2", "0.5"); }), HasSubstr("expected -1 to 0"));
  for (const char* model : {"smolvlm-split", "llama-gqa4"}) {
    const ModelConfig config = Model::read_config(Checkpoint(kFixtures / "models" / model));
    check_suits(config, *parse_policy("vl-cache"));
    EXPECT_THAT(error_of([&] { check_suits(config, *parse_policy("hired")); }), HasSubstr("class token"));
  }
}

// Learned positions are added before the first layer: what is computed with them has one place.
TEST_P(Selection, LearnedPositionsRefuseWhatRenumbers) {
  const Fixture f("gpt2-tied", GetParam());
  const ModelConfig config = Model::read_config(Checkpoint(kFixtures / "models/gpt2-tied"));
  for (const char* policy : {"streaming", "streaming:sinks=0", "window_recompute"}) {
    const auto refused = HasSubstr("'" + std::string(policy).substr(0, std::string(policy).find(':')));
    EXPECT_THAT(error_of([&] { check_suits(config, *parse_policy(policy)); }), refused);
    EXPECT_THAT(error_of([&] { f.ask(f.engine->prepare_raw("What is the total?", {}), policy, ""); }),
                testing::AllOf(refused, HasSubstr("this model (gpt2) has learned positions")));
  }
  for (const char* policy : {"full", "none", "vl-cache", "snapkv", "expected_attention", "kvzip", "h2o/h2o"})
    check_suits(config, *parse_policy(policy));
  const std::string all = f.ask(f.engine->prepare_raw("What is the total?", {}), "full", "").text;
  EXPECT_EQ(f.ask(f.engine->prepare_raw("What is the total?", {}), "none", "").text, all);
  std::string long_text;
  for (int i = 0; i < 300; ++i) long_text += " the";
  EXPECT_THAT(error_of([&] { f.ask(f.engine->prepare_raw(long_text, {}), "full", ""); }),
              HasSubstr("the model's context is 256"));
}

// A second turn keeps the choice of the first, whose KV it continues from; another choice is another prompt.
TEST_P(Selection, IsKeptInLaterTurns) {
  const Fixture f("llava-clip", GetParam());
  const auto policy = parse_policy("hired", "0.9");
  Prompt first = f.prompt(), second = f.prompt(" And then? And what else is there to be seen?");
  select_image_tokens(*f.engine, *policy, first);
  const auto s = f.engine->new_sequence(first, policy);
  Request request;
  request.sequence = s.get();
  const int32_t n_first = first.n_tokens();
  const std::vector<int32_t> rows = first.spans[0].rows;
  request.prompt = std::move(first);
  request.options.max_tokens = 1;
  generate(*f.engine, std::move(request));
  Prompt alone = f.prompt(" And then? And what else is there to be seen?");
  select_image_tokens(*f.engine, *policy, alone);
  ASSERT_NE(alone.spans[0].rows, rows) << "a longer text leaves another choice";
  const int32_t begin = second.spans[0].begin;
  select_image_tokens(*f.engine, *policy, second, s.get());
  EXPECT_EQ(second.spans[0].rows, rows);
  EXPECT_GE(s->continue_with(second), n_first - 1);  // the last word may be cut otherwise
  EXPECT_EQ(s->continue_with(alone), begin);
}

INSTANTIATE_TEST_SUITE_P(Backends, Selection, testing::ValuesIn(backend_names()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace vlcache
