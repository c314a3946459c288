// Inspection: what a model attends to in a prompt, and what a policy keeps of it: the figures of the VL-Cache paper for
// one question.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/sequence/sequence.h"
#include "model/images/image_tiles.h"

namespace vlcache {

struct InspectedLayer {
  double sparsity = 0;                     // of the text after the last image: entries below 1 % of their row's largest
  double decode_sparsity = 0;              // the same for the answer's tokens
  double budget = 0;                       // slots per kv head, the mean where they differ
  std::vector<std::vector<int32_t>> kept;  // [kv head] prompt tokens
  std::vector<double> hit_rates;           // by Inspection::rated
  // Of the answer's attention above that threshold, the share of image tokens; and their share among the slots with the
  // most attention, as many slots as the policy keeps.
  double vision_contribution = 0, vision_coverage = 0;
};

struct InspectedImage {
  int32_t begin = 0, end = 0;                   // its tokens
  std::vector<std::optional<PixelRect>> rects;  // [end - begin] the part of the image that each shows
};

struct Inspection {
  std::string policy;
  int32_t n_prompt = 0, tau = 0;
  std::vector<std::pair<int32_t, int32_t>> vision_spans;
  std::vector<std::string> rated;  // scorers whose best k slots are compared with the slots of the first answer token
  std::vector<InspectedLayer> layers;
  std::vector<InspectedImage> images;
  int64_t full_kv_bytes = 0, kv_bytes = 0;  // pages and tables after the prompt
  std::string full_answer, answer;          // with everything kept, and with what the policy keeps
};

// `policy` must act after the prompt by a budget, or choose among image tokens. Throws Error(kInput) for another one,
// and the policy's errors.
Inspection inspect(Engine& engine, Prompt prompt, PolicyPtr policy, int32_t max_tokens);

}  // namespace vlcache
