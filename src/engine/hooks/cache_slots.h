// CacheSlots shows the slots of a KvCache to policies.
#pragma once

#include <vector>

#include "cache/kv_cache.h"
#include "policy/policy.h"

namespace vlcache {

class CacheSlots final : public PolicySlots {
 public:
  explicit CacheSlots(KvCache& cache) : cache_(cache) {}

  int32_t n_layers() const override { return cache_.shape().n_layers(); }
  int32_t n_kv_heads(int32_t layer) const override {
    const KvLayerShape& shape = cache_.shape().layers[static_cast<size_t>(layer)];
    return shape.shares < 0 ? shape.n_kv_heads : 0;
  }
  std::span<const int32_t> tokens(int32_t layer, int32_t head) const override {
    return cache_.slot_tokens(layer, head);
  }
  std::span<const int32_t> places(int32_t layer, int32_t head) const override {
    return cache_.slot_places(layer, head);
  }
  std::span<const float> bias(int32_t layer, int32_t head) const override {
    const KvView view = cache_.view(layer);
    if (view.slot_bias == nullptr) return {};
    return {view.slot_bias + int64_t{head} * view.slot_stride, static_cast<size_t>(view.n_slots[head])};
  }
  int32_t window(int32_t layer) const override { return cache_.shape().layers[static_cast<size_t>(layer)].window; }
  int64_t page_bytes(int32_t layer) const override { return cache_.page_bytes(layer); }
  int64_t kept_bytes(int32_t layer, int32_t head, int32_t n) const override {
    return cache_.kept_bytes(layer, head, n);
  }
  int32_t head_dim(int32_t layer) const override { return cache_.shape().layers[static_cast<size_t>(layer)].head_dim; }
  void read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const override {
    cache_.read(layer, head, k, v);
  }
  int32_t n_visible(int32_t layer, int32_t head) const override { return cache_.n_visible(layer, head); }
  int32_t n_visible_at_prompt_end(int32_t layer, int32_t head) const override {
    return n_visible_at_prompt_end_.empty()
               ? 0
               : n_visible_at_prompt_end_[static_cast<size_t>(layer)][static_cast<size_t>(head)];
  }
  // The last n_after slots of every head belong to tokens after the prompt. Slots that the window has passed since
  // count as the prompt's.
  void note_prompt_end(int32_t n_after = 0) {
    n_visible_at_prompt_end_.assign(static_cast<size_t>(n_layers()), {});
    for (int32_t layer = 0; layer < n_layers(); ++layer) {
      for (int32_t head = 0; head < n_kv_heads(layer); ++head) {
        n_visible_at_prompt_end_[static_cast<size_t>(layer)].push_back(cache_.n_slots(layer, head) -
                                                                       cache_.n_hidden(layer, head) - n_after);
      }
    }
  }
  void forget_prompt_end() { n_visible_at_prompt_end_.clear(); }
  bool knows_prompt_end() const { return !n_visible_at_prompt_end_.empty(); }
  std::span<float> plane(int32_t layer, int32_t head, int32_t i) override { return cache_.plane(layer, head, i); }
  void hide(int32_t layer, int32_t head, int32_t slot) override { cache_.hide(layer, head, slot); }

 private:
  KvCache& cache_;
  std::vector<std::vector<int32_t>> n_visible_at_prompt_end_;  // [layer][kv head]
};

}  // namespace vlcache
