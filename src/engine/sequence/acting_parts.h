// ActingParts: the parts of a prompt after which its policy acts: the whole prompt, the part up to the last image, or
// pieces that grow by Prompt::evict_every tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/prompt/prompt.h"

namespace vlcache {

class ActingParts {
 public:
  // Of a prompt of whose tokens n_done are computed.
  void list(const Prompt& prompt, int32_t n_done);
  // The part after which the policy acts next, or has acted last.
  const PromptShape& next() const { return parts_[next_]; }
  bool several() const { return parts_.size() > 1; }
  // Whether the policy has acted after the last part.
  bool done() const { return done_; }
  // The policy has acted.
  void advance();
  // The policy acts again from the first part on.
  void restart() { next_ = 0, done_ = false; }
  void set_done(bool done) { done_ = done; }

 private:
  std::vector<PromptShape> parts_;  // ascending
  size_t next_ = 0;
  bool done_ = false;
};

}  // namespace vlcache
