// What policies that drop tokens between the layers have in common: what a budget means to them, what tokens are paid.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "policy/ruled_policy.h"

namespace vlcache {

// Layers that have KV of their own, ascending.
std::vector<int32_t> kv_layers(const PolicySlots& slots);

// Rows in the budget: a number for each of the layers with KV, as rows_of_mean(k) deals them out when the mean is to be
// k, for the largest k that the budget allows. It counts the tokens from in.first on, of which `least` is the smallest
// mean possible; with fewer, throws Error(kInput) that says so (`why`: "fastv computes ..."). A budget in bytes counts
// all pages of the sequence.
std::vector<int32_t> rows_in_budget(const KvBudget& budget, const PlanInputs& in, int32_t least, std::string_view why,
                                    FunctionRef<std::vector<int32_t>(int32_t)> rows_of_mean);

// [n] What the rows of the first capture's window pay to each of the n tokens from in.first on in `layer`, added up,
// the mean over the heads.
std::vector<float> paid_to_tokens(const PlanInputs& in, int32_t layer);

// Keeps, of every head, the slots that later queries see: all of tokens before in.first, of the others those in
// stay[layer], ascending, or all where `stay` is empty.
void keep_tokens(const PlanInputs& in, std::span<const std::vector<int32_t>> stay, KeepPlan& plan);

}  // namespace vlcache
