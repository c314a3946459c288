// pyramid: budgets fall in a line from the first layer to the last; the last keeps 1/beta of the mean. Source:
// PyramidKV, arXiv:2406.02069. Presets, each with its own rounding and its own scorer's window of w slots:
// `kvcache-factory` in integers, the window on top; `kvpress` (PyramidKVPress) in floats, the window inside, and
// uniform where the last layer would keep less than its window.
#include <algorithm>
#include <cmath>

#include "policy/registry.h"

namespace vlcache {
namespace {

enum class PyramidVariant : uint8_t { kOurs, kKvpress, kFactory };

class Pyramid final : public BudgetAllocator {
 public:
  Pyramid(PyramidVariant variant, double beta) : variant_(variant), beta_(beta) {}

  SlotCounts allocate(const AllocateInputs& in) const override {
    std::vector<int32_t> layers;  // that have KV of their own
    for (size_t l = 0; l < in.most.size(); ++l) {
      if (!in.most[l].empty()) layers.push_back(static_cast<int32_t>(l));
    }
    if (variant_ == PyramidVariant::kOurs) {
      std::vector<double> shares(in.most.size());
      const double mean = in.n_slots, least = mean / beta_;
      for (size_t i = 0; i < layers.size(); ++i) {
        shares[static_cast<size_t>(layers[i])] = on_line(i, layers.size(), 2 * mean - least, least);
      }
      return deal_to_layers(in, shares);
    }
    SlotCounts counts = in.most;
    const int32_t n = in.part.prompt.n_tokens, window = in.scorer.protects(in.n_slots, in.share, in.part.prompt).n_last;
    for (size_t i = 0; i < layers.size(); ++i) {
      const int32_t k = variant_ == PyramidVariant::kKvpress ? kvpress(in.share, n, window, i, layers.size())
                                                             : factory(in.n_slots, n, window, i, layers.size());
      for (int32_t& count : counts[static_cast<size_t>(layers[i])]) count = std::min(count, k);
    }
    return counts;
  }

 private:
  static double on_line(size_t i, size_t n, double first, double last) {
    return n < 2 ? (first + last) / 2 : first - static_cast<double>(i) * (first - last) / static_cast<double>(n - 1);
  }

  int32_t kvpress(double share, int32_t n, int32_t window, size_t i, size_t n_layers) const {
    const double mean = n * (1.0 - (1.0 - share));
    double least = mean / beta_, most = 2 * mean - least;
    if (most >= n - window) {
      most = n - window;
      least = 2 * mean - most;
    }
    const bool falls = n >= most && most >= least && least >= window;
    return static_cast<int32_t>(std::nearbyint(falls ? on_line(i, n_layers, most, least) : mean));
  }

  int32_t factory(int32_t capacity, int32_t n, int32_t window, size_t i, size_t n_layers) const {
    if (n < capacity) return n;
    if (n < 2 * (capacity - window)) return capacity;
    int32_t least = static_cast<int32_t>((capacity - window) / beta_), most = 2 * (capacity - window) - least;
    if (most >= n - window) {
      most = n - window;
      least = 2 * (capacity - window) - most;
    }
    const int32_t step = n_layers > 1 ? (most - least) / static_cast<int32_t>(n_layers - 1) : 0;
    return most - static_cast<int32_t>(i) * step + window;
  }

  PyramidVariant variant_;
  double beta_;
};

}  // namespace

std::unique_ptr<const BudgetAllocator> make_pyramid(Parameters& p) {
  const std::string_view preset = p.preset({"kvpress", "kvcache-factory"});
  const PyramidVariant variant = preset == "kvpress" ? PyramidVariant::kKvpress
                                 : preset.empty()    ? PyramidVariant::kOurs
                                                     : PyramidVariant::kFactory;
  return std::make_unique<Pyramid>(variant, p.number("beta", 20, 1, 1e6));
}

}  // namespace vlcache
