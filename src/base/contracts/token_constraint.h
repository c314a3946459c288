// TokenConstraint: which tokens may come next in a generation. It keeps the sampler independent of grammars.
#pragma once

#include <cstdint>
#include <span>

namespace vlcache {

// The constraint of one generation. Both calls are made between two steps, so neither may take long.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets the logits [vocab] of tokens that may not come next to -infinity. `ends` are tokens that end the generation:
  // they are allowed where the text may end. Returns false if no token is allowed.
  virtual bool mask(std::span<float> logits, std::span<const int32_t> ends) = 0;
  // Accepts a token that mask() allowed and that is none of `ends`.
  virtual void take(int32_t token) = 0;
  // Whether the text has ended: nothing may follow.
  virtual bool complete() const = 0;
};

}  // namespace vlcache
