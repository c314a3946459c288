#include "cache/slot_table.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cache/strided_rows.h"

namespace vlcache {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

}  // namespace

SlotTable::SlotTable(int32_t n_heads) : n_slots_(at(n_heads), 0), n_hidden_(at(n_heads), 0), noted_(at(n_heads), 0) {}

void SlotTable::set_stride(int32_t stride) {
  if (stride == stride_) return;
  CHECK(stride >= longest());
  const auto resized = [&](const auto& table) {
    if (stride_ > 0) return with_stride(table, stride_, stride);
    return std::remove_cvref_t<decltype(table)>(n_slots_.size() * at(stride));
  };
  // All tables are allocated before any is replaced: running out of memory leaves the old ones consistent.
  auto tokens = resized(tokens_), places = resized(places_);
  auto biases = resized(biases_);
  std::vector<float> planes =
      stride_ > 0 ? with_stride(planes_, stride_, stride) : std::vector<float>(at(n_planes_) * tokens.size());
  tokens_ = std::move(tokens);
  places_ = std::move(places);
  biases_ = std::move(biases);
  planes_ = std::move(planes);
  stride_ = stride;
}

void SlotTable::set_planes(int32_t n) {
  CHECK(n >= 0);
  planes_.resize(at(n) * tokens_.size(), 0.0f);
  if (n == 0) std::vector<float>().swap(planes_);
  n_planes_ = n;
}

int64_t SlotTable::bytes() const {
  const size_t values = tokens_.capacity() + places_.capacity() + biases_.capacity() + planes_.capacity();
  return static_cast<int64_t>(values * sizeof(float));
}

int32_t SlotTable::longest() const { return n_slots_.empty() ? 0 : std::ranges::max(n_slots_); }

std::span<float> SlotTable::plane(int32_t head, int32_t plane) {
  CHECK(0 <= plane && plane < n_planes_);
  return {planes_.data() + at(plane) * tokens_.size() + begin_of(head), at(n_slots(head))};
}

void SlotTable::list_visible(int32_t head, std::vector<int32_t>& visible) const {
  const std::span<const float> bias = biases(head);
  visible.clear();
  for (int32_t i = 0; i < n_slots(head); ++i) {
    if (bias[at(i)] != kHidden) visible.push_back(i);
  }
}

int32_t SlotTable::n_until(int32_t head, int32_t token) const {
  const std::span<const int32_t> slots = tokens(head);
  return static_cast<int32_t>(std::ranges::upper_bound(slots, token, {}, first_token) - slots.begin());
}

void SlotTable::append(int32_t head, std::span<const int32_t> tokens, std::span<const float> biases) {
  int32_t& n = n_slots_[at(head)];
  CHECK(int64_t{n} + static_cast<int64_t>(tokens.size()) <= stride_);
  const size_t row = begin_of(head), first = row + at(n);
  for (size_t i = 0; i < tokens.size(); ++i, ++n) {
    const size_t slot = row + at(n);
    CHECK(tokens[i] >= 0 && (n == 0 || first_token(tokens_[slot - 1]) < tokens[i]));
    tokens_[slot] = tokens[i];
    places_[slot] = tokens[i];
    shifted_ |= tokens[i] != n;
    reordered_ |= tokens[i] != n;
  }
  std::fill_n(biases_.data() + first, tokens.size(), 0.0f);
  std::ranges::copy(biases, biases_.data() + first);
  biased_ |= std::ranges::any_of(biases, [](float bias) { return bias != 0; });
  for (int32_t p = 0; p < n_planes_; ++p) {
    std::fill_n(planes_.data() + at(p) * tokens_.size() + first, tokens.size(), 0.0f);
  }
}

void SlotTable::shorten(int32_t head, int32_t n_slots) {
  int32_t& n = n_slots_[at(head)];
  const float* biases = biases_.data() + begin_of(head);
  for (; n > n_slots; --n) n_hidden_[at(head)] -= biases[n - 1] == kHidden ? 1 : 0;
}

void SlotTable::set_bias(int32_t head, int32_t slot, float bias) {
  CHECK(0 <= slot && slot < n_slots(head));
  float& now = biases_[begin_of(head) + at(slot)];
  n_hidden_[at(head)] += (bias == kHidden ? 1 : 0) - (now == kHidden ? 1 : 0);
  now = bias;
  biased_ |= bias != 0.0f;
}

void SlotTable::hide(int32_t head, int32_t slot) { set_bias(head, slot, kHidden); }

void SlotTable::gather(int32_t head, std::span<const int32_t> from, std::span<const KeepPlan::Merge* const> merges) {
  const size_t row = begin_of(head);
  int32_t* token = tokens_.data() + row;
  int32_t* place = places_.data() + row;
  float* bias = biases_.data() + row;
  int32_t n = 0, n_hidden = 0;
  // In ascending order: slot i is written when no later slot needs it any more, neither as a source of a merge.
  for (int32_t old : from) {
    const KeepPlan::Merge* merge = merges.empty() ? nullptr : merges[at(n)];
    token[n] = merge == nullptr ? token[old] : merged_token(first_token(token[old]));
    place[n] = place[old];
    bias[n] = bias[old];
    for (int32_t p = 0; p < n_planes_; ++p) {
      float* sums = planes_.data() + at(p) * tokens_.size() + row;
      float sum = merge == nullptr ? sums[old] : 0.0f;
      if (merge != nullptr) {
        for (int32_t source : merge->sources) sum += sums[source];
      }
      sums[n] = sum;
    }
    n_hidden += bias[n] == kHidden ? 1 : 0;
    shifted_ |= place[n] != n;
    reordered_ |= token[n] != n;
    ++n;
  }
  n_slots_[at(head)] = n;
  n_hidden_[at(head)] = n_hidden;
}

void SlotTable::refresh() {
  bool shifted = false, reordered = false, biased = false;
  for (int32_t h = 0; h < n_heads(); ++h) {
    const std::span<const int32_t> token = tokens(h), place = places(h);
    const std::span<const float> bias = biases(h);
    for (int32_t i = 0; i < n_slots(h); ++i) {
      shifted |= place[at(i)] != i;
      reordered |= token[at(i)] != i;
      biased |= bias[at(i)] != 0.0f;
    }
  }
  shifted_ = shifted;
  reordered_ = reordered;
  biased_ = biased;
}

void SlotTable::note() {
  std::ranges::copy(n_slots_, noted_.begin());
  noted_shifted_ = shifted_;
  noted_reordered_ = reordered_;
}

void SlotTable::forget() {
  for (int32_t h = 0; h < n_heads(); ++h) shorten(h, noted_[at(h)]);
  shifted_ = noted_shifted_;
  reordered_ = noted_reordered_;
}

}  // namespace vlcache
