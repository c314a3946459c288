// A decode step allocates nothing: neither from the heap nor from the kernel, whatever a policy does in it.
#include <gtest/gtest.h>

#include "base/os/allocations_testing.h"

#ifndef VLCACHE_REF_ONLY

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "engine/engine.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

// weights: "float32", "bfloat16", or "int4" beside bf16; "int8 pages": bf16, and KV pages that become codes.
std::unique_ptr<Engine> engine_of(std::string_view weights) {
  Json config = parse_json(
      R"({"model_type": "llama", "vocab_size": 3000, "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 4096})",
      "test");
  const bool quantised = weights == "int4", coded = weights == "int8 pages";
  config["torch_dtype"] = quantised || coded ? "bfloat16" : weights;
  EngineOptions options;
  if (coded) options.kv_codec = KvCodec::kInt8;
  if (quantised) options.weights.text = WeightChoice::kInt4;
  options.kv_memory_bytes = 64 << 20;
  return Engine::random(parse_model_config(config, "test"), options, /*seed=*/5);
}

// Adds up the attention of decoded tokens, as H2O does.
class AddsUp final : public Policy {
 public:
  std::string name() const override { return "adds_up"; }
  int32_t n_planes() const override { return 1; }
  bool wants_scores() const override { return true; }
  void on_scores(int32_t layer, const StepScores& scores, PolicySlots& slots) const override {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      const std::span<float> sums = slots.plane(layer, head, 0);
      for (size_t j = 0; j < sums.size(); ++j) sums[j] += std::exp(scores.logits.row<float>(head)[j]);
    }
  }
};

PolicyPtr make_policy(std::string_view name) {
  return name == "adds_up" ? std::make_shared<AddsUp>() : parse_policy(name);
}

int allocations_of_a_step(Engine& engine, std::vector<std::unique_ptr<Sequence>>& sequences) {
  std::vector<std::vector<TokenRun>> runs;
  std::vector<StepItem> items(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->add_token(3);
    sequences[i]->next_runs(512, runs.emplace_back());
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    items[i].sequence = sequences[i].get();
    items[i].runs = runs[i];
  }
  const int before = g_allocations;
  engine.stepper().step(items);
  for (auto& s : sequences) s->apply_policy();
  return g_allocations - before;
}

class DecodeAllocations : public testing::TestWithParam<std::tuple<const char*, int, const char*>> {};

TEST_P(DecodeAllocations, DecodingDoesNotAllocate) {
  const auto [weights, n_sequences, policy] = GetParam();
  const std::unique_ptr<Engine> engine = engine_of(weights);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < n_sequences; ++i) {
    const int32_t n_tokens = 100 + 150 * (i % 3);
    sequences.push_back(engine->new_sequence(
        engine->prepare_tokens(std::vector<int32_t>(static_cast<size_t>(n_tokens), 7)), make_policy(policy)));
    sequences.back()->reserve(200);  // as a generation does before the first token
  }
  EXPECT_GT(allocations_of_a_step(*engine, sequences), 0) << "the counter does not count";  // workspaces
  allocations_of_a_step(*engine, sequences);  // two rows each: the prompt took a step of its own
  allocations_of_a_step(*engine, sequences);  // the first single row: room for scores
  // Long enough for rules to hide, move and free pages.
  for (int i = 0; i < 150; ++i) EXPECT_EQ(allocations_of_a_step(*engine, sequences), 0) << "step " << i;
}

// Forks read pages together, at two levels.
TEST(DecodeAllocations, SharingPagesDoesNotAllocate) {
  const std::unique_ptr<Engine> engine = engine_of("bfloat16");
  std::vector<std::unique_ptr<Sequence>> all, forks;
  all.push_back(engine->new_sequence(engine->prepare_tokens(std::vector<int32_t>(600, 7)), make_policy("full")));
  do {
    allocations_of_a_step(*engine, all);
  } while (all[0]->n_pending() > 0);  // in pieces
  forks.push_back(all[0]->fork(make_policy("full"), {}));
  for (int i = 0; i < 300; ++i) allocations_of_a_step(*engine, forks);
  for (int i = 0; i < 2; ++i) all.push_back(all[0]->fork(make_policy("full"), {}));
  for (int i = 0; i < 2; ++i) forks.push_back(forks[0]->fork(make_policy("full"), {}));
  for (auto& s : forks) all.push_back(std::move(s));
  for (auto& s : all) s->reserve(200);
  for (int i = 0; i < 3; ++i) allocations_of_a_step(*engine, all);
  for (int i = 0; i < 150; ++i) EXPECT_EQ(allocations_of_a_step(*engine, all), 0) << "step " << i;
  for (const auto& s : all) EXPECT_GT(s->kv_reads().saved, 0);
  EXPECT_GT(all.back()->kv_reads().saved, all[0]->kv_reads().saved);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DecodeAllocations,
                         testing::Combine(testing::Values("float32", "bfloat16"), testing::Values(1, 3),
                                          testing::Values("full", "streaming:sinks=4,window=70", "adds_up",
                                                          "post_vision/tova", "snapkv/keyformer")));
// As many rows as codes are made bytes for, too.
INSTANTIATE_TEST_SUITE_P(Quantised, DecodeAllocations,
                         testing::Combine(testing::Values("int4"), testing::Values(1, 3, 17), testing::Values("full")));

INSTANTIATE_TEST_SUITE_P(Coded, DecodeAllocations,
                         testing::Combine(testing::Values("int8 pages"), testing::Values(3),
                                          testing::Values("full", "adds_up", "post_vision/tova")));

}  // namespace
}  // namespace vlcache

#endif
