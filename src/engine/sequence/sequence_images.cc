#include "engine/sequence/sequence_images.h"

#include <algorithm>

namespace vlcache {

void SequenceImages::take(const Prompt& prompt, std::span<const Sha256Digest> keys, int32_t n_kept) {
  std::vector<Sha256Digest> contents(keys.begin(), keys.end());
  for (size_t i = 0; i < images_.size(); ++i) {
    if (images_[i].begin() < n_kept) contents[i] = contents_[i];
  }
  contents_ = std::move(contents);
  images_ = list_images(prompt.spans, keys, prompt.positions);
  salt_ = prompt.salt;
  spans_ = prompt.spans;
  n_prompt_spans_ = spans_.size();
}

int32_t SequenceImages::n_common(int32_t n, const Prompt& prompt, std::span<const Sha256Digest> keys) const {
  const PromptImages others = list_images(prompt.spans, keys, prompt.positions);
  const auto same_image = [&](const ImageSpan& own, const ImageSpan& other) {
    const PromptImage &a = images_[static_cast<size_t>(own.image)], &b = others[static_cast<size_t>(other.image)];
    return a.key == b.key && a.offset == b.offset;
  };
  for (size_t i = 0; i < n_prompt_spans_ && spans_[i].begin < n; ++i) {
    const ImageSpan& own = spans_[i];
    const bool same = i < prompt.spans.size() && own.same_rows(prompt.spans[i]) && same_image(own, prompt.spans[i]);
    if (!same) n = own.begin;
  }
  // An image token of this sequence that has no image (a model may generate any token) does not match.
  for (size_t i = n_prompt_spans_; i < prompt.spans.size(); ++i) n = std::min(n, prompt.spans[i].begin);
  return n;
}

std::vector<Sha256Digest> SequenceImages::keys() const {
  std::vector<Sha256Digest> keys;
  for (const PromptImage& image : images_) keys.push_back(image.key);
  return keys;
}

void SequenceImages::reset_contents(int32_t first) {
  for (size_t i = 0; i < images_.size(); ++i) {
    if (first <= 0 || images_[i].n_tokens_from(first) > 0) contents_[i] = images_[i].key;
  }
}

void SequenceImages::repeat(int32_t from, int32_t to, int32_t begin) {
  const int32_t shift = begin - from;
  for (size_t i = 0; i < n_prompt_spans_; ++i) {
    const ImageSpan span = spans_[i];
    const int32_t first = std::max(from, span.begin), last = std::min(to, span.end);
    if (first >= last) continue;
    ImageSpan again{.begin = first + shift, .end = last + shift, .image = span.image, .first_row = span.row_of(first)};
    if (!span.rows.empty()) {
      again.rows.assign(span.rows.begin() + first - span.begin, span.rows.begin() + last - span.begin);
    }
    spans_.push_back(std::move(again));
  }
}

}  // namespace vlcache
