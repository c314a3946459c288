// The four baseline modes and their registry.
#include "policy/cache_mode.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "policy/parameters.h"

namespace vlcache {
namespace {

// StreamingLLM: the first n_sinks slots and the last `window`, in every head. arXiv:2309.17453. The rotation of the
// sinks is the attention's business (AttentionPattern): kept keys keep their phase.
class StreamingRule final : public DecodeRule {
 public:
  StreamingRule(int32_t n_sinks, int32_t window) : n_sinks_(n_sinks), window_(window) {}

  bool on_step(const StepInputs& in, KeepPlan& plan) const override {
    if (std::ranges::none_of(in.n_slots, [&](int32_t n) { return n > int64_t{n_sinks_} + window_; })) return false;
    plan.layers.assign(static_cast<size_t>(in.n_layers),
                       std::vector<KeepPlan::Head>(static_cast<size_t>(in.n_kv_heads)));
    const int32_t* n_slots = in.n_slots.data();
    for (auto& heads : plan.layers) {
      for (KeepPlan::Head& head : heads) {
        const int32_t n = *n_slots++;
        const int32_t first_recent = std::max(std::min(n, n_sinks_), n - window_);
        head.keep.resize(static_cast<size_t>(std::min(n, n_sinks_) + n - first_recent));
        const auto recent = head.keep.begin() + std::min(n, n_sinks_);
        std::iota(head.keep.begin(), recent, 0);
        std::iota(recent, head.keep.end(), first_recent);
      }
    }
    return true;
  }

 private:
  int32_t n_sinks_;
  int32_t window_;
};

constexpr std::array<ModeInfo, 4> kModes{{
    {"full", "full", "keep everything, page by page (the default)"},
    {"none", "none", "keep nothing: every step recomputes the whole sequence (shows what a cache saves)"},
    {"static", "static:capacity=N", "keep everything, N slots reserved up front (default: the model's context)"},
    {"streaming", "streaming:sinks=4,window=1024", "StreamingLLM: the first tokens and a window of the last ones"},
}};

}  // namespace

std::span<const ModeInfo> cache_modes() { return kModes; }

CacheMode parse_cache_mode(std::string_view text) {
  Parameters p = Parameters::parse(text);
  CacheMode mode{.name = p.name(), .rule = nullptr};
  if (mode.name == "none") {
    mode.recompute = true;
  } else if (mode.name == "static") {
    mode.capacity = p.integer("capacity", -1, 1);
  } else if (mode.name == "streaming") {
    mode.n_sinks = static_cast<int32_t>(p.integer("sinks", 4, 0));
    mode.window = static_cast<int32_t>(p.integer("window", 1024, 1));
    mode.rule = std::make_shared<StreamingRule>(mode.n_sinks, mode.window);
  } else if (mode.name != "full") {
    std::string known;
    for (const ModeInfo& m : kModes) known += (known.empty() ? "" : ", ") + std::string(m.name);
    throw Error(ErrorCode::kInput, "unknown KV cache mode '" + mode.name + "'; there are " + known);
  }
  p.reject_unknown();
  return mode;
}

}  // namespace vlcache
