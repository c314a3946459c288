// Runs the policies' scorers over an image's keys.
#include "reuse/image/image_keep.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

// An image as a sequence for scorers: every token has a slot in every head.
class ImageSlots final : public PolicySlots {
 public:
  ImageSlots(Backend& backend, const KvShape& shape, const ImageKv& image)
      : backend_(backend), shape_(shape), image_(image), tokens_(static_cast<size_t>(image.n_tokens())) {
    std::iota(tokens_.begin(), tokens_.end(), 0);
  }

  int32_t n_layers() const override { return shape_.n_layers(); }
  int32_t n_kv_heads(int32_t layer) const override { return shape_.n_own_heads(layer); }
  std::span<const int32_t> tokens(int32_t, int32_t) const override { return tokens_; }
  std::span<const int32_t> places(int32_t, int32_t) const override { return tokens_; }
  std::span<const float> bias(int32_t, int32_t) const override { return {}; }
  int32_t window(int32_t) const override { return 0; }
  int64_t page_bytes(int32_t) const override { return 0; }
  int32_t head_dim(int32_t layer) const override { return shape_.layers[static_cast<size_t>(layer)].head_dim; }
  void read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const override {
    CHECK(v.empty());  // keys only
    const int64_t n = image_.n_tokens(), n_heads = n_kv_heads(layer), d = head_dim(layer);
    if (layer != layer_) {
      keys_.resize(static_cast<size_t>(n * n_heads * d));
      image_.read(backend_, layer, 0, Tensor(keys_.data(), DType::kF32, {n, n_heads, d}), {});
      layer_ = layer;
    }
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(k.row<float>(i), keys_.data() + (i * n_heads + head) * d, static_cast<size_t>(d) * sizeof(float));
    }
  }
  int32_t n_visible(int32_t, int32_t) const override { return image_.n_tokens(); }
  int32_t n_visible_at_prompt_end(int32_t, int32_t) const override { return 0; }
  std::span<float> plane(int32_t, int32_t, int32_t) override { return {}; }
  void hide(int32_t, int32_t, int32_t) override { CHECK(false); }

 private:
  Backend& backend_;
  const KvShape& shape_;
  const ImageKv& image_;
  std::vector<int32_t> tokens_;
  mutable std::vector<float> keys_;  // [n, Hk, d] of layer_
  mutable int32_t layer_ = -1;
};

// The n tokens with the largest sums over heads, ascending; of equals the later. NaN ranks last.
std::vector<int32_t> best(const std::vector<std::vector<float>>& heads, int32_t n) {
  std::vector<float> sums(heads[0].size(), 0);
  for (const std::vector<float>& head : heads) {
    for (size_t i = 0; i < head.size(); ++i) sums[i] += head[i];
  }
  for (float& sum : sums) sum = std::isfinite(sum) ? sum : std::numeric_limits<float>::lowest();
  return select_slots(sums, n, {});
}

}  // namespace

std::shared_ptr<const ImageKv> keep_best(Backend& backend, const KvShape& shape, const ImageKvForm& form,
                                         const ImageKv& all) {
  CHECK(!form.keeps_all() && all.keeps_all());
  const int32_t n_tokens = all.n_tokens();
  const ImageSlots slots(backend, shape, all);
  SlotScores scores(shape.layers.size());
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    scores[static_cast<size_t>(layer)].assign(static_cast<size_t>(shape.n_own_heads(layer)),
                                              std::vector<float>(static_cast<size_t>(n_tokens)));
  }
  make_scorer(form.scorer)->score({.slots = slots, .tokens = {}, .prompt = {}, .capture = {}}, scores);
  KeptTokens kept(shape.layers.size());
  for (size_t layer = 0; layer < kept.size(); ++layer) {
    if (!scores[layer].empty()) kept[layer] = best(scores[layer], form.n_kept(n_tokens));
  }
  return keep_these(shape, form, all, kept);
}

std::shared_ptr<const ImageKv> keep_these(const KvShape& shape, const ImageKvForm& form, const ImageKv& all,
                                          const KeptTokens& kept) {
  auto image = std::make_shared<ImageKv>(shape, form, all.n_tokens());
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    if (image->holds(layer)) image->take_tokens(all, layer, kept[static_cast<size_t>(layer)]);
  }
  return image;
}

RepeatedImage::RepeatedImage(const ImageKvForm& form, int32_t first_token, Listener listener)
    : form_(form),
      scorer_(make_scorer(form.scorer + ":sinks=" + std::to_string(first_token))),  // tokens before it are not repeated
      listener_(std::move(listener)) {}

std::string RepeatedImage::name() const { return "image kept by " + form_.scorer; }

bool RepeatedImage::plan(const PlanInputs& in, KeepPlan&) const {
  const Capture& capture = *in.captures[0];
  if (!capture.problem.empty()) throw Error(ErrorCode::kInput, name() + " " + capture.problem);
  const PartInputs part{.slots = in.slots, .tokens = in.tokens, .prompt = in.prompt, .capture = capture.layers};
  std::vector<int32_t> tokens;  // of the image
  for (int32_t t = 0; t < in.prompt.n_tokens; ++t) {
    if (in.tokens[static_cast<size_t>(t)].meta.modality == Modality::kVision) tokens.push_back(t);
  }
  KeptTokens kept(static_cast<size_t>(in.slots.n_layers()));
  for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
    std::vector<std::vector<float>> heads;
    for (int32_t head = 0; head < in.slots.n_kv_heads(layer); ++head) {
      std::vector<float> scores(in.slots.tokens(layer, head).size());
      CHECK(std::ssize(scores) == in.prompt.n_tokens);  // no slot is evicted: slots are tokens
      scorer_->score_head(part, layer, head, scores);
      std::vector<float>& of_image = heads.emplace_back();
      for (const int32_t t : tokens) of_image.push_back(scores[static_cast<size_t>(t)]);
    }
    if (!heads.empty()) {
      kept[static_cast<size_t>(layer)] = best(heads, form_.n_kept(static_cast<int32_t>(tokens.size())));
    }
  }
  listener_(std::move(kept));
  return false;
}

}  // namespace vlcache
