// Text and pictures to the tokens a model sees: chat template, placeholder expansion, tokenizer, in transformers'
// order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/kv.h"
#include "model/image_tiles.h"

namespace vlcache {

// Tokens [begin, end) of a prompt that stand for rows [first_row, first_row + end - begin) of an image's embeddings.
struct ImageSpan {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t image = 0;
  int32_t first_row = 0;
};

struct Prompt {
  std::vector<int32_t> tokens;     // image tokens expanded
  std::vector<ImageSpan> spans;    // ascending, disjoint
  std::vector<ImageTiles> images;  // in prompt order

  int32_t n_vision_tokens() const;
  // Position and modality of every token, for the cache.
  std::vector<SlotMeta> slot_meta() const;
};

}  // namespace vlcache
