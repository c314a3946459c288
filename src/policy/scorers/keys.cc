// knorm and key_diff: scores by the keys alone, so that a prompt can be compressed before its question is known. knorm:
// -|k|, small keys receive much attention (arXiv:2406.11430). key_diff: -cos of a key and the mean of all unit keys,
// keys unlike the others stay (arXiv:2504.15364). Preset `kvpress` (KnormPress, KeyDiffPress) protects nothing.
#include <cmath>
#include <vector>

#include "base/buffer.h"
#include "base/os/threads.h"
#include "policy/registry.h"
#include "policy/vectors.h"

namespace vlcache {
namespace {

class ByKeys : public TokenScorer {
 public:
  explicit ByKeys(bool kvpress) : kvpress_(kvpress) {}

  void score(const PartInputs& in, SlotScores& scores) const override {
    Buffer storage;
    for (int32_t layer = 0; layer < in.slots.n_layers(); ++layer) {
      std::vector<std::vector<float>>& heads = scores[static_cast<size_t>(layer)];
      int64_t n_keys = 0;
      for (const std::vector<float>& head : heads) n_keys += std::ssize(head);
      const int64_t d = in.slots.head_dim(layer), bytes = n_keys * d * dtype_bytes(DType::kF32);
      if (storage.bytes() < bytes) storage = Buffer(bytes);
      std::vector<Tensor> keys;
      const Tensor all(storage.data(), DType::kF32, {n_keys, d});
      for (int64_t first = 0; const std::vector<float>& head : heads) {
        keys.push_back(all.slice_rows(first, first + std::ssize(head)));
        in.slots.read(layer, static_cast<int32_t>(keys.size()) - 1, keys.back(), {});
        first += std::ssize(head);
      }
      parallel_for(std::ssize(heads), [&](int64_t head, int) {
        // Slots that the window has passed do not count: their pages may be freed.
        const int32_t first = first_in_window(in.slots, layer, static_cast<int32_t>(head));
        const Tensor& all_keys = keys[static_cast<size_t>(head)];
        score_keys(all_keys.slice_rows(first, all_keys.rows()),
                   std::span(heads[static_cast<size_t>(head)]).subspan(static_cast<size_t>(first)));
      });
    }
  }
  Protected protects(int32_t n_keep, double share, const PromptShape& prompt) const override {
    return kvpress_ ? Protected{} : TokenScorer::protects(n_keep, share, prompt);
  }
  Rounding rounding() const override { return kvpress_ ? Rounding::kKvpress : Rounding::kNearest; }

 protected:
  // keys [n, d] f32
  virtual void score_keys(const Tensor& keys, std::span<float> scores) const = 0;
  static float norm(std::span<const float> x) { return std::sqrt(inner_product(x.data(), x.data(), std::ssize(x))); }
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
      add_scaled(factor, key.data(), anchor.data(), std::ssize(key));
    }
    const float anchor_norm = std::max(norm(anchor), kLeastNorm);
    for (size_t i = 0; i < scores.size(); ++i) {
      const std::span<const float> key = row(keys, i);
      scores[i] =
          -inner_product(key.data(), anchor.data(), std::ssize(key)) / (std::max(norm(key), kLeastNorm) * anchor_norm);
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
