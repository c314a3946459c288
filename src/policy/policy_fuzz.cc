// Fuzzes --kv and --kv-budget: a policy whose parts decide without a fault, or an Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "policy/fixed_slots_testing.h"
#include "policy/policy_testing.h"
#include "policy/registry.h"

FUZZ_TARGET(policy) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t space = text.find(' ');  // the budget follows
  try {
    const PolicyPtr policy = parse_policy(text.substr(0, space), space == text.npos ? "" : text.substr(space + 1));
    if (policy->name().empty() || policy->pattern().n_sinks < 0 || policy->pattern().window < 0) std::abort();
    FixedSlots slots({{0, 1}, {64, 987}});
    policy->on_step({.n_tokens = 987, .in_prompt = false}, slots);
    const KeepPlan plan = plan_for(*policy, slots, {.n_tokens = 987, .n_vision = 5, .n_after_vision = 9}, /*seed=*/1);
    if (const RowDropper* dropper = policy->row_dropper()) {
      FixedSlots none({{0, 0}, {0, 0}, {0, 0}});
      std::vector<TokenInfo> tokens(987);
      for (size_t i = 100; i < 900; ++i) tokens[i].meta.modality = Modality::kVision;
      const std::vector<int32_t> rows = dropper->rows_per_layer(
          {.slots = none, .tokens = tokens, .prompt = {.n_tokens = 987, .n_vision = 800, .n_after_vision = 87}});
      if (rows.size() != 3 || rows[0] != 987 || rows[2] < 1 || !std::ranges::is_sorted(rows, std::greater()))
        std::abort();
    }
    for (size_t l = 0; l < plan.layers.size(); ++l) {
      for (size_t h = 0; h < plan.layers[l].size(); ++h) {
        const auto n = slots.tokens(static_cast<int32_t>(l), static_cast<int32_t>(h)).size();
        if (plan.layers[l][h].keep.size() > n) std::abort();
      }
    }
    if (policy->recompute_window({.n_tokens = 987, .n_vision = 5, .n_after_vision = 9}) < 0) std::abort();
    if (policy->vision_layers().empty()) return 0;
    const std::vector<ImageTokens> images{random_image(1, 1), random_image(40, 2)};
    const int32_t n_vision = images[0].n_tokens() + images[1].n_tokens();
    const PromptShape prompt{.n_tokens = n_vision + 100, .n_vision = n_vision, .n_after_vision = 50};
    const int32_t n_seen = policy->n_seen(prompt);
    const auto kept = policy->select(images, prompt, 0);
    const auto n_kept = static_cast<int32_t>(kept.at(0).size() + kept.at(1).size());
    if (n_kept + 100 > n_seen || n_kept + 100 < n_seen - 2) std::abort();  // a patch with its newline may be too much
  } catch (const Error&) {
  }
  return 0;
}
