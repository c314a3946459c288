// post_vision: attention that the prompt's last tokens pay, the text behind the last image: the question knows what it
// needs. Source: VL-Cache, arXiv:2410.23317, section 4.2.
#include <algorithm>

#include "policy/registry.h"

namespace vlcache {
namespace {

// Without text behind an image, and without an image at all: there is no post-vision window, so SnapKV's takes its
// place (arXiv:2404.14469; max pool of 7).
constexpr int32_t kWindowBehindImage = 16, kWindowOfText = 64, kPoolOfText = 7;

class PostVision final : public TokenScorer {
 public:
  std::string_view name() const override { return "post_vision"; }

  CaptureRequest needs(const PromptShape& prompt) const override {
    int32_t window = prompt.n_after_vision;
    if (prompt.n_vision == 0) window = kWindowOfText;
    if (window == 0) window = kWindowBehindImage;
    return {.window = std::min(window, prompt.n_tokens), .window_sums = true};
  }

  void score(const PlanInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const float* sums = in.capture.layers[static_cast<size_t>(layer)].window_sums.row<float>(head);
    std::copy_n(sums, scores.size(), scores.begin());
    if (in.prompt.n_vision == 0) max_pool(scores, kPoolOfText);
  }
};

}  // namespace

std::unique_ptr<const TokenScorer> make_post_vision(Parameters&) { return std::make_unique<PostVision>(); }

}  // namespace vlcache
