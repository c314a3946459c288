// How a sequence keeps its KV: the baselines of METHODS.md section 1. A mode is a value; its rule is a pure function.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/kv.h"

namespace vlcache {

// What a decode rule sees after a step (a prefill chunk or one token).
struct StepInputs {
  int32_t n_layers = 0;
  int32_t n_kv_heads = 0;
  std::span<const int32_t> n_slots;  // [n_layers, n_kv_heads]
};

// Decides after every step what stays. Stateless; running sums live in the cache.
class DecodeRule {
 public:
  virtual ~DecodeRule() = default;
  // Fills `plan` and returns true when something is to go.
  virtual bool on_step(const StepInputs& in, KeepPlan& plan) const = 0;
};

struct CacheMode {
  std::string name = "full";
  bool recompute = false;  // `none`: nothing is kept between steps
  int64_t capacity = 0;    // `static`: slots reserved per head; -1: as many as the model's context
  int32_t n_sinks = 0;     // `streaming`: attention sees the first n_sinks tokens at capped distance ...
  int32_t window = 0;      // ... and the last `window` tokens
  std::shared_ptr<const DecodeRule> rule;  // shared by the sequences of a mode; null: nothing is ever evicted
};

// "none", "full", "static:capacity=4096", "streaming:sinks=4,window=1024". Throws Error(kInput) that names the unknown
// mode or parameter and lists the known ones.
CacheMode parse_cache_mode(std::string_view text);

// One line per mode: name, parameters with defaults, meaning. For --help.
struct ModeInfo {
  std::string_view name;
  std::string_view usage;
  std::string_view meaning;
};
std::span<const ModeInfo> cache_modes();

}  // namespace vlcache
