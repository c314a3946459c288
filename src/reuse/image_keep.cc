// The policies' scorers, over an image's keys.
#include "reuse/image_keep.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

// An image as scorers see a sequence: every token has a slot in every head.
class ImageSlots final : public PolicySlots {
 public:
  ImageSlots(Backend& backend, const KvShape& shape, const ImageKv& image)
      : backend_(backend), shape_(shape), image_(image), tokens_(static_cast<size_t>(image.n_tokens())) {
    std::iota(tokens_.begin(), tokens_.end(), 0);
  }

  int32_t n_layers() const override { return shape_.n_layers(); }
  int32_t n_kv_heads(int32_t layer) const override { return shape_.n_own_heads(layer); }
  std::span<const int32_t> tokens(int32_t, int32_t) const override { return tokens_; }
  std::span<const int32_t> positions(int32_t, int32_t) const override { return tokens_; }
  std::span<const float> bias(int32_t, int32_t) const override { return {}; }
  int32_t window(int32_t) const override { return 0; }
  int64_t page_bytes(int32_t) const override { return 0; }
  int32_t head_dim(int32_t layer) const override { return shape_.layers[static_cast<size_t>(layer)].head_dim; }
  void read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const override {
    CHECK(v.empty());  // keys alone
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
  int32_t n_behind_prompt(int32_t, int32_t) const override { return 0; }
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

// The n largest of the sums over heads, ascending; of equal ones the later. What is no number goes first.
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
  auto kept = std::make_shared<ImageKv>(shape, form, n_tokens);
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    if (!kept->holds(layer)) continue;
    kept->take_tokens(all, layer, best(scores[static_cast<size_t>(layer)], kept->n_kept()));
  }
  return kept;
}

}  // namespace vlcache
