// Test helpers of this folder: small engines of random weights, sequences, and a plain way to compute them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "base/json.h"
#include "engine/engine.h"
#include "engine/engine_caches.h"
#include "engine/request.h"
#include "engine/scheduler/scheduler.h"
#include "policy/registry.h"
#include "reuse/prefix/prefix_cache.h"

namespace vlcache {

inline constexpr int32_t kHeads = 4, kKvHeads = 2, kHeadDim = 32, kVocab = 61;

inline std::unique_ptr<Engine> make_engine(int32_t n_layers, std::string_view backend = "auto",
                                           int64_t kv_memory_bytes = 64 << 20, std::string_view model_type = "llama",
                                           int32_t max_positions = 4096, int64_t cache_bytes = 0) {
  Json config = parse_json(
      R"({"vocab_size": 61, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "torch_dtype": "float32",
    "sliding_window": 40})",
      "test");
  config["model_type"] = model_type;
  if (model_type.ends_with("_vl_text")) config["rope_scaling"] = {{"mrope_section", {6, 5, 5}}};
  if (model_type == "gpt2") {
    config.update(
        {{"n_embd", 48}, {"n_layer", n_layers}, {"n_head", 4}, {"n_inner", 64}, {"n_positions", max_positions}});
  }
  config["num_hidden_layers"] = n_layers;
  config["max_position_embeddings"] = max_positions;
  EngineOptions options;
  options.backend = backend;
  options.kv_memory_bytes = kv_memory_bytes;
  options.cache_bytes = cache_bytes;
  return Engine::random(parse_model_config(config, "test"), options, /*seed=*/5);
}

// Sanitized builds have the slow backend alone: their tests take fewer cases.
inline bool only_ref() { return backend_names().size() == 1; }

inline std::vector<int32_t> random_tokens(int32_t n, uint32_t seed = 7) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % kVocab);
  return tokens;
}

// Where M-RoPE places n tokens, of which [begin, end) are an image with this many columns.
inline std::vector<Position> image_positions(int32_t n, int32_t begin, int32_t end, int32_t cols) {
  std::vector<Position> positions;
  for (int32_t t = 0; t < begin; ++t) positions.push_back(Position::all(t));
  for (int32_t i = 0; i < end - begin; ++i) positions.push_back(Position{0, i / cols, i % cols}.moved(begin));
  const int32_t next = begin + std::max(cols, (end - begin + cols - 1) / cols);
  for (int32_t t = end; t < n; ++t) positions.push_back(Position::all(next + t - end));
  return positions;
}
inline bool is_multimodal(const Engine& engine) { return engine.model().config().text.ropes[0].multimodal(); }

inline std::unique_ptr<Sequence> make_sequence(Engine& engine, std::vector<int32_t> tokens,
                                               std::string_view policy = "full", std::string_view budget = "") {
  return engine.new_sequence(engine.prepare_tokens(std::move(tokens)), parse_policy(policy, budget));
}

inline std::vector<int32_t> ids_of(const GenerateResult& result) {
  std::vector<int32_t> ids;
  for (const GeneratedToken& token : result.tokens) ids.push_back(token.id);
  return ids;
}

// A request for six tokens, whatever they are, after a prompt that may begin with a cached prefix.
inline Request prefix_request(const Engine& engine, std::vector<int32_t> tokens, std::string_view policy = "full",
                              std::string_view budget = "") {
  Request request;
  request.prompt = engine.prepare_tokens(std::move(tokens));
  request.policy = parse_policy(policy, budget);
  request.reuse.prefix = true;
  request.options.max_tokens = 6;
  request.options.ignore_eos = true;
  return request;
}

// The same answer without any cache.
inline std::vector<int32_t> answer_alone(Engine& engine, const std::vector<int32_t>& tokens) {
  Request request = prefix_request(engine, tokens);
  request.reuse.prefix = false;
  return ids_of(generate(engine, std::move(request)));
}

// Only pages of the prefix caches are in use, and all of them can be freed.
inline void expect_no_page_lost(Engine& engine) {
  EXPECT_EQ(engine.pools().used_bytes(), engine.caches().prefix_bytes());
  EXPECT_LE(engine.caches().cache_budget().used_bytes(), engine.caches().cache_budget().max_bytes());
  for (const auto& kv : engine.caches().all()) kv->prefixes().clear();
  EXPECT_EQ(engine.pools().used_bytes(), 0);
}

// Token numbers, [layer][head].
using Kept = std::vector<std::vector<std::vector<int32_t>>>;

inline Kept kept_tokens(const Sequence& s) {
  Kept kept(static_cast<size_t>(s.slots().n_layers()));
  for (int32_t layer = 0; layer < s.slots().n_layers(); ++layer) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const std::span<const int32_t> tokens = s.cache().slot_tokens(layer, head);
      kept[static_cast<size_t>(layer)].emplace_back(tokens.begin(), tokens.end());
    }
  }
  return kept;
}

inline int64_t n_slots(const Kept& kept) {
  int64_t n = 0;
  for (const auto& layer : kept) {
    for (const auto& head : layer) n += std::ssize(head);
  }
  return n;
}

// 150 tokens, of them 30 .. 99 an image, whose embeddings do not matter.
inline Prompt with_image(Engine& engine, int32_t n = 150, int32_t begin = 30, int32_t end = 100) {
  Prompt prompt = engine.prepare_tokens(random_tokens(n));
  if (begin >= end) return prompt;
  prompt.spans = {{.begin = begin, .end = end, .image = 0, .first_row = 0}};
  prompt.images.emplace_back().allocate(1, 2, 2);
  if (is_multimodal(engine)) prompt.positions = image_positions(n, begin, end, 10);
  return prompt;
}

// with_image's prompt, the token 5, and 49 more.
inline Prompt second_turn(Engine& engine) {
  std::vector<int32_t> ids = random_tokens(150);
  ids.push_back(5);
  const std::vector<int32_t> more = random_tokens(49, 11);
  ids.insert(ids.end(), more.begin(), more.end());
  Prompt prompt = engine.prepare_tokens(ids), first = with_image(engine);
  prompt.spans = first.spans;
  prompt.images = std::move(first.images);
  if (is_multimodal(engine)) prompt.positions = image_positions(prompt.n_tokens(), 30, 100, 10);
  return prompt;
}

// One step over the next `rows` pending tokens; the logits of the last token, if it was among them. None of a step of
// lookahead tokens.
inline std::vector<float> step(Engine& engine, Sequence& sequence, int32_t rows, LayerHooks* hooks = nullptr) {
  std::vector<TokenRun> runs;
  const StepLayers part = sequence.next_runs(rows, runs);
  StepItem item;
  item.sequence = &sequence;
  item.runs = runs;
  item.layers = part.layers;
  item.hidden = part.hidden;
  item.hooks = hooks;
  const Tensor logits = engine.stepper().step({&item, 1})[0];
  std::vector<float> last(logits.as<float>(), logits.as<float>() + logits.numel());
  const bool looked_ahead = sequence.looks_ahead();
  const auto likeliest = [&] {
    return last.empty() ? -1 : static_cast<int32_t>(std::ranges::max_element(last) - last.begin());
  };
  if (!sequence.look_ahead(likeliest)) sequence.apply_policy();
  if (looked_ahead) last.clear();
  return last;
}

// Computes all pending tokens, `chunk` at a time; the logits of the last.
inline std::vector<float> compute(Engine& engine, Sequence& sequence, int32_t chunk, LayerHooks* hooks = nullptr) {
  std::vector<float> last;
  while (sequence.n_pending() > 0) {
    std::vector<float> logits = step(engine, sequence, chunk, hooks);
    if (!logits.empty()) last = std::move(logits);
  }
  return last;
}

// K and V of another sequence, at the same positions. A factor on V tells loaded slots from computed ones.
class CopySource final : public SlotSource {
 public:
  CopySource(Engine& engine, Sequence& from, float factor) : engine_(engine), from_(from), factor_(factor) {}
  void load(int32_t layer, std::span<const int32_t> tokens, const KvView& view) override {
    if (layer == fail_at) throw Error(ErrorCode::kIo, "the disk is gone");
    const auto n = static_cast<int64_t>(tokens.size());
    const int64_t d = view.head_dim;
    std::vector<float> k(static_cast<size_t>(n * kKvHeads * d)), v(k.size()), head(static_cast<size_t>(2 * n * d));
    for (int32_t h = 0; h < kKvHeads; ++h) {
      const Tensor hk(head.data(), DType::kF32, {n, d}), hv(head.data() + n * d, DType::kF32, {n, d});
      engine_.backend().kv_read(from_.cache().view(layer), h, tokens, hk, hv);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < d; ++c) {
          k[static_cast<size_t>((i * kKvHeads + h) * d + c)] = hk.row<float>(i)[c];
          v[static_cast<size_t>((i * kKvHeads + h) * d + c)] = hv.row<float>(i)[c] * factor_;
        }
      }
    }
    engine_.backend().kv_write(Tensor(k.data(), DType::kF32, {n, kKvHeads, d}),
                               Tensor(v.data(), DType::kF32, {n, kKvHeads, d}), view);
    n_loaded += static_cast<int>(n);
  }
  int n_loaded = 0;
  int fail_at = -1;

 private:
  Engine& engine_;
  Sequence& from_;
  float factor_;
};

inline float distance(const std::vector<float>& a, const std::vector<float>& b) {
  float error = 0;
  for (size_t i = 0; i < a.size(); ++i) error = std::max(error, std::abs(a[i] - b[i]));
  return error;
}

// Equal within `tolerance` of the largest value.
inline void expect_close(const std::vector<float>& a, const std::vector<float>& b, float tolerance = 1e-5f) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  float largest = 0;
  for (const float x : b) largest = std::max(largest, std::abs(x));
  EXPECT_LE(distance(a, b), tolerance * largest);
}

}  // namespace vlcache
