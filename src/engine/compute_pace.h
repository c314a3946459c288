// ComputePace predicts the time of images and prompts on this machine from earlier ones.
#pragma once

#include <optional>

namespace vlcache {

// FLOPs of the encoder's layers and of the decoder's.
struct ComputeWork {
  double images = 0, prompt = 0;
  double all() const { return images + prompt; }
  ComputeWork& operator+=(const ComputeWork& more) {
    images += more.images, prompt += more.prompt;
    return *this;
  }
};

// Used by one thread, as the engine's steps are.
class ComputePace {
 public:
  // Records that work of one kind was done in `ms`. Later values count for more: machines become slower and faster.
  void took(const ComputeWork& work, double ms);
  // Time of this work by itself. A kind without measurements counts as fast as the other; none: neither has any.
  std::optional<double> ms(const ComputeWork& work) const;

 private:
  struct Sums {
    double flops = 0, ms = 0;
  };
  Sums images_, prompt_;
};

}  // namespace vlcache
