// FirstSlots shows a policy all slots but the last ones of every head: a prompt without the answer after it.
#pragma once

#include <algorithm>
#include <vector>

#include "policy/policy.h"

namespace vlcache {

class FirstSlots final : public PolicySlots {
 public:
  // Every head has n_left_out slots at least. `all` outlives this and is not changed meanwhile.
  FirstSlots(PolicySlots& all, int32_t n_left_out) : all_(all), n_left_out_(n_left_out) {}

  int32_t n_layers() const override { return all_.n_layers(); }
  int32_t n_kv_heads(int32_t layer) const override { return all_.n_kv_heads(layer); }
  std::span<const int32_t> tokens(int32_t layer, int32_t head) const override {
    return first(all_.tokens(layer, head));
  }
  std::span<const int32_t> places(int32_t layer, int32_t head) const override {
    return first(all_.places(layer, head));
  }
  std::span<const float> bias(int32_t layer, int32_t head) const override {
    const std::span<const float> bias = all_.bias(layer, head);
    return bias.empty() ? bias : first(bias);
  }
  int32_t window(int32_t layer) const override { return all_.window(layer); }
  int64_t page_bytes(int32_t layer) const override { return all_.page_bytes(layer); }
  int64_t kept_bytes(int32_t layer, int32_t head, int32_t n) const override { return all_.kept_bytes(layer, head, n); }
  int32_t head_dim(int32_t layer) const override { return all_.head_dim(layer); }
  void read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const override {
    all_.read(layer, head, k, v);
  }
  int32_t n_visible(int32_t layer, int32_t head) const override {
    return std::max(0, all_.n_visible(layer, head) - n_left_out_);
  }
  int32_t n_visible_at_prompt_end(int32_t layer, int32_t head) const override {
    return all_.n_visible_at_prompt_end(layer, head);
  }
  std::span<float> plane(int32_t layer, int32_t head, int32_t i) override {
    const std::span<float> plane = all_.plane(layer, head, i);
    return plane.first(plane.size() - static_cast<size_t>(n_left_out_));
  }
  void hide(int32_t layer, int32_t head, int32_t slot) override { all_.hide(layer, head, slot); }

 private:
  template <typename T>
  std::span<const T> first(std::span<const T> slots) const {
    return slots.first(slots.size() - static_cast<size_t>(n_left_out_));
  }

  PolicySlots& all_;
  int32_t n_left_out_;
};

}  // namespace vlcache
