// The slots of a KvCache as policies see them.
#pragma once

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
  std::span<const int32_t> positions(int32_t layer, int32_t head) const override {
    return cache_.slot_positions(layer, head);
  }
  std::span<const float> bias(int32_t layer, int32_t head) const override {
    const KvView view = cache_.view(layer);
    if (view.slot_bias == nullptr) return {};
    return {view.slot_bias + int64_t{head} * view.slot_stride, static_cast<size_t>(view.n_slots[head])};
  }
  std::span<float> plane(int32_t layer, int32_t head, int32_t i) override { return cache_.plane(layer, head, i); }
  void hide(int32_t layer, int32_t head, int32_t slot) override { cache_.hide(layer, head, slot); }

 private:
  KvCache& cache_;
};

}  // namespace vlcache
