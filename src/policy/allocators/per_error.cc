// per_error (ours): the budget is an attention mass that may be lost, not a size. Keeps the fewest slots whose lost
// mass, the mean over layers and kv heads of 1 - mass of the kept slots, is at most that. A head's mass is the
// attention that the post-vision window pays; its slots are taken in the scorer's order.
#include <algorithm>
#include <numeric>

#include "policy/registry.h"

namespace vlcache {
namespace {

constexpr int kPriceHalvings = 60;  // of the price of a slot

// mass[k]: mass of a head's k best slots, 0 .. 1.
using MassCurve = std::vector<double>;

class PerError final : public BudgetAllocator {
 public:
  bool takes_error() const override { return true; }
  CaptureRequest needs(const PromptShape& prompt) const override {
    return {.window = post_vision_window(prompt), .window_sums = true};
  }

  // Every head gets slots as long as the next ones add `price` of mass each. The price falls until the error is met;
  // along the upper hull of the curves, so that a run of weak slots does not hide a strong one after it.
  SlotCounts allocate(const AllocateInputs& in) const override {
    std::vector<MassCurve> curves, hulls;
    for (size_t l = 0; l < in.most.size(); ++l) {
      for (size_t h = 0; h < in.most[l].size(); ++h) curves.push_back(curve(in, l, h));
    }
    for (const MassCurve& c : curves) hulls.push_back(hull(c));
    double low = 0, high = 1;  // of the price; low keeps everything
    for (int i = 0; i < kPriceHalvings; ++i) {
      const double price = (low + high) / 2;
      (lost(curves, hulls, price) <= in.error ? low : high) = price;
    }
    SlotCounts counts = in.most;
    size_t next = 0;
    for (std::vector<int32_t>& layer : counts) {
      for (int32_t& count : layer) {
        const int32_t k = at_price(hulls[next++], low);
        count = std::clamp(k, std::min(count, 1), count);
      }
    }
    return counts;
  }

 private:
  static MassCurve curve(const AllocateInputs& in, size_t l, size_t h) {
    const std::vector<float>& scores = in.scores[l][h];
    const float* sums = in.part.capture[l].window_sums.row<float>(static_cast<int64_t>(h));
    MassCurve mass{0};
    for (const int32_t slot : ranked_slots(scores, {.n_first = 0, .n_last = 1}))
      mass.push_back(mass.back() + sums[slot]);
    const double all = std::max(mass.back(), 1e-30);
    for (double& m : mass) m /= all;
    return mass;
  }

  // The mass gained by slot k along the upper concave hull: gain[k] for slot k + 1, falling.
  static MassCurve hull(const MassCurve& mass) {
    std::vector<size_t> corners;
    for (size_t k = 0; k < mass.size(); ++k) {
      const auto slope = [&](size_t a, size_t b) { return (mass[b] - mass[a]) / static_cast<double>(b - a); };
      while (corners.size() > 1 && slope(corners[corners.size() - 2], corners.back()) <= slope(corners.back(), k)) {
        corners.pop_back();
      }
      corners.push_back(k);
    }
    MassCurve gains;
    for (size_t c = 1; c < corners.size(); ++c) {
      const size_t a = corners[c - 1], b = corners[c];
      gains.insert(gains.end(), b - a, (mass[b] - mass[a]) / static_cast<double>(b - a));
    }
    return gains;
  }

  static int32_t at_price(const MassCurve& gains, double price) {
    return static_cast<int32_t>(std::ranges::partition_point(gains, [&](double g) { return g >= price; }) -
                                gains.begin());
  }

  static double lost(const std::vector<MassCurve>& curves, const std::vector<MassCurve>& hulls, double price) {
    double sum = 0;
    for (size_t i = 0; i < curves.size(); ++i) sum += 1 - curves[i][static_cast<size_t>(at_price(hulls[i], price))];
    return sum / static_cast<double>(std::max<size_t>(curves.size(), 1));
  }
};

}  // namespace

std::unique_ptr<const BudgetAllocator> make_per_error(Parameters&) { return std::make_unique<PerError>(); }

}  // namespace vlcache
