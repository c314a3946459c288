// Fuzzes --kv and --kv-budget: a policy whose parts decide without a fault, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "policy/fixed_slots_testing.h"
#include "policy/policy_testing.h"
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
    const KeepPlan plan = plan_for(*policy, slots, {.n_tokens = 987, .n_vision = 5, .n_after_vision = 9}, /*seed=*/1);
    for (size_t l = 0; l < plan.layers.size(); ++l) {
      for (size_t h = 0; h < plan.layers[l].size(); ++h) {
        const auto n = slots.tokens(static_cast<int32_t>(l), static_cast<int32_t>(h)).size();
        if (plan.layers[l][h].keep.size() > n) std::abort();
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
