// The policies there are, by the words a user writes: whole ones ("streaming:window=512"), and pairs of a scorer and an
// allocator ("post_vision+uniform"). Adding one is a file in scorers/, allocators/ or decode_rules/ and a line in
// registry.cc.
#pragma once

#include <span>
#include <string_view>

#include "policy/parameters.h"
#include "policy/parts.h"
#include "policy/policy.h"

namespace vlcache {

// "full", "none", "static:capacity=4096", "streaming:sinks=4,window=1024", "post_vision+uniform". `budget` is how much
// a policy that evicts may keep: a share of the prompt (0.1), or mean slots per (layer, kv head) (200); empty: 0.1.
// Throws Error(kInput) that names what it does not know and lists what there is, also for a budget that the policy has
// no use for.
PolicyPtr parse_policy(std::string_view text, std::string_view budget = "");

// A line for --help: name, parameters with their defaults, meaning.
struct PolicyInfo {
  std::string_view usage;
  std::string_view meaning;
};
std::vector<PolicyInfo> policy_infos();

// One per file of this folder. Parameters that nobody read are an error afterwards.
PolicyPtr make_full(Parameters& p);
PolicyPtr make_none(Parameters& p);
PolicyPtr make_static(Parameters& p);
PolicyPtr make_streaming(Parameters& p);
std::unique_ptr<const TokenScorer> make_post_vision(Parameters& p);
std::unique_ptr<const BudgetAllocator> make_uniform(Parameters& p);

}  // namespace vlcache
