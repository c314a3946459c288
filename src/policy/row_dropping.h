// Row dropping: what policies that drop tokens between the layers share: the rows in a budget, and the attention paid
// to tokens.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "policy/ruled_policy.h"

namespace vlcache {

// Layers that have KV of their own, ascending.
std::vector<int32_t> kv_layers(const PolicySlots& slots);

// Rows in the budget, one number for each of the layers with KV, as rows_of_mean(k) deals them out for a mean of k, for
// the largest k that the budget allows. Counts the tokens from in.first on; `least` is the smallest possible mean of
// them; if the budget is below it, throws Error(kInput) that states so (`why`: "fastv computes ..."). A budget in bytes
// counts all pages of the sequence.
std::vector<int32_t> rows_in_budget(const KvBudget& budget, const PlanInputs& in, int32_t least, std::string_view why,
                                    FunctionRef<std::vector<int32_t>(int32_t)> rows_of_mean);

// [n] The attention that the rows of the first capture's window pay to each of the n tokens from in.first on in
// `layer`, summed over rows, the mean over the heads.
std::vector<float> paid_to_tokens(const PlanInputs& in, int32_t layer);

// Keeps, in every head, the slots that later queries see: all of tokens before in.first, of later tokens those in
// stay[layer], ascending, or all if `stay` is empty.
void keep_tokens(const PlanInputs& in, std::span<const std::vector<int32_t>> stay, KeepPlan& plan);

}  // namespace vlcache
