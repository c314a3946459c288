// The tables of policies, scorers and allocators, and the grammar that joins them.
#include "policy/registry.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr double kDefaultRatio = 0.1;

template <typename Made>
struct Entry {
  std::string_view name;
  std::string_view usage;
  std::string_view meaning;
  Made (*make)(Parameters& p);
};

constexpr std::array<Entry<PolicyPtr>, 4> kPolicies{{
    {"full", "full", "keep everything, page by page (the default)", make_full},
    {"none", "none", "keep nothing: every step recomputes the whole sequence (shows what a cache saves)", make_none},
    {"static", "static:capacity=N", "keep everything, N slots reserved up front (default: the model's context)",
     make_static},
    {"streaming", "streaming:sinks=4,window=1024", "StreamingLLM: the first tokens and a window of the last ones",
     make_streaming},
}};

constexpr std::array<Entry<std::unique_ptr<const TokenScorer>>, 1> kScorers{{
    {"post_vision", "post_vision+ALLOCATOR", "VL-Cache's score: what the text behind the last image attends to",
     make_post_vision},
}};

constexpr std::array<Entry<std::unique_ptr<const BudgetAllocator>>, 1> kAllocators{{
    {"uniform", "SCORER+uniform", "as many slots in every layer and head", make_uniform},
}};

std::string names(const auto& table) {
  std::string list;
  for (const auto& entry : table) list += (list.empty() ? "" : ", ") + std::string(entry.name);
  return list;
}

const auto* find(const auto& table, std::string_view name) {
  const auto* it = std::ranges::find(table, name, [](const auto& entry) { return entry.name; });
  return it == table.end() ? nullptr : it;
}

auto make(const auto& entry, Parameters& p) {
  auto made = entry.make(p);
  p.reject_unknown();
  return made;
}

KvBudget parse_budget(std::string_view text) {
  if (text.empty()) return {.ratio = kDefaultRatio};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && value > 0 && value <= 1) return {.ratio = value};
  if (whole && value > 1 && value <= INT32_MAX && value == std::floor(value)) {
    return {.n_slots = static_cast<int64_t>(value)};
  }
  throw Error(ErrorCode::kInput,
              "KV budget: expected a share of the prompt in (0, 1] or a whole number of slots per "
              "layer and head, found '" +
                  std::string(text) + "'");
}

}  // namespace

PolicyPtr parse_policy(std::string_view text, std::string_view budget) {
  const size_t plus = text.find('+');
  Parameters first = Parameters::parse(text.substr(0, plus));
  if (const auto* whole = find(kPolicies, first.name()); whole != nullptr && plus == std::string_view::npos) {
    if (!budget.empty()) {
      throw Error(ErrorCode::kInput,
                  "'" + first.name() + "' takes no KV budget; policies that do are pairs of a scorer (" +
                      names(kScorers) + ") and an allocator (" + names(kAllocators) + "), such as post_vision+uniform");
    }
    return make(*whole, first);
  }
  const auto* scorer = find(kScorers, first.name());
  if (scorer == nullptr) {
    throw Error(ErrorCode::kInput, "unknown KV policy '" + first.name() + "'; there are " + names(kPolicies) +
                                       ", and pairs SCORER+ALLOCATOR of " + names(kScorers) + " with " +
                                       names(kAllocators));
  }
  Parameters second = Parameters::parse(plus == std::string_view::npos ? "uniform" : text.substr(plus + 1));
  const auto* allocator = find(kAllocators, second.name());
  if (allocator == nullptr) {
    throw Error(ErrorCode::kInput, "unknown allocator '" + second.name() + "' behind '" + first.name() +
                                       "+'; there are " + names(kAllocators));
  }
  return eviction_policy(make(*scorer, first), make(*allocator, second), parse_budget(budget));
}

std::vector<PolicyInfo> policy_infos() {
  std::vector<PolicyInfo> infos;
  const auto add = [&](const auto& table) {
    for (const auto& entry : table) infos.push_back({entry.usage, entry.meaning});
  };
  add(kPolicies);
  add(kScorers);
  add(kAllocators);
  return infos;
}

}  // namespace vlcache
