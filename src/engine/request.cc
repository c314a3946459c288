#include "engine/request.h"

#include <algorithm>

#include "engine/engine.h"

namespace vlcache {

int64_t CacheReport::n_encoded() const {
  return std::ranges::count(images, Image::Encoder::kComputed, &Image::encoder);
}

double CacheReport::n_loaded() const {
  double n = n_prefix_tokens;
  for (const Image& image : images) {
    if (image.loaded()) n += image.n_tokens - image.n_recomputed;
  }
  return n;
}

const ReusedBefore* reused_before(const ReuseOptions& options, size_t image) {
  if (!options.resumed) return nullptr;
  const auto at = std::ranges::find(*options.resumed, image, &ReusedBefore::image);
  return at != options.resumed->end() ? &*at : nullptr;
}

void check_prompt_fits(const Engine& engine, const Policy& policy, const PromptExtent& prompt, int32_t max_tokens) {
  const int32_t n_needed = prompt.n_positions + (max_tokens > 0 ? 1 : 0);
  if (policy.pattern().window == 0 && n_needed > engine.max_positions()) {
    const std::string positions =
        prompt.n_positions == prompt.n_tokens ? "" : " at " + std::to_string(prompt.n_positions) + " positions";
    throw PromptTooLong("the prompt has " + std::to_string(prompt.n_tokens) + " tokens" + positions +
                            "; the model's context is " + std::to_string(engine.max_positions()) +
                            (max_tokens > 0 ? " and must hold the answer too" : ""),
                        prompt.n_positions, engine.max_positions() - (max_tokens > 0 ? 1 : 0));
  }
  const int64_t capacity = engine.slot_capacity(policy);
  if (capacity > 0 && prompt.n_tokens > capacity) {
    throw PromptTooLong("the prompt has " + std::to_string(prompt.n_tokens) + " tokens; the " + policy.name() +
                            " KV cache holds " + std::to_string(capacity),
                        prompt.n_tokens, capacity);
  }
}

std::string name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      break;
  }
  return "error";
}

}  // namespace vlcache
