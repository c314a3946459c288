// kept_image_tokens() finds which of a prompt's image tokens a sequence still has, and where in the images they lie,
// for showing an answer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/prompt/prompt.h"
#include "model/images/image_tiles.h"
#include "policy/policy.h"

namespace vlcache {

struct ModelConfig;

struct KeptImage {
  int64_t width = 0, height = 0;                // of the image as it was decoded
  std::vector<float> shares;                    // [n_tokens] the share of all (layer, kv head) that has its slot
  std::vector<std::optional<PixelRect>> rects;  // [n_tokens] as token_rects
};

// By image of the prompt, whose tokens are the sequence's first. Tokens that a policy has dropped before the language
// model, and slots that are hidden or stand for several tokens, count as gone. Empty: there are no slots at all. Cost:
// a walk over every slot of every head.
std::vector<KeptImage> kept_image_tokens(const ModelConfig& config, const Prompt& prompt, const PolicySlots& slots);

}  // namespace vlcache
