// What a model attends to in a prompt, and what a policy makes of it: the figures of the VL-Cache paper for one
// question.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/sequence/sequence.h"
#include "model/image_tiles.h"

namespace vlcache {

struct InspectedLayer {
  double sparsity = 0;         // of the text behind the last image: entries below 1 % of their row's largest
  double decode_sparsity = 0;  // the same of the answer's tokens
  double budget = 0;           // slots per kv head, the mean where they differ
  std::vector<std::vector<int32_t>> kept;  // [kv head] prompt tokens
  std::vector<double> hit_rates;           // by Inspection::rated
  // Of the answer's attention above that threshold, the share that falls to image tokens; and their share among the
  // slots with the most attention, as many as the policy keeps.
  double vision_contribution = 0, vision_coverage = 0;
};

struct InspectedImage {
  int32_t begin = 0, end = 0;                   // its tokens
  std::vector<std::optional<PixelRect>> rects;  // [end - begin] what of the picture each shows
};

struct Inspection {
  std::string policy;
  int32_t n_prompt = 0, tau = 0;
  std::vector<std::pair<int32_t, int32_t>> vision_spans;
  std::vector<std::string> rated;  // scorers whose best k slots are compared with those of the first answer token
  std::vector<InspectedLayer> layers;
  std::vector<InspectedImage> images;
  std::string full_answer, answer;  // with everything kept, and with what the policy keeps
};

// `policy` must act behind the prompt by a budget, or choose among image tokens. Throws Error(kInput) for another, and
// what the policy throws.
Inspection inspect(Engine& engine, Prompt prompt, PolicyPtr policy, int32_t max_tokens);

}  // namespace vlcache
