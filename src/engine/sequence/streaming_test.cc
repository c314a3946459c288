// The baselines that change what a sequence keeps: streaming, and `none`.
#include "engine/engine_testing.h"

namespace vlcache {
namespace {

// Every backend with a model that has sink logits, which are no slots, and one that has none.
std::vector<std::pair<std::string_view, std::string_view>> backends_and_models() {
  std::vector<std::pair<std::string_view, std::string_view>> all;
  for (const std::string_view backend : backend_names()) {
    for (const std::string_view model_type : {"llama", "granite_swa"}) all.emplace_back(backend, model_type);
  }
  return all;
}

// With one layer, K and V depend on the token alone: streaming then equals full attention over the kept tokens,
// renumbered.
TEST(Streaming, EqualsFullAttentionOverRenumberedKeptTokens) {
  for (const auto& [backend, model_type] : backends_and_models()) {
    SCOPED_TRACE(std::string(backend) + " " + std::string(model_type));
    const std::unique_ptr<Engine> engine = make_engine(1, backend, 64 << 20, model_type);
    const std::vector<int32_t> tokens = random_tokens(150);
    for (const auto& [sinks, window] : {std::pair{4, 20}, std::pair{0, 33}, std::pair{70, 10}, std::pair{3, 1}}) {
      const std::string policy = "streaming:sinks=" + std::to_string(sinks) + ",window=" + std::to_string(window);
      std::vector<int32_t> kept(tokens.begin(), tokens.begin() + sinks);
      kept.insert(kept.end(), tokens.end() - window, tokens.end());
      const auto renumbered = make_sequence(*engine, kept);
      const std::vector<float> expected = compute(*engine, *renumbered, 512);
      for (int32_t chunk : {512, 64, 7, 1}) {
        const auto streaming = make_sequence(*engine, tokens, policy);
        expect_close(compute(*engine, *streaming, chunk), expected, 1e-4f);
        EXPECT_EQ(streaming->n_visible(0, 1), sinks + window);
        EXPECT_LT(streaming->cache().n_slots(0, 1), sinks + window + 64) << "hidden slots are given back by the page";
      }
    }
  }
}

TEST(Streaming, IsFullAttentionWhileEverythingFits) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const std::vector<int32_t> tokens = random_tokens(90);
  const auto streaming = make_sequence(*engine, tokens, "streaming:sinks=4,window=86");
  const auto full = make_sequence(*engine, tokens);
  expect_close(compute(*engine, *streaming, 40), compute(*engine, *full, 40));
}

TEST(Streaming, ChunksDoNotChangeDeepModels) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const std::vector<int32_t> tokens = random_tokens(150);
  const auto a = make_sequence(*engine, tokens, "streaming:sinks=4,window=30");
  const auto b = make_sequence(*engine, tokens, "streaming:sinks=4,window=30");
  const auto full = make_sequence(*engine, tokens);
  const std::vector<float> x = compute(*engine, *a, 150);
  expect_close(x, compute(*engine, *b, 1), 1e-4f);
  EXPECT_GT(distance(x, compute(*engine, *full, 150)), 1e-3f);
}

// Sequences of several attention patterns in one step: each gets what it gets alone.
TEST(Streaming, SharesAStepWithOtherPatterns) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const std::vector<std::string> policies{"full", "streaming:sinks=4,window=30", "static:capacity=200",
                                          "streaming:sinks=2,window=9", "streaming:sinks=4,window=30"};
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<TokenRun>> runs(policies.size());
  std::vector<StepItem> items(policies.size());
  for (size_t i = 0; i < policies.size(); ++i) {
    sequences.push_back(make_sequence(*engine, random_tokens(60 + static_cast<int32_t>(i), 3), policies[i]));
    sequences[i]->next_runs(512, runs[i]);
    items[i].sequence = sequences[i].get();
    items[i].runs = runs[i];
    items[i].all_logits = i == 3;
  }
  const std::span<const Tensor> logits = engine->stepper().step(items);
  std::vector<std::vector<float>> together;
  for (const Tensor& t : logits) {
    const Tensor last = t.slice_rows(t.rows() - 1, t.rows());
    together.emplace_back(last.as<float>(), last.as<float>() + last.numel());
  }
  EXPECT_EQ(logits[3].rows(), 63);
  for (size_t i = 0; i < policies.size(); ++i) {
    const auto alone = make_sequence(*engine, random_tokens(60 + static_cast<int32_t>(i), 3), policies[i]);
    expect_close(together[i], compute(*engine, *alone, 512));
  }
}

TEST(NoCache, RecomputingGivesTheSameLogits) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const auto none = make_sequence(*engine, random_tokens(40), "none");
  const auto full = make_sequence(*engine, random_tokens(40));
  for (int i = 0; i < 3; ++i) {
    expect_close(compute(*engine, *none, 16), compute(*engine, *full, 512));
    EXPECT_EQ(none->cache().bytes(), 0);
    EXPECT_EQ(none->n_pending(), 0);
    none->add_token(i);
    full->add_token(i);
    EXPECT_EQ(none->n_pending(), 41 + i);
    EXPECT_EQ(full->n_pending(), 1);
  }
}

}  // namespace
}  // namespace vlcache
