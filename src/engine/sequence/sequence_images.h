// SequenceImages: the images of a sequence's prompt, and what identifies the KV that the sequence has of each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/prompt/prompt_images.h"

namespace vlcache {

class SequenceImages {
 public:
  // Takes the images of the next prompt; what is known of those in its first n_kept tokens stays. `keys`: image_keys().
  void take(const Prompt& prompt, std::span<const Sha256Digest> keys, int32_t n_kept);
  // How many of the n tokens that a prompt begins with in common have the same rows of the same images, too.
  int32_t n_common(int32_t n, const Prompt& prompt, std::span<const Sha256Digest> keys) const;

  const PromptImages& list() const { return images_; }
  size_t size() const { return images_.size(); }
  std::vector<Sha256Digest> keys() const;
  const Sha256Digest& key(size_t image) const { return images_[image].key; }
  // What the KV of each image is: its key if it was computed as in a prompt by itself, else what set_content has set.
  std::span<const Sha256Digest> contents() const { return contents_; }
  void set_content(size_t image, const Sha256Digest& content) { contents_[image] = content; }
  // The KV of images with tokens from index `first` on will be computed.
  void reset_contents(int32_t first = 0);
  // Only prompts with the same salt share KV.
  const std::optional<Sha256Digest>& salt() const { return salt_; }

  // The image tokens of the prompt, then those of lookahead tokens.
  std::span<const ImageSpan> spans() const { return spans_; }
  // Lookahead tokens after the prompt: `begin` repeats tokens [from, to) of the prompt.
  void repeat(int32_t from, int32_t to, int32_t begin);
  void discard_repeated() { spans_.resize(n_prompt_spans_); }

 private:
  PromptImages images_;
  std::vector<Sha256Digest> contents_;
  std::optional<Sha256Digest> salt_;
  std::vector<ImageSpan> spans_;
  size_t n_prompt_spans_ = 0;
};

}  // namespace vlcache
