// TokenConstraint: which tokens may come next in a generation. A seam: whoever samples knows nothing of grammars.
#pragma once

#include <cstdint>
#include <span>

namespace vlcache {

// Of one generation. Both calls come between two steps, so neither may take long.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets the logits [vocab] of tokens that may not come next to -infinity. `ends` are tokens that end the generation:
  // they may come where the text may end. False: none may come at all.
  virtual bool mask(std::span<float> logits, std::span<const int32_t> ends) = 0;
  // One that mask() has left has been chosen, and is none of `ends`.
  virtual void take(int32_t token) = 0;
  // The text has ended: nothing may follow.
  virtual bool complete() const = 0;
};

}  // namespace vlcache
