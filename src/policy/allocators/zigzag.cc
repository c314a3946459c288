// zigzag: layers, and in them heads, whose attention is spread over more slots get more. MBA(h) = fewest slots that
// hold 90 % of the attention that the last tokens pay in head h; a layer gets `min` of the mean, and of the rest a
// share in proportion to the mean of its heads' MBA; its heads share in proportion to their own. Source: ZigZagKV,
// arXiv:2412.09036.
#include <algorithm>
#include <numeric>

#include "policy/registry.h"

namespace vlcache {
namespace {

constexpr double kMass = 0.9;

class ZigZag final : public BudgetAllocator {
 public:
  explicit ZigZag(double least) : least_(least) {}

  CaptureRequest needs(const PromptShape& prompt) const override {
    return {.window = post_vision_window(prompt), .window_sums = true};
  }

  SlotCounts allocate(const AllocateInputs& in) const override {
    const size_t n_layers = in.most.size();
    std::vector<std::vector<double>> of_heads(n_layers);
    std::vector<double> of_layers(n_layers);
    double sum = 0, n_with_kv = 0;
    for (size_t l = 0; l < n_layers; ++l) {
      for (size_t h = 0; h < in.most[l].size(); ++h) {
        of_heads[l].push_back(
            least_slots({in.part.capture[l].window_sums.row<float>(static_cast<int64_t>(h)), in.scores[l][h].size()}));
        of_layers[l] += of_heads[l].back() / static_cast<double>(in.most[l].size());
      }
      sum += of_layers[l];
      n_with_kv += in.most[l].empty() ? 0 : 1;
    }
    for (double& share : of_layers) share = least_ + n_with_kv * (1 - least_) * share / std::max(sum, 1.0);
    SlotCounts counts = deal_to_layers(in, of_layers);
    for (size_t l = 0; l < n_layers; ++l) {
      const auto total = std::accumulate(counts[l].begin(), counts[l].end(), int64_t{0});
      counts[l] = deal(of_heads[l], std::vector<int32_t>(counts[l].size(), 1), in.most[l], total);
    }
    return counts;
  }

 private:
  static double least_slots(std::span<const float> sums) {
    std::vector<float> sorted(sums.begin(), sums.end());
    std::ranges::sort(sorted, std::greater());
    double left = kMass * std::accumulate(sorted.begin(), sorted.end(), 0.0);
    size_t n = 0;
    while (n < sorted.size() && left > 0) left -= sorted[n++];
    return static_cast<double>(n);
  }

  double least_;
};

}  // namespace

std::unique_ptr<const BudgetAllocator> make_zigzag(Parameters& p) {
  return std::make_unique<ZigZag>(p.number("min", 0.2, 0, 1));
}

}  // namespace vlcache
