// For tests and fuzzers: random statistics of a prompt, consistent with each other, and a policy's decisions on them.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "policy/policy.h"

namespace vlcache {

// Statistics of random attention over `slots`; a number for each field that `request` asks for.
class RandomCapture {
 public:
  RandomCapture(const CaptureRequest& request, const PolicySlots& slots, uint32_t seed) {
    std::mt19937 random(seed);
    capture.request = request;
    capture.layers.resize(static_cast<size_t>(slots.n_layers()));
    for (int32_t l = 0; l < slots.n_layers(); ++l) {
      const int32_t n_heads = slots.n_kv_heads(l);
      int64_t n = 0;
      for (int32_t h = 0; h < n_heads; ++h) n = std::max<int64_t>(n, std::ssize(slots.tokens(l, h)));
      LayerCapture& layer = capture.layers[static_cast<size_t>(l)];
      const auto fill = [&](Tensor& t, auto value) {
        std::vector<float>& values = storage_.emplace_back(static_cast<size_t>(n_heads * n));
        for (float& x : values) x = value(static_cast<float>(random()) * 0x1p-32f);
        t = Tensor(values.data(), DType::kF32, {n_heads, n});
      };
      const auto peaked = [](float x) { return std::pow(x, 8.0f); };
      fill(layer.all_sums, peaked);
      fill(layer.all_max, peaked);
      fill(layer.band_sums, [i = size_t{0}, &layer, peaked](float x) mutable {
        return peaked(x) * layer.all_sums.as<float>()[i++];  // a part of the sum over all queries
      });
      fill(layer.window_sums, peaked);
      fill(layer.window_max, peaked);
      const auto fill_queries = [&](Tensor& t, int64_t n_rows, int64_t width) {
        std::vector<float>& values = storage_.emplace_back(static_cast<size_t>(n_rows * width));
        for (float& x : values) x = static_cast<float>(random()) * 0x1p-31f - 1;
        t = Tensor(values.data(), DType::kF32, {n_rows, width});
      };
      const int64_t d = n_heads > 0 ? slots.head_dim(l) : 0, n_queries = std::min(request.window, kMostQueries);
      fill_queries(layer.future_mean, kGroup * n_heads, d);
      fill_queries(layer.future_covariance, kGroup * n_heads, d * d);
      fill_queries(layer.window_queries, n_queries, kGroup * n_heads * d);
      layer.window_queries = layer.window_queries.view({n_queries, kGroup * n_heads, d});
      for (int64_t i = 0; i < n_queries; ++i) layer.window_places.push_back(static_cast<int32_t>(n - n_queries + i));
      const float rows = static_cast<float>(request.window);
      fill(layer.seen_counts, [&](float) { return rows; });
      fill(layer.below_counts, [&](float x) { return std::floor(x * (rows + 1)); });
    }
  }
  Capture capture;

 private:
  static constexpr int64_t kGroup = 2;  // query heads of a kv head
  static constexpr int32_t kMostQueries = 8;
  std::vector<std::vector<float>> storage_;
};

inline KeepPlan plan_for(const Policy& policy, const PolicySlots& slots, const PromptShape& prompt, uint32_t seed) {
  std::vector<RandomCapture> made;
  std::vector<const Capture*> captures;
  for (const CaptureRequest& request : policy.needs(prompt)) made.emplace_back(request, slots, seed++);
  for (const RandomCapture& m : made) captures.push_back(&m.capture);
  const std::vector<TokenInfo> tokens(static_cast<size_t>(prompt.n_tokens));
  KeepPlan plan;
  policy.plan({.slots = slots, .tokens = tokens, .prompt = prompt, .captures = captures}, plan);
  return plan;
}

// An image of `n_lines` lines over two tiles, each ended by a newline, after an overview of 3 x 3 patches.
inline ImageTokens random_image(int32_t n_lines, uint32_t seed) {
  constexpr int32_t kOverview = 9, kWide = 6;
  std::mt19937 random(seed);
  ImageTokens image{
      .n_tiles = 3, .overview = 0, .tile = std::vector<int32_t>(kOverview, 0), .larger = {}, .attention = {}};
  for (int32_t i = 0; i < n_lines * (kWide + 1); ++i) {
    const int32_t column = i % (kWide + 1);
    image.tile.push_back(column == kWide ? ImageTokens::kNewline : 1 + column * 2 / kWide);
  }
  image.attention.assign(2, std::vector<float>(image.tile.size()));
  for (int32_t i = 0; i < image.n_tokens(); ++i) {
    image.larger.push_back(i < kOverview ? 1 + i % 3 / 2 : -1);
    for (std::vector<float>& values : image.attention)
      values[static_cast<size_t>(i)] = static_cast<float>(random() % 64);
  }
  return image;
}

}  // namespace vlcache
