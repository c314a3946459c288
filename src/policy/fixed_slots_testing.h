// For tests and fuzzers: FixedSlots, slots of lists of given lengths, slot i of token i.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "policy/policy.h"

namespace vlcache {

class FixedSlots final : public PolicySlots {
 public:
  explicit FixedSlots(const std::vector<std::vector<int32_t>>& n_slots) {  // [n_layers][n_kv_heads]
    for (const auto& layer : n_slots) {
      std::vector<Head>& heads = layers_.emplace_back();
      for (const int32_t n : layer) {
        Head& head = heads.emplace_back();
        head.tokens.resize(static_cast<size_t>(n));
        std::iota(head.tokens.begin(), head.tokens.end(), 0);
        head.bias.resize(head.tokens.size());
        for (std::vector<float>& plane : head.planes) plane.resize(head.tokens.size());
      }
    }
  }

  static constexpr int32_t kHeadDim = 4;
  int32_t n_at_prompt_end = 0;
  int32_t sliding_window = 0;  // window of every layer
  int n_calls = 0;             // calls of hide
  std::vector<int32_t> hidden(int32_t layer, int32_t head) const {
    std::vector<int32_t> slots;
    for (const int32_t i : at(layer, head).tokens) {
      if (!std::isfinite(at(layer, head).bias[static_cast<size_t>(i)])) slots.push_back(i);
    }
    return slots;
  }

  int32_t n_layers() const override { return static_cast<int32_t>(layers_.size()); }
  int32_t n_kv_heads(int32_t layer) const override {
    return static_cast<int32_t>(layers_[static_cast<size_t>(layer)].size());
  }
  std::span<const int32_t> tokens(int32_t layer, int32_t head) const override { return at(layer, head).tokens; }
  std::span<const int32_t> places(int32_t layer, int32_t head) const override { return at(layer, head).tokens; }
  std::span<const float> bias(int32_t layer, int32_t head) const override { return at(layer, head).bias; }
  int32_t window(int32_t) const override { return sliding_window; }
  int32_t n_visible(int32_t layer, int32_t head) const override {
    return static_cast<int32_t>(std::ssize(at(layer, head).tokens) - std::ssize(hidden(layer, head)));
  }
  int32_t n_visible_at_prompt_end(int32_t, int32_t) const override { return n_at_prompt_end; }
  int64_t page_bytes(int32_t) const override { return 1; }
  int32_t head_dim(int32_t) const override { return kHeadDim; }
  // Key i is (i, i^2 mod 7, 1, ..), its value the same.
  void read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const override {
    for (const Tensor& t : {k, v}) {
      if (t.empty()) continue;
      for (const int32_t i : at(layer, head).tokens) {
        float* row = t.row<float>(i);
        std::fill_n(row, kHeadDim, 1.0f);
        row[0] = static_cast<float>(i);
        row[1] = static_cast<float>(i * i % 7);
      }
    }
  }
  std::span<float> plane(int32_t layer, int32_t head, int32_t i) override {
    return at(layer, head).planes[static_cast<size_t>(i)];
  }
  void hide(int32_t layer, int32_t head, int32_t slot) override {
    at(layer, head).bias.at(static_cast<size_t>(slot)) = -std::numeric_limits<float>::infinity();
    ++n_calls;
  }

 private:
  struct Head {
    std::vector<int32_t> tokens;
    std::vector<float> bias;
    std::array<std::vector<float>, 2> planes;
  };
  const Head& at(int32_t layer, int32_t head) const {
    return layers_[static_cast<size_t>(layer)][static_cast<size_t>(head)];
  }
  Head& at(int32_t layer, int32_t head) { return layers_[static_cast<size_t>(layer)][static_cast<size_t>(head)]; }

  std::vector<std::vector<Head>> layers_;
};

}  // namespace vlcache
