#include "policy/budget.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/format.h"

namespace vlcache {
namespace {

constexpr int kHalvings = 200;     // enough for every distinct exponent and bit of a double
constexpr double kNoShare = 1e-9;  // of the largest: given to a unit without a share when others are full

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

KvBudget KvBudget::parse(std::string_view text) {
  using Kind = KvBudget::Kind;
  const auto after = [&](std::string_view key) {
    return text.starts_with(key) ? number(text.substr(key.size())) : std::nullopt;
  };
  if (const auto x = number(text)) {
    if (*x > 0 && *x <= 1) return {Kind::kRatio, *x};
    if (*x > 1 && *x <= INT32_MAX && *x == std::floor(*x)) return {Kind::kSlots, *x};
  } else if (const auto percent = text.ends_with('%') ? number(text.substr(0, text.size() - 1)) : std::nullopt;
             percent && *percent > 0 && *percent <= 100) {
    return {Kind::kRatio, *percent / 100};
  } else if (const auto error = after("error="); error && *error > 0 && *error < 1) {
    return {Kind::kError, *error};
  } else if (const auto threshold = after("threshold=")) {
    return {Kind::kThreshold, *threshold};
  } else if (const auto bytes = parse_bytes(text); bytes && *bytes > 0) {
    return {Kind::kBytes, static_cast<double>(*bytes)};
  }
  throw Error(ErrorCode::kInput,
              "KV budget: expected a share of the prompt in (0, 1] or in percent (10%), a whole number of slots per "
              "layer and head, bytes (512MiB), error=E with a lost attention mass in (0, 1), or threshold=T, found '" +
                  std::string(text) + "'");
}

std::string small_budget_note(std::string_view text, int32_t n_prompt) {
  constexpr int kFewestSlots = 16;
  constexpr double kLeastShare = 0.01;
  constexpr std::array<std::string_view, kFewestSlots> kWords{
      "",      "one",  "two", "three",  "four",   "five",     "six",      "seven",
      "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"};
  const KvBudget budget = KvBudget::parse(text);
  const bool slots = budget.kind == KvBudget::Kind::kSlots, share = budget.kind == KvBudget::Kind::kRatio;
  const bool small = (slots && budget.value < kFewestSlots) || (share && budget.value < kLeastShare);
  if (!small) return "";
  std::string note(text);
  note += ": ";
  if (share) note += format("%.4g %% of the prompt", 100 * budget.value);
  if (slots || n_prompt > 0) {
    const int32_t n = slots ? static_cast<int32_t>(budget.value) : slots_of(budget.value, n_prompt);
    note += format("%s%d slot%s per layer and kv head", share ? ", " : "", n, n == 1 ? "" : "s");
  }
  if (n_prompt > 0) note += format(" of %d", n_prompt);
  note += share ? format("; expect wrong answers below %g %%", 100 * kLeastShare)
                : format("; expect wrong answers below %d", kFewestSlots);
  if (slots) {
    const auto n = static_cast<size_t>(budget.value);
    note += "; for " + std::string(kWords[n]) + format(" percent write %zu%%", n);
  }
  return note;
}

int32_t slots_of(double share, int32_t n, Rounding rounding) {
  double slots = share * n;
  switch (rounding) {
    case Rounding::kNearest:
      slots = std::floor(slots + 0.5);
      break;
    case Rounding::kDown:
      slots = std::floor(slots);
      break;
    case Rounding::kKvpress:
      slots = std::trunc(n * (1.0 - (1.0 - share)));
      break;
    case Rounding::kHalfEven:
      slots = std::nearbyint(slots);
      break;
  }
  return static_cast<int32_t>(std::clamp(slots, 1.0, static_cast<double>(INT32_MAX)));
}

int32_t tokens_of(const KvBudget& budget, int32_t n) {
  CHECK(budget.kind == KvBudget::Kind::kRatio || budget.kind == KvBudget::Kind::kSlots);
  if (budget.kind == KvBudget::Kind::kRatio) return std::min(n, slots_of(budget.value, n));
  return static_cast<int32_t>(std::min<double>(budget.value, n));
}

std::vector<int32_t> deal(std::span<const double> shares, std::span<const int32_t> least, std::span<const int32_t> most,
                          int64_t total) {
  const size_t n = shares.size();
  const double largest = n == 0 ? 0 : *std::ranges::max_element(shares);
  std::vector<double> share(n), part(n);
  for (size_t i = 0; i < n; ++i) share[i] = largest > 0 ? std::max(shares[i] / largest, kNoShare) : 1.0;
  const auto fill = [&](double level) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
      part[i] =
          std::clamp(level * share[i], static_cast<double>(std::min(least[i], most[i])), static_cast<double>(most[i]));
      sum += part[i];
    }
    return sum;
  };
  const auto wanted = static_cast<double>(total);
  double low = 0, high = INT32_MAX / kNoShare;
  for (int i = 0; i < kHalvings && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    (fill(middle) < wanted ? low : high) = middle;
  }
  fill(high);
  std::vector<int32_t> result(n);
  for (size_t i = 0; i < n; ++i) result[i] = static_cast<int32_t>(std::floor(part[i]));
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return part[i] - std::floor(part[i]); });
  int64_t left = total - std::accumulate(result.begin(), result.end(), int64_t{0});
  for (bool moved = true; left != 0 && moved;) {
    moved = false;
    for (size_t step = 0; step < n && left != 0; ++step) {
      const size_t i = left > 0 ? order[step] : order[n - 1 - step];
      const bool room = left > 0 ? result[i] < most[i] : result[i] > std::min(least[i], most[i]);
      if (!room) continue;
      result[i] += left > 0 ? 1 : -1;
      left += left > 0 ? -1 : 1;
      moved = true;
    }
  }
  return result;
}

}  // namespace vlcache
