// The tables of policies, scorers and allocators.
#include "policy/registry.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/nearest.h"

namespace vlcache {
namespace {

using Kind = PolicyInfo::Kind;

template <typename Made>
struct Entry {
  PolicyInfo info;
  Made (*make)(Parameters& p);
  bool places_only = false;                // of a scorer: it uses no attention, which allocators would need
  std::string_view allocator = "uniform";  // of a scorer, if none is named
};

constexpr std::string_view kFree = "none", kWindow = "a pass over keys",
                           kAllRows = "a pass of all queries over the keys", kKeys = "reads the keys once",
                           kQueries = "moments of all queries", kReplay = "two to three prefills",
                           kFewerRows = "a pass over keys; later layers compute fewer tokens",
                           kFit = "a pass over keys, two small least squares a head";

constexpr std::array<Entry<PolicyPtr>, 7> kPolicies{{
    {{Kind::kPolicy, "full", "", "keep all KV, page by page (the default)", "", kFree}, make_full},
    {{Kind::kPolicy, "none", "", "keep no KV: every step recomputes the whole sequence", "", kFree}, make_none},
    {{Kind::kPolicy, "static", "capacity=the model's context", "keep all KV, in slots reserved up front", "", kFree},
     make_static},
    {{Kind::kPolicy, "streaming", "sinks=4,window=1024",
      "keep sinks and a sliding window, in prefill and decode; with a budget it is the scorer of this name",
      "arXiv:2309.17453", kFree},
     make_streaming},
    {{Kind::kPolicy, "fastgen", "t=0.95,frequent=0.3,local=0.3",
      "each head keeps slots by the cheapest of five rules that recovers a share t of its attention; accepts no budget",
      "FastGen, arXiv:2310.01801", kAllRows},
     make_fastgen},
    {{Kind::kPolicy, "razor", "heads=heads.json beside the model,echo=0.01,induction=0.14,sinks=4,window=4000,ratio=5",
      "retrieval heads (measured by `tune heads`) keep all KV, the others sinks, a window and one slot for the rest; "
      "accepts no budget",
      "RazorAttention, arXiv:2407.15891", kFree},
     make_razor},
    {{Kind::kPolicy, "duo", "heads=heads.json beside the model,sparsity=0.5,threshold=none,sinks=128,recent=256",
      "retrieval heads (measured by `tune heads`) keep all KV, streaming heads sinks and a sliding window; accepts no "
      "budget",
      "DuoAttention, arXiv:2410.10819", kFree},
     make_duo},
}};

// Methods with a rule of their own that accept a budget.
struct Method {
  PolicyInfo info;
  PolicyPtr (*make)(Parameters& p, MethodParts parts);
  std::string_view instead;   // the parameter that replaces a budget; "": none
  bool whole_tokens = false;  // a token is computed in all layers or in none
};
constexpr std::array<Method, 4> kMethods{{
    {{Kind::kPolicy, "fastv", "k=2,r=0.5 or a budget",
      "after layer k, drop the image tokens that the last token attends to least", "arXiv:2403.06764", kFewerRows},
     make_fastv,
     "r"},
    {{Kind::kPolicy, "pyramid_infer", "w=32,weight=1.2,decay=0.9,least=64 or a budget,sinks=4",
      "each layer keeps fewer tokens than the one before, by attention of the last w; later layers compute these alone",
      "arXiv:2405.12532", kFewerRows},
     make_pyramid_infer,
     "decay"},
    {{Kind::kPolicy, "hired", "alpha=0.5,early=0,late=-1",
      "drop image tokens before the language model, by attention of the encoder's class token (CLIP)",
      "HiRED, arXiv:2408.10945", "two rows of the encoder's attention; prefill is shorter"},
     make_hired,
     "",
     true},
    {{Kind::kPolicy, "window_recompute", "window=the budget", "recompute the last tokens alone for each new token",
      "arXiv:2309.17453", "none; every step is a prompt"},
     make_window_recompute,
     "window",
     true},
}};

constexpr std::array<Entry<std::unique_ptr<const TokenScorer>>, 16> kScorers{{
    {{Kind::kScorer, "pointer", "reach=3,ahead=0,emit=0,own=0,fit=0,question=0.5; presets draft, answer",
      "largest attention of any head; one set of slots for the whole model", "ours", kWindow},
     make_pointer},
    {{Kind::kScorer, "post_vision", "presets paper, effivlm", "attention of the text after the last image",
      "VL-Cache, arXiv:2410.23317", kWindow},
     make_post_vision},
    {{Kind::kScorer, "snapkv", "w=32,ahead=0,k=7,pool=max; presets paper, kvpress, kvcache-factory",
      "attention of the last w tokens, pooled", "arXiv:2404.14469", kWindow},
     make_snapkv},
    {{Kind::kScorer, "h2o", "presets paper, kvpress, kvcache-factory, effivlm", "attention of the whole prompt, summed",
      "arXiv:2306.14048", kAllRows},
     make_h2o},
    {{Kind::kScorer, "zipcache_score", "", "attention of the whole prompt, mean over the queries that see the slot",
      "ZipCache, arXiv:2405.14256", kAllRows},
     make_zipcache_score},
    {{Kind::kScorer, "scissorhands", "history=400; preset paper: r=10", "how rarely the last queries overlook a slot",
      "arXiv:2305.17118", kWindow},
     make_scissorhands},
    {{Kind::kScorer, "keyformer", "seed=1", "attention as in h2o, under Gumbel noise", "arXiv:2403.09054", kAllRows},
     make_keyformer},
    {{Kind::kScorer, "tova", "preset kvpress", "attention of the last token; one set of slots for all heads of a layer",
      "arXiv:2401.06104", kWindow},
     make_tova},
    {{Kind::kScorer, "am", "w=64,on=prompt,ahead=0,score=max,ridge=0.1; preset compaction",
      "largest attention of any query; biases and values are fitted to compensate for evicted slots",
      "arXiv:2602.16284", kFit},
     make_attention_matching},
    {{Kind::kScorer, "key_diff", "preset kvpress", "keys that differ from the others; needs no question",
      "arXiv:2504.15364", kKeys},
     make_key_diff},
    {{Kind::kScorer, "expected_attention", "future=512,sinks=4; preset kvpress",
      "expected attention of future queries; needs no question", "arXiv:2510.00636", kQueries},
     make_expected_attention},
    {{Kind::kScorer, "kvzip", "piece=2048,sinks=4; preset kvpress",
      "attention while the model repeats the prompt; allocator global if none is named; needs no question",
      "arXiv:2505.23416", kReplay},
     make_kvzip,
     false,
     "global"},
    {{Kind::kScorer, "knorm", "preset kvpress", "keys of small norm; needs no question", "arXiv:2406.11430", kKeys},
     make_knorm},
    {{Kind::kScorer, "streaming", "sinks=4; preset kvpress", "sinks and the last slots (with a budget)",
      "arXiv:2309.17453", kFree},
     make_sinks,
     true},
    {{Kind::kScorer, "window", "", "the last slots", "", kFree}, make_window, true},
    {{Kind::kScorer, "dilated", "s=4,r=16", "every s-th slot, the latest first, and the last r",
      "Longformer, arXiv:2004.05150", kFree},
     make_dilated,
     true},
}};

constexpr std::array<Entry<std::unique_ptr<const BudgetAllocator>>, 7> kAllocators{{
    {{Kind::kAllocator, "uniform", "", "the same number of slots in every layer and head (the default)", "", kFree},
     make_uniform},
    {{Kind::kAllocator, "vl-cache", "p=0.01; presets paper, effivlm", "more slots for layers with dense attention",
      "VL-Cache, arXiv:2410.23317", kWindow},
     make_vl_cache},
    {{Kind::kAllocator, "pyramid", "beta=20; presets kvpress, kvcache-factory",
      "fewer slots from the first layer to the last", "PyramidKV, arXiv:2406.02069", kFree},
     make_pyramid},
    {{Kind::kAllocator, "zigzag", "min=0.2", "more slots for layers and heads with spread attention",
      "ZigZagKV, arXiv:2412.09036", kWindow},
     make_zigzag},
    {{Kind::kAllocator, "ada_head", "f=0.2; presets kvpress, kvcache-factory",
      "heads of a layer share its slots by where the best scores are", "Ada-KV, arXiv:2407.11550", kFree},
     make_ada_head},
    {{Kind::kAllocator, "global", "preset kvpress", "one budget for all layers and heads, by rank of score",
      "KVzip, arXiv:2505.23416", kFree},
     make_global},
    {{Kind::kAllocator, "per_error", "", "the fewest slots that lose at most the attention of --kv-budget error=E",
      "ours", kWindow},
     make_per_error},
}};

constexpr std::string_view kScores = "scores of every decoded token", kNoRule = "none";

constexpr std::array<Entry<std::unique_ptr<const DecodeRule>>, 7> kRules{{
    {{Kind::kRule, "h2o", "recent=0.5", "each step evict the slot with the least attention so far", "arXiv:2306.14048",
      kScores},
     make_h2o_rule},
    {{Kind::kRule, "scissorhands", "drop=0.5,r=10",
      "when full, evict a share `drop` at once: the slots overlooked most", "arXiv:2305.17118", kScores},
     make_scissorhands_rule},
    {{Kind::kRule, "keyformer", "steps=256,recent=0.3,seed=1", "as h2o, under Gumbel noise of rising temperature",
      "arXiv:2403.09054", kScores},
     make_keyformer_rule},
    {{Kind::kRule, "tova", "", "each step evict the slot that the last token attends to least", "arXiv:2401.06104",
      kScores},
     make_tova_rule},
    {{Kind::kRule, "streaming", "sinks=4", "each step evict the oldest slot except the sinks", "arXiv:2309.17453",
      kFree},
     make_streaming_rule},
    {{Kind::kRule, "periodic", "every=128,keep=0.1", "periodically evict generated tokens except the most attended",
      "VL-Cache, arXiv:2410.23317 (future work)", kScores},
     make_periodic_rule},
    {{Kind::kRule, "refresh", "every=32,weight=1.2,sinks=4",
      "periodically choose the slots again, as many as after the prompt", "PyramidInfer, arXiv:2405.12532", kScores},
     make_refresh_rule},
}};

// Names that stand for a scorer, some with a preset, and an allocator.
struct Pair {
  std::string_view name, scorer, preset, allocator, meaning, source;

  std::string parts() const {
    return std::string(scorer) + (preset.empty() ? "" : "@") + std::string(preset) + "+" + std::string(allocator);
  }
};
constexpr std::array<Pair, 4> kPairs{{
    {"draft", "pointer", "draft", "global", "slots that a draft of the answer attends to: pointer@draft+global",
     "ours"},
    {"vl-cache", "post_vision", "", "vl-cache", "post_vision+vl-cache", "VL-Cache, arXiv:2410.23317"},
    {"pyramidkv", "snapkv", "", "pyramid", "snapkv+pyramid", "PyramidKV, arXiv:2406.02069"},
    {"adakv", "snapkv", "", "ada_head", "snapkv+ada_head", "Ada-KV, arXiv:2407.11550"},
}};

// In earlier releases the pair and the allocator of VL-Cache had the program's name.
constexpr std::string_view kEarlierName = "vlcache", kPresentName = "vl-cache";

constexpr std::string_view kAuto = "pointer@answer", kAutoAllocator = "+global";
constexpr std::string_view kAutoReason =
    "it acts after the answer's first 64 tokens, which are the full cache's; measure your model and data with vlcache "
    "eval";

const auto* find(const auto& table, std::string_view name) {
  const auto* it = std::ranges::find(table, name, [](const auto& entry) { return entry.info.name; });
  return it == table.end() ? nullptr : it;
}

const Pair* find_pair(std::string_view name) {
  const Pair* it = std::ranges::find(kPairs, name, &Pair::name);
  return it == kPairs.end() ? nullptr : it;
}

void add_names(const auto& table, std::vector<std::string>& names) {
  for (const auto& entry : table) {
    if (std::ranges::find(names, entry.info.name) == names.end()) names.emplace_back(entry.info.name);
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

[[noreturn]] void unknown(const std::string& what, std::string_view name, const std::vector<std::string>& known,
                          const std::string& list) {
  throw Error(ErrorCode::kInput,
              "unknown " + what + " '" + std::string(name) + "'" + did_you_mean(name, known) + "; there are " + list);
}
[[noreturn]] void unknown(const std::string& what, std::string_view name, const std::vector<std::string>& known) {
  unknown(what, name, known, listed(known));
}

[[noreturn]] void unknown_policy(std::string_view name) {
  std::vector<std::string> without, with{"auto"};  // a budget
  add_names(kPolicies, without);
  for (const Pair& pair : kPairs) with.emplace_back(pair.name);
  add_names(kMethods, with);
  add_names(kScorers, with);
  std::vector<std::string> known = with;
  known.insert(known.end(), without.begin(), without.end());
  unknown("KV policy", name, known, listed(with) + " with a budget, and " + listed(without) + " without");
}

const auto& scorer_entry(std::string_view name) {
  if (const auto* entry = find(kScorers, name)) return *entry;
  unknown_policy(name);
}

const auto& allocator_entry(std::string_view name) {
  if (const auto* entry = find(kAllocators, name)) return *entry;
  std::vector<std::string> known;
  add_names(kAllocators, known);
  unknown("allocator", name, known);
}

// Checks that the kind of budget fits the allocator.
void check_budget(const KvBudget& budget, std::string_view allocator, bool takes_error) {
  if ((budget.kind == KvBudget::Kind::kError) == takes_error) return;
  throw Error(ErrorCode::kInput, takes_error
                                     ? "per_error: expected a KV budget of the form error=0.05, found another"
                                     : "a KV budget of the form error=E goes with the allocator per_error, not with " +
                                           std::string(allocator));
}

// Parses the text after '/', and appends its name to `name`. Null: no rule.
std::unique_ptr<const DecodeRule> parse_rule(std::string_view text, std::string& name) {
  if (text.empty() || text == kNoRule) return nullptr;
  Parameters p = Parameters::parse(text);
  const auto* entry = find(kRules, p.name());
  if (entry == nullptr) {
    std::vector<std::string> known{std::string(kNoRule)};
    add_names(kRules, known);
    unknown("decode rule", p.name(), known);
  }
  std::unique_ptr<const DecodeRule> rule = entry->make(p);
  p.reject_unknown();
  name = "/" + p.resolved();
  return rule;
}

// A policy's text, split into its parts.
struct Text {
  std::string_view first, allocator, rule;
};

// The file name in a policy's text, if there is one: '+' and '/' in it do not separate parts.
std::string_view file_in(std::string_view text) {
  for (const std::string_view key : {":heads=", ",heads="}) {
    const size_t at = text.find(key);
    if (at == std::string_view::npos) continue;
    text.remove_prefix(at + key.size());
    return text.substr(0, text.find(','));
  }
  return text.substr(text.size());
}

Text cut(std::string_view text) {
  Text parts;
  const auto take = [&](char mark, std::string_view what) {
    const std::string_view file = file_in(text);
    const auto file_begin = static_cast<size_t>(file.data() - text.data());
    size_t at = text.find(mark);
    if (at != std::string_view::npos && at >= file_begin) at = text.find(mark, file_begin + file.size());
    if (at == std::string_view::npos) return std::string_view();
    const std::string_view after = text.substr(at + 1);
    if (after.empty()) {
      throw Error(ErrorCode::kInput,
                  "'" + std::string(text) + "': expected " + std::string(what) + " after '" + mark + "', found none");
    }
    text = text.substr(0, at);
    return after;
  };
  parts.rule = take('/', "a decode rule");
  parts.allocator = take('+', "an allocator");
  parts.first = text;
  return parts;
}

PolicyPtr parse_evicting(Parameters first, const Text& text, std::string_view budget_text) {
  const std::string_view allocator_text = text.allocator;
  EvictionParts parts;
  if (!budget_text.empty()) parts.budget = KvBudget::parse(budget_text);
  const Pair* pair = find_pair(first.name());
  if (pair != nullptr && !allocator_text.empty()) {
    throw Error(ErrorCode::kInput,
                "'" + first.name() + "' stands for " + pair->parts() + " and takes no other allocator");
  }
  if (pair != nullptr && !pair->preset.empty() && first.has_preset()) {
    throw Error(ErrorCode::kInput,
                "'" + first.name() + "' stands for " + pair->parts() + " and accepts no other preset");
  }
  Parameters for_scorer = pair == nullptr ? first : first.for_part(pair->scorer, pair->preset);
  const auto& scorer = scorer_entry(for_scorer.name());
  parts.scorer = scorer.make(for_scorer);
  parts.name = for_scorer.resolved();

  const bool by_threshold = parts.budget.kind == KvBudget::Kind::kThreshold;
  if (by_threshold && (pair != nullptr || !allocator_text.empty())) {
    throw Error(ErrorCode::kInput,
                "a KV budget of the form threshold=T keeps what reaches it; no allocator goes with it");
  }
  const std::string_view implied = parts.budget.kind == KvBudget::Kind::kError ? "per_error" : scorer.allocator;
  Parameters for_allocator = pair != nullptr ? first.for_part(pair->allocator)
                                             : Parameters::parse(allocator_text.empty() ? implied : allocator_text);
  if (!by_threshold) {
    const auto& allocator = allocator_entry(for_allocator.name());
    if (scorer.places_only && allocator.info.name != "uniform" && allocator.info.name != "pyramid") {
      throw Error(ErrorCode::kInput, "'" + for_scorer.name() + "' looks at places, not at attention, so " +
                                         for_allocator.name() +
                                         " has nothing to go by; it goes with uniform and pyramid");
    }
    for_allocator.inherit_preset(for_scorer);
    parts.allocator = allocator.make(for_allocator);
    check_budget(parts.budget, for_allocator.name(), parts.allocator->takes_error());
    parts.name += "+" + for_allocator.resolved();
  }
  if (pair != nullptr) {
    first.know(for_scorer);
    first.know(for_allocator);
    first.reject_unknown();
  } else {
    for_scorer.reject_unknown();
    for_allocator.reject_unknown();
  }
  std::string rule_name;
  std::unique_ptr<const DecodeRule> rule = parse_rule(text.rule, rule_name);
  parts.name += rule_name;
  return eviction_policy(std::move(parts), std::move(rule));
}

void check_budget(const Method& method, const Parameters& p, const KvBudget& budget) {
  using Kind = KvBudget::Kind;
  const auto fail = [&](const std::string& what) { throw Error(ErrorCode::kInput, p.name() + ": " + what); };
  if (p.has(method.instead)) fail("a KV budget sets " + std::string(method.instead) + "; give one of the two");
  if (budget.kind == Kind::kRatio || budget.kind == Kind::kSlots) return;
  if (method.whole_tokens) fail("expected a share of the prompt or a number of slots as KV budget, found another");
  if (budget.kind != Kind::kBytes) {
    fail("expected a KV budget of slots (a share of the prompt, a number of slots, or bytes), found another");
  }
}

PolicyPtr parse_method(const Method& method, Parameters p, const Text& text, std::string_view budget) {
  const std::string name = "'" + p.name() + "'";
  const bool uniform = method.whole_tokens && text.allocator == "uniform";
  if (!text.allocator.empty() && !uniform) {
    throw Error(ErrorCode::kInput,
                name + (method.whole_tokens ? " computes a token in all layers or in none, so a budget per layer or "
                                              "head means nothing to it; it goes with uniform, not with " +
                                                  std::string(text.allocator)
                                            : " deals out its budget itself and takes no allocator"));
  }
  MethodParts parts;
  if (!budget.empty()) {
    parts.budget = KvBudget::parse(budget);
    check_budget(method, p, *parts.budget);
  }
  parts.says_rule = !text.rule.empty();
  parts.rule = parse_rule(text.rule, parts.rule_name);
  if (parts.rule != nullptr && method.whole_tokens) throw Error(ErrorCode::kInput, name + " takes no decode rule");
  if (parts.rule != nullptr && parts.rule->needs({}).any()) {
    throw Error(ErrorCode::kInput, name + ": the decode rule '" + parts.rule_name.substr(1) +
                                       "' wants the attention of all prompt tokens in every layer, which are not "
                                       "computed there");
  }
  if (text.rule == kNoRule) parts.rule_name = "/" + std::string(kNoRule);
  PolicyPtr policy = method.make(p, std::move(parts));
  p.reject_unknown();
  return policy;
}

// Budgets of an error or a threshold come with an allocation of their own.
std::string auto_policy(std::string_view budget) {
  using Kind = KvBudget::Kind;
  const Kind kind = budget.empty() ? Kind::kRatio : KvBudget::parse(budget).kind;
  const bool deals = kind != Kind::kError && kind != Kind::kThreshold;
  return std::string(kAuto) + (deals ? std::string(kAutoAllocator) : "");
}

}  // namespace

bool is_auto(std::string_view text, std::string_view budget) {
  return text == "auto" || (text.empty() && !budget.empty());
}

std::string_view auto_reason() { return kAutoReason; }

std::string with_present_names(std::string_view text) {
  std::string present(text);
  const Text parts = cut(text);
  for (const std::string_view part : {parts.allocator, parts.first}) {  // the later one first: places stay valid
    const std::string_view name = part.substr(0, part.find_first_of("@:"));
    if (name == kEarlierName)
      present.replace(static_cast<size_t>(name.data() - text.data()), name.size(), kPresentName);
  }
  return present;
}

PolicyPtr parse_policy(std::string_view text, std::string_view budget, const ModelFiles* model) {
  if (is_auto(text, budget)) return parse_policy(auto_policy(budget), budget);
  if (text.empty()) text = "full";
  const std::string present = with_present_names(text);
  const Text parts = cut(present);
  Parameters first = Parameters::parse(parts.first);
  const bool said = !budget.empty() || !parts.allocator.empty() || !parts.rule.empty() || first.has_preset();
  if (const auto* method = find(kMethods, first.name())) {
    return parse_method(*method, std::move(first), parts, budget);
  }
  const auto* whole = find(kPolicies, first.name());
  const bool evicts = find(kScorers, first.name()) != nullptr && said;
  if (whole == nullptr || evicts) return parse_evicting(std::move(first), parts, budget);
  const std::string takes = "'" + first.name() + "' takes no ";
  if (!parts.allocator.empty()) throw Error(ErrorCode::kInput, takes + "allocator");
  if (!parts.rule.empty()) throw Error(ErrorCode::kInput, takes + "decode rule");
  if (!budget.empty()) throw Error(ErrorCode::kInput, takes + "KV budget");
  first.set_model(model);
  PolicyPtr policy = whole->make(first);
  first.reject_unknown();
  return policy;
}

std::unique_ptr<const TokenScorer> make_scorer(std::string_view name) {
  Parameters p = Parameters::parse(name);
  return scorer_entry(p.name()).make(p);
}

bool names_file(std::string_view text) { return text.find("heads=") != std::string_view::npos; }

bool takes_budget(std::string_view text) {
  const std::string present = with_present_names(text);
  const Parameters first = Parameters::parse(cut(present).first);
  const std::string& name = first.name();
  if (const auto* method = find(kMethods, name)) return !first.has(method->instead);
  if (name == "auto" || find_pair(name) != nullptr || find(kScorers, name) != nullptr) return true;
  if (find(kPolicies, name) == nullptr) scorer_entry(name);  // throws, and lists the known names
  return false;
}

std::vector<PolicyInfo> policy_infos() {
  std::vector<PolicyInfo> infos;
  const auto add = [&](const auto& table) {
    for (const auto& entry : table) infos.push_back(entry.info);
  };
  add(kPolicies);
  for (const Pair& pair : kPairs) {
    infos.push_back({Kind::kPolicy, pair.name, "its parts'", pair.meaning, pair.source, kWindow});
  }
  add(kMethods);
  add(kScorers);
  add(kAllocators);
  add(kRules);
  return infos;
}

}  // namespace vlcache
