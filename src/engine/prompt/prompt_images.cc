#include "engine/prompt/prompt_images.h"

#include <algorithm>

namespace vlcache {

int32_t PromptImage::n_tokens_from(int32_t first) const {
  int32_t n = 0;
  for (const ImageSpan& span : spans) n += std::max(0, span.end - std::max(span.begin, first));
  return n;
}

PromptImages list_images(std::span<const ImageSpan> spans, std::span<const Sha256Digest> keys,
                         std::span<const Position> positions) {
  PromptImages images(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) images[i].key = keys[i];
  int32_t next = 0, seen = 0;  // the next position after the tokens seen
  for (const ImageSpan& span : spans) {
    PromptImage& image = images.at(static_cast<size_t>(span.image));
    if (span.begin < std::ssize(positions) && image.spans.empty()) {
      for (; seen < span.begin; ++seen) next = std::max(next, positions[static_cast<size_t>(seen)].largest() + 1);
      image.offset = positions[static_cast<size_t>(span.begin)].moved(-next);
    }
    image.in_order = image.in_order && span.rows.empty() && span.first_row == image.n_tokens;
    image.n_tokens += span.end - span.begin;
    image.spans.push_back(span);
  }
  return images;
}

PromptImages list_images(const Prompt& prompt) {
  return list_images(prompt.spans, image_keys(prompt), prompt.positions);
}

Sha256Digest placed_content(const PromptImage& image, const Sha256Digest& content) {
  if (image.offset == Position{}) return content;
  Sha256 hash;
  hash.add(std::as_bytes(std::span(content)));
  for (const int32_t by : {image.offset.t, image.offset.h, image.offset.w}) hash.add(int64_t{by});
  return hash.finish();
}

}  // namespace vlcache
