// The slots to choose from, choosing by score, and pooling.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "policy/parts.h"

namespace vlcache {
namespace {

constexpr float kGone = -std::numeric_limits<float>::infinity();

// Slots that can be kept, split into slots that always are and the others, both ascending.
struct Candidates {
  std::vector<int32_t> always, others;
};

Candidates candidates(std::span<const float> scores, const Protected& kept) {
  std::vector<int32_t> slots;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] != kGone) slots.push_back(static_cast<int32_t>(i));
  }
  const auto n = static_cast<int64_t>(slots.size());
  const int64_t first = std::min<int64_t>(kept.n_first, n), last = std::min<int64_t>(kept.n_last, n - first);
  Candidates c;
  c.others.assign(slots.begin() + first, slots.end() - last);
  slots.erase(slots.begin() + first, slots.end() - last);
  c.always = std::move(slots);
  return c;
}

// A total order: the better first, of equals the later.
auto better(std::span<const float> scores) {
  return [scores](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a > b;
  };
}

}  // namespace

std::vector<int32_t> select_slots(std::span<const float> scores, int32_t n_keep, const Protected& kept) {
  Candidates c = candidates(scores, kept);
  const auto n_always = static_cast<int64_t>(c.always.size()), n_others = static_cast<int64_t>(c.others.size());
  const int64_t n_chosen = std::min<int64_t>(n_keep - n_always, n_others);
  if (n_chosen < 0) {
    throw Error(ErrorCode::kInput, "the KV policy always keeps " + std::to_string(n_always) +
                                       " slots of a head; its budget leaves " + std::to_string(n_keep));
  }
  std::nth_element(c.others.begin(), c.others.begin() + n_chosen, c.others.end(), better(scores));
  c.always.insert(c.always.end(), c.others.begin(), c.others.begin() + n_chosen);
  std::ranges::sort(c.always);
  return std::move(c.always);
}

std::vector<int32_t> ranked_slots(std::span<const float> scores, const Protected& kept, int64_t n_ranked) {
  Candidates c = candidates(scores, kept);
  const int64_t n = std::clamp<int64_t>(n_ranked - std::ssize(c.always), 0, std::ssize(c.others));
  std::ranges::partial_sort(c.others, c.others.begin() + n, better(scores));
  c.always.insert(c.always.end(), c.others.begin(), c.others.end());
  return std::move(c.always);
}

int32_t first_in_window(const PolicySlots& slots, int32_t layer, int32_t head) {
  const int32_t window = slots.window(layer);
  if (window == 0) return 0;
  const std::span<const int32_t> places = slots.places(layer, head);
  if (places.empty()) return 0;
  return static_cast<int32_t>(std::ranges::upper_bound(places, places.back() + 1 - window) - places.begin());
}

std::vector<int32_t> lasting_slots(const PolicySlots& slots, int32_t layer, int32_t head) {
  const std::span<const float> bias = slots.bias(layer, head);
  const auto n = static_cast<int32_t>(slots.places(layer, head).size());
  std::vector<int32_t> lasting;
  for (int32_t i = first_in_window(slots, layer, head); i < n; ++i) {
    if (bias.empty() || std::isfinite(bias[static_cast<size_t>(i)])) lasting.push_back(i);
  }
  return lasting;
}

int32_t n_slots_before(std::span<const int32_t> places, int32_t token) {
  return static_cast<int32_t>(std::ranges::lower_bound(places, token) - places.begin());
}

Protected Protected::in_head(const PolicySlots& slots, int32_t layer, int32_t head) const {
  if (n_first == 0) return *this;
  const int32_t n = n_slots_before(slots.places(layer, head), n_first);
  const std::vector<int32_t> lasting = lasting_slots(slots, layer, head);
  return {.n_first = n_slots_before(lasting, n), .n_last = n_last};
}

std::span<float> mean_attention(const StepScores& scores, int64_t first, int64_t n_heads, size_t n_slots) {
  constexpr size_t kRoomToGrow = 256;  // slots: makes allocations while decoding rare
  if (scores.scratch.size() < n_slots) scores.scratch.resize(n_slots + kRoomToGrow);
  const std::span<float> attention = std::span(scores.scratch).first(n_slots);
  std::ranges::fill(attention, 0.0f);
  for (int64_t h = first; h < first + n_heads; ++h) {
    const float* logits = scores.logits.row<float>(h);
    const float lse = scores.lse.as<float>()[h];
    for (size_t j = 0; j < n_slots; ++j) attention[j] += std::exp(logits[j] - lse) / static_cast<float>(n_heads);
  }
  return attention;
}

void hide_until(PolicySlots& slots, int32_t layer, int32_t head, int32_t n_left, int32_t begin, int32_t n_recent) {
  const int32_t n_hide = slots.n_visible(layer, head) - n_left;
  if (n_hide <= 0) return;
  begin = std::max(begin, first_in_window(slots, layer, head));
  const std::span<const float> bias = slots.bias(layer, head), values = slots.plane(layer, head, 0);
  const auto end = static_cast<int32_t>(values.size()) - n_recent;
  const auto hidden = [&](int32_t i) { return !bias.empty() && !std::isfinite(bias[static_cast<size_t>(i)]); };
  const auto before = [&](int32_t a, int32_t b) {
    const float x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return x != y ? x < y : a < b;
  };
  if (n_hide == 1) {  // the common case, every step of an answer: needs no list
    int32_t least = -1;
    for (int32_t i = begin; i < end; ++i) {
      if (!hidden(i) && (least < 0 || before(i, least))) least = i;
    }
    if (least >= 0) slots.hide(layer, head, least);
    return;
  }
  std::vector<int32_t> candidates;
  for (int32_t i = begin; i < end; ++i) {
    if (!hidden(i)) candidates.push_back(i);
  }
  const auto last = candidates.begin() + std::min<int64_t>(n_hide, std::ssize(candidates));
  std::nth_element(candidates.begin(), last, candidates.end(), before);
  for (auto it = candidates.begin(); it < last; ++it) slots.hide(layer, head, *it);
}

void max_pool(std::span<float> scores, int32_t kernel) {
  CHECK(kernel % 2 == 1);
  const std::vector<float> from(scores.begin(), scores.end());
  const auto n = static_cast<int64_t>(from.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = std::max<int64_t>(0, i - kernel / 2), end = std::min(n, i + kernel / 2 + 1);
    scores[static_cast<size_t>(i)] = *std::max_element(from.begin() + begin, from.begin() + end);
  }
}

void mean_pool(std::span<float> scores, int32_t kernel) {
  CHECK(kernel % 2 == 1);
  const std::vector<float> from(scores.begin(), scores.end());
  const auto n = static_cast<int64_t>(from.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = std::max<int64_t>(0, i - kernel / 2), end = std::min(n, i + kernel / 2 + 1);
    const float sum = std::accumulate(from.begin() + begin, from.begin() + end, 0.0f);
    scores[static_cast<size_t>(i)] = sum / static_cast<float>(kernel);
  }
}

}  // namespace vlcache
