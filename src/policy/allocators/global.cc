// global: one budget for the whole model. The best slots of all layers and heads stay, so scores must be comparable
// across them; a head keeps at least the slots that would be protected at the mean budget. Source: KVzip,
// arXiv:2505.23416. Preset `kvpress` (KVzipPress) rounds once, over all slots of the model.
#include <algorithm>
#include <limits>

#include "policy/registry.h"

namespace vlcache {
namespace {

class Global final : public BudgetAllocator {
 public:
  explicit Global(bool kvpress) : kvpress_(kvpress) {}

  SlotCounts allocate(const AllocateInputs& in) const override {
    const Protected in_all = in.scorer.protects(in.n_slots, in.share, in.part.prompt);
    SlotCounts counts = in.most;
    std::vector<Ranked> others;
    int64_t left = 0, n_slots = 0;
    for (size_t l = 0; l < counts.size(); ++l) {
      for (size_t h = 0; h < counts[l].size(); ++h) {
        const Protected kept = in_all.in_head(in.part.slots, static_cast<int32_t>(l), static_cast<int32_t>(h));
        const auto least = static_cast<size_t>(std::max(1, kept.n_first + kept.n_last));
        const std::vector<int32_t> ranked = ranked_slots(in.scores[l][h], kept, static_cast<int64_t>(least));
        const size_t n_always = std::min(ranked.size(), least);
        counts[l][h] = static_cast<int32_t>(n_always);
        left += in.n_slots - static_cast<int64_t>(n_always);
        n_slots += std::ssize(in.scores[l][h]);
        for (size_t i = n_always; i < ranked.size(); ++i) {
          others.push_back({in.scores[l][h][static_cast<size_t>(ranked[i])], ranked[i], l, h});
        }
      }
    }
    if (kvpress_) left += total_of_kvpress(n_slots, in.share) - n_heads(counts) * in.n_slots;
    const int64_t n = std::clamp<int64_t>(left, 0, std::ssize(others));
    std::nth_element(others.begin(), others.begin() + n, others.end());
    for (int64_t i = 0; i < n; ++i) {
      const Ranked& slot = others[static_cast<size_t>(i)];
      ++counts[slot.layer][slot.head];
    }
    return counts;
  }

 private:
  struct Ranked {
    float score;
    int32_t slot;
    size_t layer, head;
    // The better score first, of equals the later slot, then the earlier layer and head.
    bool operator<(const Ranked& other) const {
      if (score != other.score) return score > other.score;
      if (slot != other.slot) return slot > other.slot;
      return layer != other.layer ? layer < other.layer : head < other.head;
    }
  };

  static int64_t n_heads(const SlotCounts& counts) {
    int64_t n = 0;
    for (const std::vector<int32_t>& layer : counts) n += std::ssize(layer);
    return n;
  }
  static int64_t total_of_kvpress(int64_t n_slots, double share) {
    return n_slots - static_cast<int64_t>(static_cast<double>(n_slots) * (1 - share));
  }

  bool kvpress_;
};

}  // namespace

std::unique_ptr<const BudgetAllocator> make_global(Parameters& p) {
  return std::make_unique<Global>(p.preset({"kvpress"}) == "kvpress");
}

}  // namespace vlcache
