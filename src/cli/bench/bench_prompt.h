// Prompts for timing: images between two halves of random text.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine.h"

namespace vlcache {

// Copies the images. before, after: states of splitmix from which the halves of the n_text tokens are drawn; they may
// be the same object.
Prompt random_prompt_around(const Model& model, std::span<const ImageTiles> images, int32_t n_text, uint64_t& before,
                            uint64_t& after);

}  // namespace vlcache
