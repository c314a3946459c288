// Compares two images token by token: which tokens of one show other pixels than tokens of the other.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/images/image_tiles.h"

namespace vlcache {

// [n_tokens] in the order of token_rows: a digest of the pixels in the square of patches that each token was computed
// from; 0 for tokens that show none (newlines, class tokens). The image must have its pixels. About as costly as
// image_key. Empty for images with dropped cells.
std::vector<uint64_t> cell_hashes(const ModelConfig& config, const ImageTiles& image);

// [n_tokens] Whether a token, or one around it in the same tile, has another hash in `b` than in `a`; true for class
// tokens if any token has. Both are of images of this shape.
std::vector<bool> changed_tokens(const ModelConfig& config, const ImageTiles& shape, const std::vector<uint64_t>& a,
                                 const std::vector<uint64_t>& b);

}  // namespace vlcache
