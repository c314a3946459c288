// Prompt holds the tokens a model sees, made from text and images: chat template, placeholder expansion, tokenizer, in
// transformers' order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/contracts/token_info.h"
#include "base/sha256.h"
#include "engine/hooks/lookahead.h"
#include "model/images/image_tiles.h"
#include "model/model.h"
#include "policy/policy.h"

namespace vlcache {

// Tokens [begin, end) of a prompt that stand for rows of an image's embeddings: first_row and the rows after it, or
// rows listed one by one.
struct ImageSpan {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t image = 0;
  int32_t first_row = 0;      // if `rows` is empty
  std::vector<int32_t> rows;  // [end - begin], ascending, or empty

  int32_t row_of(int32_t token) const {
    return rows.empty() ? first_row + token - begin : rows[static_cast<size_t>(token - begin)];
  }
  bool same_rows(const ImageSpan& other) const {
    return begin == other.begin && end == other.end && first_row == other.first_row && rows == other.rows;
  }
};

// A policy's selection of a prompt's image tokens before the language model sees them (image_selection.h).
struct ImageSelection {
  std::vector<VisionOutput> outputs;  // by image, as far as they were encoded for the selection
  int32_t n_dropped = 0;              // tokens
  double vision_ms = 0, select_ms = 0;
};

struct Prompt {
  std::vector<int32_t> tokens;      // image tokens expanded
  std::vector<TokenClass> classes;  // [n_tokens], or empty: all kOther
  std::vector<ImageSpan> spans;     // ascending, disjoint
  // [n_tokens], or empty: token i is at position i. What follows goes on after the largest component.
  std::vector<Position> positions;
  std::vector<ImageTiles> images;  // in prompt order
  // By image: decodes pixels that were left out of it, null where they never are; empty if no image's ever are.
  std::vector<std::function<ImageTiles()>> pixel_sources;
  // image_key of every image, and image_keys(), if they have been computed: it takes a while.
  std::vector<Sha256Digest> contents, keys;
  // Of cached KV and embeddings, only prompts of the same salt share anything.
  std::optional<Sha256Digest> salt;
  // False: a policy acts after the last image, before the question is known. Without an image it makes no difference.
  bool query_aware = true;
  // > 0: a policy acts each time this many tokens have been computed, as if the prompt ended there, so that the
  // prompt's KV is never held as a whole. What it then drops was judged by fewer queries.
  int32_t evict_every = 0;
  int32_t n_template = 0;                   // first tokens, which the chat template wrote before the conversation's own
  bool in_thought = false;                  // its text ends where a thought of the answer has begun
  std::optional<ImageSelection> selection;  // set once a policy has chosen
  ReplayText replay_text;                   // for policies that replay the prompt

  // Copies its images, too. Not for a prompt that a policy has shortened.
  Prompt copy() const;
  // Appends one of its images to another prompt's, too.
  void copy_image(size_t image, Prompt& to) const;
  // The same, but this prompt loses it.
  void move_image(size_t image, Prompt& to);
  // An image with its pixels. Throws what decoding throws, if they were left out.
  const ImageTiles& with_pixels(size_t image);
  // Frees the pixels of an image for now, unless they cannot be decoded again.
  void let_pixels_go(size_t image);
  int32_t n_tokens() const { return static_cast<int32_t>(tokens.size()); }
  // One more than the largest component of a position: what follows begins there, and the context limit counts it.
  int32_t n_positions() const;
  int32_t n_vision_tokens() const;
  PromptShape shape() const;
  // Of its first n tokens.
  PromptShape shape_until(int32_t n) const;
  // Of the part after which a policy acts (at last).
  PromptShape acting_shape() const;
  // Id, class, modality, segment and position of every token.
  std::vector<TokenInfo> token_infos() const;

 private:
  bool can_decode(size_t image) const;  // its pixels, when they were left out
};

// What a prompt needs: slots of the cache, and positions of the model's context.
struct PromptExtent {
  int32_t n_tokens = 0, n_positions = 0;
  PromptExtent with(int32_t n_more) const { return {n_tokens + n_more, n_positions + n_more}; }
};
// As far as `policy` lets the model see it.
PromptExtent extent_seen(const Prompt& prompt, const Policy& policy);

// Positions of a prompt's tokens: text one after the other, an image's tokens where its family places them relative to
// where the image begins, and what follows after the largest component. Units of a video without a token between them
// have one beginning, and differ in time. Empty where that makes every position the token's index.
std::vector<Position> place_tokens(const ModelConfig& config, int32_t n_tokens, std::span<const ImageSpan> spans,
                                   std::span<const ImageTiles> images);

// Identifies images that are the same to a model (which of their rows a prompt has is in its spans): all pixels that
// the encoder sees, and the sizes that decide how tiles become rows.
Sha256Digest image_key(const ImageTiles& image);
// The cache keys of a prompt's images: image_key, and the prompt's salt.
std::vector<Sha256Digest> image_keys(const Prompt& prompt);

}  // namespace vlcache
