#include "engine/compute_pace.h"

namespace vlcache {
namespace {

// Weight of earlier values beside a new one: a layer, or a step.
constexpr double kKept = 0.98;

}  // namespace

void ComputePace::took(const ComputeWork& work, double ms) {
  if (work.all() <= 0) return;
  Sums& sums = work.images > 0 ? images_ : prompt_;
  sums.flops = kKept * sums.flops + work.all();
  sums.ms = kKept * sums.ms + ms;
}

std::optional<double> ComputePace::ms(const ComputeWork& work) const {
  const Sums& images = images_.flops > 0 ? images_ : prompt_;
  const Sums& prompt = prompt_.flops > 0 ? prompt_ : images_;
  if (images.flops == 0) return std::nullopt;
  return work.images * images.ms / images.flops + work.prompt * prompt.ms / prompt.flops;
}

}  // namespace vlcache
