// Text and pictures to the tokens a model sees: chat template, placeholder expansion, tokenizer, in transformers'
// order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/token_info.h"
#include "model/image_tiles.h"
#include "model/model.h"
#include "policy/policy.h"

namespace vlcache {

// Tokens [begin, end) of a prompt that stand for rows [first_row, first_row + end - begin) of an image's embeddings.
struct ImageSpan {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t image = 0;
  int32_t first_row = 0;
};

struct Prompt {
  std::vector<int32_t> tokens;      // image tokens expanded
  std::vector<TokenClass> classes;  // [n_tokens], or empty: all kOther
  std::vector<ImageSpan> spans;     // ascending, disjoint
  std::vector<ImageTiles> images;   // in prompt order
  // False: a policy acts behind the last image, before it has seen what is asked. Without an image it makes no
  // difference.
  bool query_aware = true;
  // > 0: a policy acts each time so many tokens have been computed, as if the prompt ended there, so that the prompt's
  // KV is never held as a whole. What it drops so was judged by fewer queries.
  int32_t evict_every = 0;

  int32_t n_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t n_vision_tokens() const;
  PromptShape shape() const;
  // Of its first n tokens.
  PromptShape shape_until(int32_t n) const;
  // Of the part behind which a policy acts (at last).
  PromptShape acting_shape() const;
  // Id, class, modality, segment and position of every token.
  std::vector<TokenInfo> token_infos() const;
};

// What makes two pictures the same to a model: all pixels that the encoder sees, and the sizes that decide how tiles
// become rows.
Sha256Digest image_key(const ImageTiles& image);

// The embeddings that a prompt's image tokens stand for, as far as they are needed.
struct EncodedImages {
  std::vector<ImageSpan> spans;
  std::vector<VisionOutput> outputs;  // by image; empty where all its tokens have been computed
};

}  // namespace vlcache
