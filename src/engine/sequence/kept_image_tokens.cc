#include "engine/sequence/kept_image_tokens.h"

#include <cmath>

#include "engine/prompt/prompt_images.h"
#include "model/family.h"
#include "policy/parts.h"

namespace vlcache {
namespace {

// [n_tokens] heads that have the token; n_heads: all heads that have slots of their own.
std::vector<int32_t> count_heads(const PolicySlots& slots, int32_t n_tokens, int32_t& n_heads) {
  std::vector<int32_t> counts(static_cast<size_t>(n_tokens));
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      const std::span<const int32_t> tokens = slots.tokens(layer, head);
      const std::span<const float> bias = slots.bias(layer, head);
      n_heads += 1;
      for (auto i = static_cast<size_t>(first_in_window(slots, layer, head)); i < tokens.size(); ++i) {
        const bool hidden = !bias.empty() && std::isinf(bias[i]);
        if (!hidden && tokens[i] >= 0 && tokens[i] < n_tokens) ++counts[static_cast<size_t>(tokens[i])];
      }
    }
  }
  return counts;
}

bool any_slots(const PolicySlots& slots) {
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
      if (!slots.tokens(layer, head).empty()) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<KeptImage> kept_image_tokens(const ModelConfig& config, const Prompt& prompt, const PolicySlots& slots) {
  std::vector<KeptImage> images;
  if (prompt.images.empty() || !any_slots(slots)) return images;
  int32_t n_heads = 0;
  const std::vector<int32_t> counts = count_heads(slots, prompt.n_tokens(), n_heads);
  for (const ImageTiles& tiles : prompt.images) {
    KeptImage& image = images.emplace_back(KeptImage{.width = tiles.original_width,
                                                     .height = tiles.original_height,
                                                     .shares = {},
                                                     .rects = token_rects(config, tiles)});
    image.shares.resize(image.rects.size());
  }
  const PromptImages places = list_images(prompt);
  for (size_t i = 0; i < images.size(); ++i) {
    places[i].for_each_token([&](int32_t token, int32_t row) {
      images[i].shares[static_cast<size_t>(row)] =
          static_cast<float>(counts[static_cast<size_t>(token)]) / static_cast<float>(n_heads);
    });
  }
  return images;
}

}  // namespace vlcache
