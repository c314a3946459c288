// The registry of policies, by the text that a user writes:
//   SCORER[@PRESET][:k=v,..][+ALLOCATOR[:k=v,..]][/RULE[:k=v,..]]   "snapkv:w=16+pyramid:beta=10/periodic:every=64"
//   NAME[@PRESET][:k=v,..][/RULE[:k=v,..]]                          "full", "streaming:window=512",
//   "vl-cache@paper/h2o"
// The value of a parameter `heads` is a file name and reaches up to the next ',': '/' and '+' in it belong to the path.
// A new policy is a file in scorers/, allocators/, decode_rules/ or methods/, a declaration here and a line in
// registry.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/contracts/model_files.h"
#include "policy/parameters.h"
#include "policy/parts.h"
#include "policy/policy.h"

namespace vlcache {

// `text` empty: "full", or with a budget "auto". `budget` as KvBudget::parse; empty: 0.1 for a policy that takes one.
// Throws Error(kInput) that names the unknown word, the nearest known one and all of them; also for a budget that the
// policy does not use. `model`: whose files some policies read; null: none.
PolicyPtr parse_policy(std::string_view text, std::string_view budget = "", const ModelFiles* model = nullptr);

// The scorer of that name, with its defaults. Throws Error(kInput) for an unknown name.
std::unique_ptr<const TokenScorer> make_scorer(std::string_view name);

// `text` with present names: "post_vision+vlcache", as earlier releases had it, becomes "post_vision+vl-cache".
// parse_policy and takes_budget read both. Throws Error(kInput) for a part that is missing.
std::string with_present_names(std::string_view text);

// Whether `text` names a file that its policy would read; true also for some texts that are errors.
bool names_file(std::string_view text);

// Whether a policy of that text evicts by a budget. Throws Error(kInput) for an unknown name.
bool takes_budget(std::string_view text);

// Whether `text` and `budget` leave the choice to vlcache; and that choice with its reason, in a line.
bool is_auto(std::string_view text, std::string_view budget);
std::string_view auto_reason();

// An entry of `vlcache policies`.
struct PolicyInfo {
  enum class Kind : uint8_t { kPolicy, kScorer, kAllocator, kRule };
  Kind kind;
  std::string_view name;
  std::string_view parameters;  // "w=32,k=7; presets paper, kvpress"
  std::string_view meaning;     // a line
  std::string_view source;
  std::string_view cost;  // in prefill, beyond what `full` costs
};
std::vector<PolicyInfo> policy_infos();

// One per file of this folder. Parameters that it did not query are then an error (Parameters::reject_unknown).
PolicyPtr make_full(Parameters& p);
PolicyPtr make_hired(Parameters& p, MethodParts parts);
PolicyPtr make_none(Parameters& p);
PolicyPtr make_static(Parameters& p);
PolicyPtr make_streaming(Parameters& p);
PolicyPtr make_window_recompute(Parameters& p, MethodParts parts);
PolicyPtr make_fastgen(Parameters& p);
PolicyPtr make_razor(Parameters& p);
PolicyPtr make_duo(Parameters& p);

PolicyPtr make_fastv(Parameters& p, MethodParts parts);
PolicyPtr make_pyramid_infer(Parameters& p, MethodParts parts);

std::unique_ptr<const TokenScorer> make_attention_matching(Parameters& p);
std::unique_ptr<const TokenScorer> make_dilated(Parameters& p);
std::unique_ptr<const TokenScorer> make_expected_attention(Parameters& p);
std::unique_ptr<const TokenScorer> make_h2o(Parameters& p);
std::unique_ptr<const TokenScorer> make_key_diff(Parameters& p);
std::unique_ptr<const TokenScorer> make_keyformer(Parameters& p);
std::unique_ptr<const TokenScorer> make_knorm(Parameters& p);
std::unique_ptr<const TokenScorer> make_kvzip(Parameters& p);
std::unique_ptr<const TokenScorer> make_pointer(Parameters& p);
std::unique_ptr<const TokenScorer> make_post_vision(Parameters& p);
std::unique_ptr<const TokenScorer> make_scissorhands(Parameters& p);
std::unique_ptr<const TokenScorer> make_sinks(Parameters& p);
std::unique_ptr<const TokenScorer> make_snapkv(Parameters& p);
std::unique_ptr<const TokenScorer> make_tova(Parameters& p);
std::unique_ptr<const TokenScorer> make_window(Parameters& p);
std::unique_ptr<const TokenScorer> make_zipcache_score(Parameters& p);

std::unique_ptr<const BudgetAllocator> make_ada_head(Parameters& p);
std::unique_ptr<const BudgetAllocator> make_global(Parameters& p);
std::unique_ptr<const BudgetAllocator> make_per_error(Parameters& p);
std::unique_ptr<const BudgetAllocator> make_pyramid(Parameters& p);
std::unique_ptr<const BudgetAllocator> make_uniform(Parameters& p);
std::unique_ptr<const BudgetAllocator> make_vl_cache(Parameters& p);
std::unique_ptr<const BudgetAllocator> make_zigzag(Parameters& p);

std::unique_ptr<const DecodeRule> make_h2o_rule(Parameters& p);
std::unique_ptr<const DecodeRule> make_keyformer_rule(Parameters& p);
std::unique_ptr<const DecodeRule> make_periodic_rule(Parameters& p);
std::unique_ptr<const DecodeRule> make_refresh_rule(Parameters& p);
std::unique_ptr<const DecodeRule> make_scissorhands_rule(Parameters& p);
std::unique_ptr<const DecodeRule> make_streaming_rule(Parameters& p);
std::unique_ptr<const DecodeRule> make_tova_rule(Parameters& p);

}  // namespace vlcache
