#include "engine/sequence/acting_parts.h"

namespace vlcache {

void ActingParts::list(const Prompt& prompt, int32_t n_done) {
  const PromptShape last = prompt.acting_shape();
  parts_.clear();
  next_ = 0;
  if (const int32_t every = prompt.evict_every; every > 0) {
    for (int32_t n = (n_done / every + 1) * every; n < last.n_tokens; n += every) {
      parts_.push_back(prompt.shape_until(n));
    }
  }
  parts_.push_back(last);
}

void ActingParts::advance() {
  if (next_ + 1 < parts_.size()) {
    ++next_;
  } else {
    done_ = true;
  }
}

}  // namespace vlcache
