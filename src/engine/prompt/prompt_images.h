// PromptImages: the images of a prompt by number, each with its cache key and the tokens that stand for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "engine/prompt/prompt.h"

namespace vlcache {

struct PromptImage {
  Sha256Digest key{};            // as image_keys()
  std::vector<ImageSpan> spans;  // ascending; empty: a policy has dropped all of its tokens
  int32_t n_tokens = 0;          // of the spans
  bool in_order = true;          // the spans' rows are 0, 1, 2, ...: none was dropped before the last of them
  // Of its first token, from where an image after the same tokens would begin: units of videos that share a beginning
  // lie elsewhere.
  Position offset{};

  // The first token, and one past the last.
  int32_t begin() const { return spans.empty() ? INT32_MAX : spans.front().begin; }
  int32_t end() const { return spans.empty() ? 0 : spans.back().end; }
  // Whether its tokens stand for all of its rows, of which there are n_rows.
  bool whole(int64_t n_rows) const { return in_order && n_tokens == n_rows; }
  // The number of its tokens from index `first` of the prompt on.
  int32_t n_tokens_from(int32_t first) const;
  // Calls visit(token, row) for each of its tokens.
  template <class Visit>
  void for_each_token(Visit visit) const {
    for (const ImageSpan& span : spans) {
      for (int32_t token = span.begin; token < span.end; ++token) visit(token, span.row_of(token));
    }
  }
};

using PromptImages = std::vector<PromptImage>;

// One for each key; spans: ascending. positions: of the first tokens, or empty: their indices.
PromptImages list_images(std::span<const ImageSpan> spans, std::span<const Sha256Digest> keys,
                         std::span<const Position> positions = {});
// Computes the keys unless the prompt has them.
PromptImages list_images(const Prompt& prompt);
// Identifies the KV of an image (`content`: how it was computed) where it lies: the same unit of a video at another
// time has other KV.
Sha256Digest placed_content(const PromptImage& image, const Sha256Digest& content);

}  // namespace vlcache
