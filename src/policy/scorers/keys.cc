// knorm and key_diff: by the keys alone, so that a prompt can be compressed before its question is known. knorm: -|k|,
// small keys receive much attention (arXiv:2406.11430). key_diff: -cos of a key and the mean of all unit keys, keys
// unlike the others stay (arXiv:2504.15364). Preset `kvpress` (KnormPress, KeyDiffPress) protects nothing.
#include <cmath>

#include "base/buffer.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

class ByKeys : public TokenScorer {
 public:
  explicit ByKeys(bool kvpress) : kvpress_(kvpress) {}

  void score_head(const PartInputs& in, int32_t layer, int32_t head, std::span<float> scores) const override {
    const auto n = static_cast<int64_t>(scores.size()), d = static_cast<int64_t>(in.slots.head_dim(layer));
    const Buffer storage(n * d * dtype_bytes(DType::kF32));
    const Tensor keys(storage.data(), DType::kF32, {n, d});
    in.slots.read(layer, head, keys, {});
    score_keys(keys, scores);
  }
  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    return kvpress_ ? Protected{} : TokenScorer::protects(n_keep, share, prompt);
  }
  Rounding rounding() const override { return kvpress_ ? Rounding::kKvpress : Rounding::kNearest; }

 protected:
  // keys [n, d] f32
  virtual void score_keys(const Tensor& keys, std::span<float> scores) const = 0;
  static float norm(std::span<const float> x) {
    float sum = 0;
    for (const float v : x) sum += v * v;
    return std::sqrt(sum);
  }
  static std::span<const float> row(const Tensor& keys, size_t i) {
    return {keys.row<float>(static_cast<int64_t>(i)), static_cast<size_t>(keys.dim(1))};
  }

 private:
  bool kvpress_;
};

class Knorm final : public ByKeys {
 public:
  using ByKeys::ByKeys;

 private:
  void score_keys(const Tensor& keys, std::span<float> scores) const override {
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = -norm(row(keys, i));
  }
};

class KeyDiff final : public ByKeys {
 public:
  using ByKeys::ByKeys;

 private:
  static constexpr float kLeastNorm = 1e-12f;  // as torch.nn.functional.normalize

  void score_keys(const Tensor& keys, std::span<float> scores) const override {
    std::vector<float> anchor(static_cast<size_t>(keys.dim(1)));
    for (size_t i = 0; i < scores.size(); ++i) {
      const std::span<const float> key = row(keys, i);
      const float factor = 1.0f / (std::max(norm(key), kLeastNorm) * static_cast<float>(scores.size()));
      for (size_t c = 0; c < anchor.size(); ++c) anchor[c] += key[c] * factor;
    }
    const float anchor_norm = std::max(norm(anchor), kLeastNorm);
    for (size_t i = 0; i < scores.size(); ++i) {
      const std::span<const float> key = row(keys, i);
      float dot = 0;
      for (size_t c = 0; c < anchor.size(); ++c) dot += key[c] * anchor[c];
      scores[i] = -dot / (std::max(norm(key), kLeastNorm) * anchor_norm);
    }
  }
};

}  // namespace

std::unique_ptr<const TokenScorer> make_knorm(Parameters& p) {
  return std::make_unique<Knorm>(p.preset({"kvpress"}) == "kvpress");
}
std::unique_ptr<const TokenScorer> make_key_diff(Parameters& p) {
  return std::make_unique<KeyDiff>(p.preset({"kvpress"}) == "kvpress");
}

}  // namespace vlcache
