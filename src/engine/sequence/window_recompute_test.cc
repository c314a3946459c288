// window_recompute against the window's own tokens as a prompt: the same logits, token by token.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

class WindowRecompute : public testing::TestWithParam<std::string_view> {};

TEST_P(WindowRecompute, ComputesTheLastTokensAsTheirOwnPrompt) {
  for (const std::string_view family : {"llama", "mistral"}) {  // mistral: a sliding window of 40 below this one
    const std::unique_ptr<Engine> engine = make_engine(3, GetParam(), 64 << 20, family);
    std::vector<int32_t> tokens = random_tokens(70);
    // A window, a number of slots, a share of 70: 49 tokens each.
    for (const auto& [policy, budget] :
         {std::pair{"window_recompute:window=49", ""}, std::pair{"window_recompute", "49"},
          std::pair{"window_recompute+uniform", "0.7"}}) {
      const auto s = make_sequence(*engine, tokens, policy, budget);
      EXPECT_EQ(s->n_pending(), 49);
      EXPECT_EQ(s->next_position(), 49);
      std::vector<int32_t> all = tokens;
      for (int i = 0; i < 12; ++i) {
        const std::vector<float> logits = compute(*engine, *s, i % 2 == 0 ? 512 : 7);
        const auto own = make_sequence(*engine, {all.end() - 49, all.end()});
        expect_close(logits, compute(*engine, *own, 512));
        EXPECT_EQ(s->cache().bytes(), 0);
        s->add_token(i % kVocab);
        all.push_back(i % kVocab);
      }
    }
  }
}

TEST_P(WindowRecompute, PartialWindowIsTheWholeSequence) {
  const std::unique_ptr<Engine> engine = make_engine(2, GetParam());
  const auto s = make_sequence(*engine, random_tokens(10), "window_recompute:window=12");
  const auto whole = make_sequence(*engine, random_tokens(10), "window_recompute", "1");
  const auto full = make_sequence(*engine, random_tokens(10));
  for (int i = 0; i < 4; ++i) {
    const std::vector<float> expected = compute(*engine, *full, 512);
    expect_close(compute(*engine, *whole, 512), expected);
    if (i < 3) expect_close(compute(*engine, *s, 512), expected);
    for (Sequence* sequence : {s.get(), whole.get(), full.get()}) sequence->add_token(i);
  }
  EXPECT_EQ(s->n_pending(), 12);
  EXPECT_EQ(whole->n_pending(), 14);
}

// A second turn sees its own last tokens, as if there had been no first.
TEST_P(WindowRecompute, KeepsNothingForASecondTurn) {
  const std::unique_ptr<Engine> engine = make_engine(2, GetParam());
  for (const auto& [policy, n_pending] : {std::pair{"window_recompute:window=20", 20}, std::pair{"none", 55}}) {
    const auto s = make_sequence(*engine, random_tokens(30), policy);
    compute(*engine, *s, 512);
    std::vector<int32_t> more = random_tokens(55);
    EXPECT_EQ(s->continue_with(engine->prepare_tokens(more)), 0);
    EXPECT_EQ(s->n_pending(), n_pending);
    const auto own = make_sequence(*engine, {more.end() - n_pending, more.end()});
    expect_close(compute(*engine, *s, 512), compute(*engine, *own, 512));
  }
}

// Of images that reach into the window, the rows in it; what one batch holds beside it stays as it is.
TEST_P(WindowRecompute, IncludesTheRowsOfImagesInTheWindow) {
  const auto dir = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llava-next-mistral";
  EngineOptions options;
  options.backend = GetParam();
  options.dtype = DType::kF32;
  options.kv_memory_bytes = 64 << 20;
  const auto engine = Engine::load(Checkpoint(dir), options);
  const auto text = load_json(dir / "case.json")["prompt"].get<std::string>();
  const auto prepare = [&] {
    return engine->prepare_raw(text, std::vector{load_image(dir / "image-0.png"), load_image(dir / "image-1.png")});
  };
  const auto ask = [&](Prompt prompt, std::string_view policy, int32_t n) {
    Request request;
    request.prompt = std::move(prompt);
    request.policy = parse_policy(policy);
    request.options = {.max_tokens = n, .ignore_eos = true};
    return request;
  };
  const auto ids = [](const GenerateResult& result) {
    std::vector<int32_t> tokens;
    for (const GeneratedToken& token : result.tokens) tokens.push_back(token.id);
    return tokens;
  };
  std::vector<Request> requests;
  requests.push_back(ask(prepare(), "window_recompute:window=60", 8));
  requests.push_back(ask(prepare(), "full", 8));
  const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
  const std::vector<int32_t> answer = ids(results[0]);
  ASSERT_EQ(answer.size(), 8u);
  EXPECT_EQ(ids(results[1]), ids(generate(*engine, ask(prepare(), "full", 8))));
  for (size_t i = 0; i < answer.size(); ++i) {
    Prompt own = prepare();
    own.tokens.insert(own.tokens.end(), answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(i));
    const int32_t cut = own.n_tokens() - 60;
    own.tokens.erase(own.tokens.begin(), own.tokens.begin() + cut);
    own.classes.clear();
    ASSERT_EQ(own.spans.size(), 2u);
    own.spans.erase(own.spans.begin());  // the first image is outside the window
    ImageSpan& span = own.spans[0];
    span = {.begin = std::max(0, span.begin - cut),
            .end = span.end - cut,
            .image = 1,
            .first_row = std::max(0, cut - span.begin)};
    EXPECT_GT(span.first_row, 0);
    EXPECT_EQ(ids(generate(*engine, ask(std::move(own), "full", 1))), std::vector{answer[i]}) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, WindowRecompute, testing::ValuesIn(backend_names()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace vlcache
