// ada_head: the heads of a layer share its budget by where its best scores lie: count_h of the layer's best slots
// belong to head h, which gets (1 - f) count_h + f times the mean. Source: Ada-KV, arXiv:2407.11550. Presets: `kvpress`
// (AdaKVPress) guarantees each head its best slots, f of the mean, and deals the rest by rank; `kvcache-factory` weighs
// a head's scores by the share that its best hold, counts without the window and adds that on top.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "policy/registry.h"

namespace vlcache {
namespace {

enum class Variant : uint8_t { kOurs, kKvpress, kFactory };

class AdaHead final : public BudgetAllocator {
 public:
  AdaHead(Variant variant, double floor) : variant_(variant), floor_(floor) {}

  SlotCounts allocate(const AllocateInputs& in) const override {
    SlotCounts counts = in.most;
    for (size_t l = 0; l < counts.size(); ++l) {
      if (counts[l].empty()) continue;
      counts[l] = variant_ == Variant::kOurs      ? ours(in, l)
                  : variant_ == Variant::kKvpress ? kvpress(in, l)
                                                  : factory(in, l);
    }
    return counts;
  }

 private:
  // The score of a slot, and its head; protected slots rank first.
  struct Ranked {
    float score;
    size_t head;
  };

  // Returns how many of the `n` best of `slots` each head has.
  static std::vector<double> count_best(std::vector<Ranked>& slots, size_t n_heads, int64_t n) {
    n = std::min<int64_t>(n, static_cast<int64_t>(slots.size()));
    std::nth_element(slots.begin(), slots.begin() + n, slots.end(), [](const Ranked& a, const Ranked& b) {
      return a.score != b.score ? a.score > b.score : a.head < b.head;
    });
    std::vector<double> counts(n_heads);
    for (int64_t i = 0; i < n; ++i) counts[slots[static_cast<size_t>(i)].head] += 1;
    return counts;
  }

  std::vector<int32_t> ours(const AllocateInputs& in, size_t l) const {
    const size_t n_heads = in.most[l].size();
    const auto total = static_cast<int64_t>(n_heads) * in.n_slots;
    std::vector<Ranked> slots;
    for (size_t h = 0; h < n_heads; ++h) {
      for (const float score : in.scores[l][h]) {
        if (score != -std::numeric_limits<float>::infinity()) slots.push_back({score, h});
      }
    }
    std::vector<double> shares = count_best(slots, n_heads, total);
    for (double& share : shares) share = (1 - floor_) * share + floor_ * in.n_slots;
    return deal(shares, std::vector<int32_t>(n_heads, 1), in.most[l], total);
  }

  // A head's best `safe` slots, the window among them, always stay.
  std::vector<int32_t> kvpress(const AllocateInputs& in, size_t l) const {
    const size_t n_heads = in.most[l].size();
    const auto safe = static_cast<size_t>(std::max(1, static_cast<int32_t>(floor_ * in.n_slots)));
    const Protected in_all = in.scorer.protects(in.n_slots, in.share, in.part.prompt);
    std::vector<Ranked> slots;
    for (size_t h = 0; h < n_heads; ++h) {
      const Protected kept = in_all.in_head(in.part.slots, static_cast<int32_t>(l), static_cast<int32_t>(h));
      const std::vector<int32_t> ranked = ranked_slots(in.scores[l][h], kept);
      const size_t n_always = std::max(safe, static_cast<size_t>(kept.n_first + kept.n_last));
      for (size_t i = 0; i < ranked.size(); ++i) {
        const float score = in.scores[l][h][static_cast<size_t>(ranked[i])];
        slots.push_back({i < n_always ? std::numeric_limits<float>::max() : score, h});
      }
    }
    const auto total = static_cast<int64_t>(n_heads) * in.n_slots;
    const std::vector<double> counts = count_best(slots, n_heads, total);
    return {counts.begin(), counts.end()};
  }

  std::vector<int32_t> factory(const AllocateInputs& in, size_t l) const {
    const size_t n_heads = in.most[l].size();
    const int32_t window = in.scorer.protects(in.n_slots, in.share, in.part.prompt).n_last;
    const int32_t base = std::max(0, in.n_slots - window);
    std::vector<Ranked> slots;
    for (size_t h = 0; h < n_heads; ++h) {
      const std::span<const float> all = in.scores[l][h];
      const std::span<const float> scores = all.first(all.size() - std::min(all.size(), static_cast<size_t>(window)));
      std::vector<float> sorted(scores.begin(), scores.end());
      std::ranges::sort(sorted, std::greater());
      const size_t n_best = std::min(sorted.size(), static_cast<size_t>(base));
      const float best = std::accumulate(sorted.begin(), sorted.begin() + static_cast<int64_t>(n_best), 0.0f);
      const float sum = std::accumulate(sorted.begin(), sorted.end(), 0.0f);
      for (const float score : scores) slots.push_back({sum > 0 ? score * best / sum : 0, h});
    }
    const std::vector<double> best = count_best(slots, n_heads, static_cast<int64_t>(n_heads) * base);
    std::vector<int32_t> counts;
    for (size_t h = 0; h < n_heads; ++h) {
      const double k = std::nearbyint(best[h] * (1 - floor_) + static_cast<int32_t>(floor_ * base));
      counts.push_back(std::min(in.most[l][h], static_cast<int32_t>(k) + window));
    }
    return counts;
  }

  Variant variant_;
  double floor_;
};

}  // namespace

std::unique_ptr<const BudgetAllocator> make_ada_head(Parameters& p) {
  const std::string_view preset = p.preset({"kvpress", "kvcache-factory"});
  const Variant variant = preset == "kvpress" ? Variant::kKvpress : preset.empty() ? Variant::kOurs : Variant::kFactory;
  return std::make_unique<AdaHead>(variant, p.number("f", 0.2, 0, 1));
}

}  // namespace vlcache
