// What a prompt's tokens are.
#include "engine/prompt.h"

namespace vlcache {

int32_t Prompt::n_vision_tokens() const {
  int32_t n = 0;
  for (const ImageSpan& s : spans) n += s.end - s.begin;
  return n;
}

PromptShape Prompt::shape() const {
  return {.n_tokens = n_tokens(),
          .n_vision = n_vision_tokens(),
          .n_after_vision = n_tokens() - (spans.empty() ? 0 : spans.back().end)};
}

std::vector<TokenInfo> Prompt::token_infos() const {
  std::vector<TokenInfo> infos(tokens.size());
  for (size_t i = 0; i < infos.size(); ++i) {
    infos[i].id = tokens[i];
    if (!classes.empty()) infos[i].token_class = classes[i];
    infos[i].meta.t = static_cast<int32_t>(i);
  }
  for (const ImageSpan& s : spans) {
    for (int32_t i = s.begin; i < s.end; ++i) {
      infos[static_cast<size_t>(i)].meta.modality = Modality::kVision;
      infos[static_cast<size_t>(i)].meta.segment = s.image;
    }
  }
  return infos;
}

Sha256Digest image_key(const ImageTiles& image) {
  Sha256 hash;
  for (const int64_t size : {image.n_tiles, image.height, image.width, image.original_height, image.original_width,
                             image.tile_rows, image.tile_cols, image.overview}) {
    hash.add(size);
  }
  hash.add({image.pixels.data(), static_cast<size_t>(image.tensor().bytes())});
  return hash.finish();
}

}  // namespace vlcache
