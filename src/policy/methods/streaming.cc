// streaming (StreamingLLM): keeps the first tokens and a window of the last ones, in every head. The attention rotates
// the sinks (AttentionPattern): kept keys keep their phase. Source: arXiv:2309.17453.
#include <cmath>

#include "policy/registry.h"

namespace vlcache {
namespace {

class Streaming final : public Policy {
 public:
  Streaming(int32_t n_sinks, int32_t window) : n_sinks_(n_sinks), window_(window) {}
  std::string name() const override { return "streaming"; }
  AttentionPattern pattern() const override { return {n_sinks_, window_}; }
  bool has_rule() const override { return true; }

  // Hides slots that have left the window; they follow the sinks, slots hidden earlier first.
  void on_step(const StepInfo& step, PolicySlots& slots) const override {
    const int64_t last_outside = int64_t{(step.n_tokens - 1)} - window_;
    for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
      for (int32_t head = 0; head < slots.n_kv_heads(layer); ++head) {
        const std::span<const int32_t> places = slots.places(layer, head);
        const std::span<const float> bias = slots.bias(layer, head);
        for (auto i = static_cast<size_t>(n_sinks_); i < places.size() && places[i] <= last_outside; ++i) {
          if (bias.empty() || std::isfinite(bias[i])) slots.hide(layer, head, static_cast<int32_t>(i));
        }
      }
    }
  }

 private:
  int32_t n_sinks_;
  int32_t window_;
};

}  // namespace

PolicyPtr make_streaming(Parameters& p) {
  const auto n_sinks = static_cast<int32_t>(p.integer("sinks", 4, 0));
  return std::make_shared<Streaming>(n_sinks, static_cast<int32_t>(p.integer("window", 1024, 1)));
}

}  // namespace vlcache
