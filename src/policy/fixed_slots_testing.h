// For tests and fuzzers: slots of lists of given lengths, slot i at position i.
#pragma once

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
        head.plane.resize(head.tokens.size());
      }
    }
  }

  int n_calls = 0;  // of hide
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
  std::span<const int32_t> positions(int32_t layer, int32_t head) const override { return at(layer, head).tokens; }
  std::span<const float> bias(int32_t layer, int32_t head) const override { return at(layer, head).bias; }
  std::span<float> plane(int32_t layer, int32_t head, int32_t) override { return at(layer, head).plane; }
  void hide(int32_t layer, int32_t head, int32_t slot) override {
    at(layer, head).bias.at(static_cast<size_t>(slot)) = -std::numeric_limits<float>::infinity();
    ++n_calls;
  }

 private:
  struct Head {
    std::vector<int32_t> tokens;
    std::vector<float> bias, plane;
  };
  const Head& at(int32_t layer, int32_t head) const {
    return layers_[static_cast<size_t>(layer)][static_cast<size_t>(head)];
  }
  Head& at(int32_t layer, int32_t head) { return layers_[static_cast<size_t>(layer)][static_cast<size_t>(head)]; }

  std::vector<std::vector<Head>> layers_;
};

}  // namespace vlcache
