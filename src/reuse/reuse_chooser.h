// Which tokens of a reused image are computed anew, as a user asks for it: `vlcache`, `static:r=0.1`, `mpic:k=32`. A
// new chooser is a class in reuse_chooser.cc and a line in its table.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "reuse/recompute_plan.h"

namespace vlcache {

class ReuseChooser {
 public:
  virtual ~ReuseChooser() = default;
  // As resolved: "vlcache:r=0.025".
  virtual std::string name() const = 0;
  // For an image of n_tokens in a model of n_layers.
  virtual RecomputePlan plan(int32_t n_layers, int32_t n_tokens) const = 0;
};

using ReuseChooserPtr = std::shared_ptr<const ReuseChooser>;

// Throws Error(kInput), with the nearest name, for what is none.
ReuseChooserPtr parse_reuse_chooser(std::string_view text);

}  // namespace vlcache
