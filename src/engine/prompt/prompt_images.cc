#include "engine/prompt/prompt_images.h"

#include <algorithm>

namespace vlcache {

int32_t PromptImage::n_tokens_from(int32_t first) const {
  int32_t n = 0;
  for (const ImageSpan& span : spans) n += std::max(0, span.end - std::max(span.begin, first));
  return n;
}

PromptImages list_images(std::span<const ImageSpan> spans, std::span<const Sha256Digest> keys) {
  PromptImages images(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) images[i].key = keys[i];
  for (const ImageSpan& span : spans) {
    PromptImage& image = images.at(static_cast<size_t>(span.image));
    image.in_order = image.in_order && span.rows.empty() && span.first_row == image.n_tokens;
    image.n_tokens += span.end - span.begin;
    image.spans.push_back(span);
  }
  return images;
}

PromptImages list_images(const Prompt& prompt) { return list_images(prompt.spans, image_keys(prompt)); }

}  // namespace vlcache
