// Fuzzes --kv and --kv-budget: a policy whose parts decide without a fault, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "policy/fixed_slots_testing.h"
#include "policy/registry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t space = text.find(' ');  // behind it: the budget
  try {
    const PolicyPtr policy = parse_policy(text.substr(0, space), space == text.npos ? "" : text.substr(space + 1));
    if (policy->name().empty() || policy->pattern().n_sinks < 0 || policy->pattern().window < 0) std::abort();
    FixedSlots slots({{0, 1}, {64, 987}});
    policy->on_step({.n_tokens = 987, .last_position = 986, .in_prompt = false}, slots);
    const PromptShape prompt{.n_tokens = 987, .n_vision = 5, .n_after_vision = 9};
    if (policy->needs(prompt).window > prompt.n_tokens) std::abort();
    std::vector<float> sums(2 * 987);
    Capture capture;
    capture.layers.resize(2);
    for (LayerCapture& layer : capture.layers) layer.window_sums = Tensor(sums.data(), DType::kF32, {2, 987});
    const std::vector<TokenInfo> tokens(987);
    KeepPlan plan;
    policy->plan({.slots = slots, .tokens = tokens, .prompt = prompt, .capture = capture}, plan);
  } catch (const Error&) {
  }
  return 0;
}
