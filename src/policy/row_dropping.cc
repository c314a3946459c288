#include "policy/row_dropping.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format.h"

namespace vlcache {
namespace {

// Bytes of the pages, if each layer with KV holds `rows` of the new tokens besides its earlier ones.
int64_t bytes_of(const PlanInputs& in, std::span<const int32_t> layers, std::span<const int32_t> rows) {
  int64_t bytes = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (int32_t head = 0; head < in.slots.n_kv_heads(layers[i]); ++head) {
      const auto n_old =
          std::ranges::count_if(in.slots.tokens(layers[i], head), [&](int32_t t) { return t < in.first; });
      bytes += (n_old + rows[i] + kPageSlots - 1) / kPageSlots * in.slots.page_bytes(layers[i]);
    }
  }
  return bytes;
}

}  // namespace

std::vector<int32_t> kv_layers(const PolicySlots& slots) {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < slots.n_layers(); ++layer) {
    if (slots.n_kv_heads(layer) > 0) layers.push_back(layer);
  }
  return layers;
}

std::vector<int32_t> rows_in_budget(const KvBudget& budget, const PlanInputs& in, int32_t least, std::string_view why,
                                    FunctionRef<std::vector<int32_t>(int32_t)> rows_of_mean) {
  const int32_t n = in.prompt.n_tokens - in.first;
  const auto refuse = [&](const std::string& possible) {
    throw Error(ErrorCode::kInput, "KV budget: " + std::string(why) + "; of this prompt's " + std::to_string(n) +
                                       " tokens the least it can keep is " + possible);
  };
  if (budget.kind != KvBudget::Kind::kBytes) {
    const int32_t k = budget.kind == KvBudget::Kind::kRatio ? slots_of(budget.value, n)
                                                            : static_cast<int32_t>(std::min<double>(budget.value, n));
    if (k < least) {
      refuse(std::to_string(least) + " slots per (layer, kv head), a budget of " +
             format("%.3f", std::ceil(1000.0 * least / n) / 1000));
    }
    return rows_of_mean(k);
  }
  const std::vector<int32_t> layers = kv_layers(in.slots);
  const auto bytes = [&](int32_t k) { return bytes_of(in, layers, rows_of_mean(k)); };
  const auto limit = static_cast<int64_t>(budget.value);
  if (bytes(least) > limit) refuse(std::to_string(bytes(least)) + " bytes");
  int32_t low = least, high = n + 1;  // low fits
  while (low + 1 < high) {
    const int32_t middle = low + (high - low) / 2;
    (bytes(middle) <= limit ? low : high) = middle;
  }
  return rows_of_mean(low);
}

std::vector<float> paid_to_tokens(const PlanInputs& in, int32_t layer) {
  std::vector<float> paid(static_cast<size_t>(in.prompt.n_tokens - in.first), 0.0f);
  const Tensor& sums = in.captures[0]->layers[static_cast<size_t>(layer)].window_sums;
  const int32_t n_heads = in.slots.n_kv_heads(layer);
  for (int32_t head = 0; head < n_heads; ++head) {
    const std::span<const int32_t> tokens = in.slots.tokens(layer, head);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < in.first) continue;
      paid[static_cast<size_t>(tokens[i] - in.first)] += sums.row<float>(head)[i] / static_cast<float>(n_heads);
    }
  }
  return paid;
}

void keep_tokens(const PlanInputs& in, std::span<const std::vector<int32_t>> stay, KeepPlan& plan) {
  plan.layers.resize(static_cast<size_t>(in.slots.n_layers()));
  for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
    for (int32_t head = 0; head < in.slots.n_kv_heads(layer); ++head) {
      KeepPlan::Head& kept = plan.layers[static_cast<size_t>(layer)].emplace_back();
      const std::span<const int32_t> tokens = in.slots.tokens(layer, head);
      for (const int32_t slot : lasting_slots(in.slots, layer, head)) {
        const int32_t token = tokens[static_cast<size_t>(slot)];
        const bool stays =
            token < in.first || stay.empty() || std::ranges::binary_search(stay[static_cast<size_t>(layer)], token);
        if (stays) kept.keep.push_back(slot);
      }
    }
  }
}

}  // namespace vlcache
