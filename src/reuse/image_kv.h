// The KV of an image, wherever it may stand: of each of its tokens K before rotation and V, layer by layer (VLCache,
// arXiv:2512.12977).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/layer_hooks.h"
#include "base/tensor.h"
#include "cache/kv_shape.h"

namespace vlcache {

class ImageKv {
 public:
  // Room for n_tokens, in the codec's type. Layers without KV of their own hold nothing.
  ImageKv(const KvShape& shape, int32_t n_tokens);
  static int64_t bytes_of(const KvShape& shape, int32_t n_tokens);

  int32_t n_tokens() const { return n_tokens_; }
  int32_t n_layers() const { return static_cast<int32_t>(layers_.size()); }
  int64_t bytes() const { return memory_.bytes(); }
  // [n_tokens, Hk, d]; of no elements where the layer holds nothing.
  const Tensor& k(int32_t layer) const { return layers_[static_cast<size_t>(layer)].k; }
  const Tensor& v(int32_t layer) const { return layers_[static_cast<size_t>(layer)].v; }
  // Both of a layer: K, then V.
  std::span<std::byte> layer_bytes(int32_t layer);
  std::span<const std::byte> layer_bytes(int32_t layer) const;

 private:
  struct Layer {
    Tensor k, v;
  };
  int32_t n_tokens_;
  Buffer memory_;
  std::vector<Layer> layers_;
};

// Records images while their tokens are computed.
class ImageRecorder final : public LayerHooks {
 public:
  // Returns the image's number here.
  size_t add(std::shared_ptr<ImageKv> image);
  // Rows [first_row, first_row + n) of an image are tokens [begin, begin + n) of the sequence. Rows ascend with tokens,
  // from call to call.
  void place(size_t image, int32_t begin, int32_t first_row, int32_t n);
  size_t size() const { return recordings_.size(); }
  const std::shared_ptr<ImageKv>& image(size_t i) const { return recordings_[i].image; }
  // Whether every layer has seen all rows of the i-th image.
  bool complete(size_t i) const;

  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  struct Recording {
    std::shared_ptr<ImageKv> image;
    std::vector<int32_t> n_seen;  // [n_layers] rows in front of the first that is missing
  };
  struct Piece {
    size_t recording;
    int32_t begin, first_row, n;
  };
  std::vector<Recording> recordings_;
  std::vector<Piece> pieces_;
};

}  // namespace vlcache
