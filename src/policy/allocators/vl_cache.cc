// vl-cache: layers with dense attention get more. Of the rows of the post-vision window, an entry counts as zero below
// p = 1 % of its row's maximum; a layer's budget is in proportion to its share of other entries, clipped to 1 % .. 100
// % of the prompt. The slots that clipping frees or needs are dealt again, so that the total is the budget's. Source:
// VL-Cache, arXiv:2410.23317, Algorithm 1. Presets: `paper` does not redistribute; `effivlm` mirrors EffiVLM-Bench:
// deals nine tenths of the budget like this, rounded down, and adds a window of a tenth of the mean in every layer.
// nine tenths of the budget so, rounded down, and a window of a tenth of the mean on top in every layer.
#include <algorithm>
#include <cmath>

#include "policy/registry.h"

namespace vlcache {
namespace {

constexpr double kLeastShare = 0.01, kEffivlmShare = 0.9;

enum class VlCacheVariant : uint8_t { kOurs, kPaper, kEffivlm };

class VlCache final : public BudgetAllocator {
 public:
  VlCache(VlCacheVariant variant, float threshold) : variant_(variant), threshold_(threshold) {}

  CaptureRequest needs(const PromptShape& prompt) const override {
    return {.window = post_vision_window(prompt), .window_counts = true, .threshold = threshold_};
  }

  SlotCounts allocate(const AllocateInputs& in) const override {
    std::vector<double> density(in.most.size());  // 1 - sparsity
    double sum = 0;
    int32_t n_layers = 0;
    for (size_t l = 0; l < density.size(); ++l) {
      if (in.most[l].empty()) continue;
      const LayerCapture& layer = in.part.capture[l];
      density[l] = 1.0 - total(layer.below_counts) / std::max(1.0, total(layer.seen_counts));
      sum += density[l];
      ++n_layers;
    }
    const int32_t n = in.part.prompt.n_tokens;
    if (variant_ == VlCacheVariant::kOurs) {
      return deal_to_layers(in, density, slots_of(std::min(kLeastShare, in.share), n));
    }
    const double part = variant_ == VlCacheVariant::kEffivlm ? kEffivlmShare : 1.0;
    SlotCounts counts = in.most;
    for (size_t l = 0; l < counts.size(); ++l) {
      const double share = std::clamp(density[l] / sum * part * in.share * n_layers, kLeastShare * part, 1.0);
      int32_t k = slots_of(share, n, variant_ == VlCacheVariant::kEffivlm ? Rounding::kDown : Rounding::kNearest);
      if (variant_ == VlCacheVariant::kEffivlm) k += in.scorer.protects(k, in.share, in.part.prompt).n_last;
      for (int32_t& count : counts[l]) count = std::min(count, k);
    }
    return counts;
  }

 private:
  static double total(const Tensor& counts) {
    double sum = 0;
    for (int64_t i = 0; i < counts.numel(); ++i) sum += counts.as<float>()[i];
    return sum;
  }

  VlCacheVariant variant_;
  float threshold_;
};

}  // namespace

std::unique_ptr<const BudgetAllocator> make_vl_cache(Parameters& p) {
  const std::string_view preset = p.preset({"paper", "effivlm"});
  const VlCacheVariant variant = preset == "paper" ? VlCacheVariant::kPaper
                                 : preset.empty()  ? VlCacheVariant::kOurs
                                                   : VlCacheVariant::kEffivlm;
  return std::make_unique<VlCache>(variant, static_cast<float>(p.number("p", 0.01, 1e-9, 1)));
}

}  // namespace vlcache
