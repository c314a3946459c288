// KvShape: the K and V that a model's layers hold per token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/contracts/kv.h"

namespace vlcache {

struct KvLayerShape {
  int32_t n_kv_heads = 0;  // 0: the layer has no KV
  int32_t head_dim = 0;
  int32_t shares = -1;  // >= 0: the layer uses K and V of that earlier layer, which has its own
  int32_t window = 0;   // > 0: queries see tokens > their own - window only
  // What full pages become (coded_end); none: they stay values.
  std::optional<KvCodec> coded = {};
};

struct KvShape {
  std::vector<KvLayerShape> layers;
  KvCodec codec = KvCodec::kBF16;  // pages are written as these values
  // The codec by which users name the shape, though all layers may keep more bits; none: that of the first coded layer.
  std::optional<KvCodec> named = {};

  static KvShape uniform(int32_t n_layers, int32_t n_kv_heads, int32_t head_dim, KvCodec codec) {
    const KvLayerShape layer{.n_kv_heads = n_kv_heads, .head_dim = head_dim};
    return {.layers = std::vector<KvLayerShape>(static_cast<size_t>(n_layers), layer), .codec = codec};
  }
  int32_t n_layers() const { return static_cast<int32_t>(layers.size()); }
  bool has_codes() const {
    return std::ranges::any_of(layers, [](const KvLayerShape& layer) { return layer.coded.has_value(); });
  }
  // The codec of full pages, by which users name the shape.
  KvCodec full_codec() const {
    if (named) return *named;
    const auto coded = std::ranges::find_if(layers, [](const KvLayerShape& layer) { return layer.coded.has_value(); });
    return coded == layers.end() ? codec : *coded->coded;
  }
  // The codecs that pages may have: the first is `codec`.
  std::vector<KvCodec> codecs() const {
    std::vector<KvCodec> all{codec};
    for (const KvLayerShape& layer : layers) {
      const KvCodec own = layer.coded.value_or(codec);
      if (std::ranges::find(all, own) == all.end()) all.push_back(own);
    }
    return all;
  }
  // Whether every layer that uses the K and V of `layer`, which has its own, has a window.
  bool is_windowed(int32_t layer) const {
    for (int32_t l = 0; l < n_layers(); ++l) {
      if (owner(l) == layer && layers[static_cast<size_t>(l)].window == 0) return false;
    }
    return n_own_heads(layer) > 0;
  }
  // The most slots of a head that the row after n_tokens sees.
  int32_t most_visible(int32_t layer, int32_t n_tokens) const {
    const int32_t window = layers[static_cast<size_t>(layer)].window;
    return window > 0 ? std::min(n_tokens, window - 1) : n_tokens;
  }
  // The largest window of windowed layers, all of which keep as much; 0: there is none.
  int32_t largest_window() const {
    int32_t largest = 0;
    for (int32_t l = 0; l < n_layers(); ++l) {
      if (is_windowed(owner(l))) largest = std::max(largest, layers[static_cast<size_t>(l)].window);
    }
    return largest;
  }
  // Whether no layer keeps all pages of a sequence.
  bool all_windowed() const {
    for (int32_t l = 0; l < n_layers(); ++l) {
      if (n_own_heads(l) > 0 && !is_windowed(l)) return false;
    }
    return largest_window() > 0;
  }
  // Whether a sequence can continue with another's KV at certain places only (cache/continuation.h).
  bool has_places() const { return has_codes() || largest_window() > 0; }
  // The layer that holds K and V of `layer`: itself, or the one that it shares.
  int32_t owner(int32_t layer) const {
    const int32_t shared = layers[static_cast<size_t>(layer)].shares;
    return shared >= 0 ? shared : layer;
  }
  // kv heads whose K and V the layer holds itself: 0 when it shares another's or has none.
  int32_t n_own_heads(int32_t layer) const {
    const KvLayerShape& l = layers[static_cast<size_t>(layer)];
    return l.shares >= 0 ? 0 : l.n_kv_heads;
  }
};

}  // namespace vlcache
