// Several sequences in one step against each alone: equal tokens in f32, logits within rounding in bf16, on the model
// that ships.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/generate.h"

namespace vlcache {
namespace {

constexpr double kBf16Tolerance = 1.0 / 64;  // of the largest logit: a few roundings of 2^-9 along different paths

std::unique_ptr<Engine> load(DType dtype) {
  EngineOptions options;
  options.dtype = dtype;
  options.kv_memory_bytes = 256 << 20;
  return Engine::load(std::string(VLCACHE_SOURCE_DIR) + "/models/tinydoc", options);
}

const std::vector<std::string> kTexts{
    "<s>User: What is the TOTAL?\nAssistant:", "<s>User: Read the page.\nAssistant: INVOICE 12", "<s>A",
    "<s>User: How many red shapes?\nAssistant: 3 and a long tail of words to read"};

std::vector<GenerateResult> generate_batch(Engine& engine, const std::vector<std::string>& texts, int32_t max_tokens) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<GenerateItem> items;
  for (const std::string& text : texts) {
    sequences.push_back(
        std::make_unique<Sequence>(engine.new_sequence(engine.prepare_raw(text, {}), parse_cache_mode("full"))));
    GenerateItem item{.sequence = sequences.back().get(), .options = {}, .callbacks = {}};
    item.options.max_tokens = max_tokens;
    item.options.ignore_eos = true;
    items.push_back(std::move(item));
  }
  return generate(engine, items);
}

TEST(Batch, F32GivesTheTokensOfEachAlone) {
  const std::unique_ptr<Engine> engine = load(DType::kF32);
  const std::vector<GenerateResult> together = generate_batch(*engine, kTexts, 24);
  for (size_t i = 0; i < kTexts.size(); ++i) {
    const GenerateResult alone = generate_batch(*engine, {kTexts[i]}, 24)[0];
    EXPECT_EQ(together[i].text, alone.text);
    ASSERT_EQ(together[i].tokens.size(), 24u);
    for (size_t t = 0; t < 24; ++t) EXPECT_EQ(together[i].tokens[t].id, alone.tokens[t].id);
  }
}

// Logits of the last `n` tokens of each sequence, fed one by one in steps of all sequences; [sequence][step] -> logits.
std::vector<std::vector<std::vector<float>>> teacher_force(Engine& engine,
                                                           const std::vector<std::vector<int32_t>>& tokens, int32_t n) {
  std::vector<Sequence> sequences;
  for (const std::vector<int32_t>& t : tokens) {
    sequences.push_back(engine.new_sequence(engine.prepare_tokens({t.begin(), t.end() - n}), parse_cache_mode("full")));
  }
  std::vector<std::vector<std::vector<float>>> logits(tokens.size());
  for (int32_t step = 0; step <= n; ++step) {
    std::vector<StepItem> items;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (step > 0) sequences[i].add_token(tokens[i][tokens[i].size() - static_cast<size_t>(n - step + 1)]);
      items.push_back({&sequences[i], sequences[i].n_pending()});
    }
    const std::span<const Tensor> out = engine.stepper().step(items);
    for (size_t i = 0; i < out.size(); ++i)
      logits[i].emplace_back(out[i].as<float>(), out[i].as<float>() + out[i].numel());
  }
  return logits;
}

TEST(Batch, Bf16LogitsAgreeAndFlipsAreCounted) {
  const std::unique_ptr<Engine> engine = load(DType::kBF16);
  const int32_t n = 24;
  std::vector<std::vector<int32_t>> tokens;
  const std::vector<GenerateResult> results = generate_batch(*engine, kTexts, n);
  for (size_t i = 0; i < kTexts.size(); ++i) {
    tokens.push_back(engine->prepare_raw(kTexts[i], {}).tokens);
    for (const GeneratedToken& t : results[i].tokens) tokens.back().push_back(t.id);
  }
  const auto together = teacher_force(*engine, tokens, n);
  int flips = 0, compared = 0;
  double worst = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto alone = teacher_force(*engine, {tokens[i]}, n)[0];
    for (size_t step = 0; step < alone.size(); ++step, ++compared) {
      const std::vector<float>&a = together[i][step], &b = alone[step];
      double largest = 0, error = 0;
      for (size_t v = 0; v < a.size(); ++v) {
        largest = std::max(largest, std::abs(double{b[v]}));
        error = std::max(error, std::abs(double{a[v]} - b[v]));
      }
      worst = std::max(worst, error / largest);
      const auto top_a = std::max_element(a.begin(), a.end()) - a.begin(),
                 top_b = std::max_element(b.begin(), b.end()) - b.begin();
      if (top_a == top_b) continue;
      ++flips;
      EXPECT_LE(b[static_cast<size_t>(top_b)] - b[static_cast<size_t>(top_a)], kBf16Tolerance * largest)
          << "sequence " << i << " step " << step;
    }
  }
  EXPECT_LE(worst, kBf16Tolerance);
  std::printf("bf16, batched against single: %d of %d top tokens differ, logits within %.5f of the largest\n", flips,
              compared, worst);
}

TEST(Generate, CancellingEndsTheAnswerWhereItIs) {
  const std::unique_ptr<Engine> engine = load(DType::kBF16);
  Sequence sequence = engine->new_sequence(engine->prepare_raw(kTexts[3], {}), parse_cache_mode("full"));
  std::string streamed;
  int steps = 0;
  GenerateItem item{.sequence = &sequence, .options = {}, .callbacks = {}};
  item.options.max_tokens = 100;
  item.options.ignore_eos = true;
  item.callbacks.on_text = [&](std::string_view text) { streamed += text; };
  item.callbacks.cancelled = [&] { return ++steps > 10; };
  const GenerateResult result = generate(*engine, {&item, 1})[0];
  EXPECT_EQ(result.finish_reason, "cancelled");
  EXPECT_GE(result.tokens.size(), 1u);
  EXPECT_LE(result.tokens.size(), 10u);
  EXPECT_EQ(streamed, result.text);
}

TEST(Generate, CancelledBeforeItBeganComputesNothing) {
  const std::unique_ptr<Engine> engine = load(DType::kBF16);
  Sequence sequence = engine->new_sequence(engine->prepare_raw(kTexts[0], {}), parse_cache_mode("full"));
  GenerateItem item{.sequence = &sequence, .options = {}, .callbacks = {}};
  item.callbacks.cancelled = [] { return true; };
  const GenerateResult result = generate(*engine, {&item, 1})[0];
  EXPECT_EQ(result.finish_reason, "cancelled");
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(sequence.n_computed(), 0);
}

}  // namespace
}  // namespace vlcache
