// ImageKv: the KV of an image, independent of its position in a prompt: for each kept token, K before rotation and V,
// layer by layer (VLCache, arXiv:2512.12977), coded in its ImageKvForm.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/contracts/layer_hooks.h"
#include "base/tensor.h"
#include "cache/kv_shape.h"
#include "ops/backend.h"
#include "reuse/image/image_kv_form.h"

namespace vlcache {

class ImageKv {
 public:
  // Room for n_tokens. Layers without KV of their own hold nothing.
  ImageKv(const KvShape& shape, const ImageKvForm& form, int32_t n_tokens);
  static int64_t bytes_of(const KvShape& shape, const ImageKvForm& form, int32_t n_tokens);

  int32_t n_tokens() const { return n_tokens_; }
  int32_t n_layers() const { return static_cast<int32_t>(layers_.size()); }
  int64_t bytes() const { return memory_.bytes(); }
  // Number of tokens kept in every layer.
  int32_t n_kept() const { return n_kept_; }
  bool keeps_all() const { return n_kept_ == n_tokens_; }
  // Whether the layer has K and V of its own.
  bool holds(int32_t layer) const { return layers_[static_cast<size_t>(layer)].n_heads > 0; }
  // Row of the token in a layer; -1: not kept there. Rows are in token order.
  int32_t row_of(int32_t layer, int32_t token) const;
  // Reads rows [first, first + k.rows()) of a layer: k, before rotation, and v [n, Hk, d] f32 or bf16; either may be
  // empty.
  void read(Backend& backend, int32_t layer, int32_t first, const Tensor& k, const Tensor& v) const;
  // Writes these rows; only for images that keep all tokens.
  void write(int32_t layer, int32_t first, const Tensor& k, const Tensor& v);
  // Copies the first n rows of a layer from another image of this form; only for images that keep all tokens.
  void take_rows(const ImageKv& from, int32_t layer, int32_t n);
  // Copies these n_kept() tokens, ascending, of a layer from an image of this codec that keeps all.
  void take_tokens(const ImageKv& all, int32_t layer, std::span<const int32_t> tokens);

  // All bytes of a layer: the kept tokens (int32, unless all are kept), their K, then their V.
  std::span<std::byte> layer_bytes(int32_t layer);
  std::span<const std::byte> layer_bytes(int32_t layer) const;
  // Whether the token list of a layer that was written through layer_bytes() is valid.
  bool valid(int32_t layer) const;

 private:
  struct Layer {
    int32_t n_heads = 0, head_dim = 0;
    int64_t row_bytes = 0;        // of K, or V
    std::span<int32_t> tokens{};  // [n_kept] ascending; empty: all
    std::byte *k = nullptr, *v = nullptr;
  };
  std::span<std::byte> bytes_of_layer(const Layer& layer) const;

  KvCodec codec_;
  int32_t n_tokens_, n_kept_;
  Buffer memory_;
  std::vector<Layer> layers_;
};

// Records images while their tokens are computed.
class ImageRecorder final : public LayerHooks {
 public:
  // Returns the index of the image.
  size_t add(std::shared_ptr<ImageKv> image);
  // Rows [first_row, first_row + n) of an image are tokens [begin, begin + n) of the sequence. Rows ascend with tokens,
  // from call to call.
  void place(size_t image, int32_t begin, int32_t first_row, int32_t n);
  size_t size() const { return recordings_.size(); }
  const std::shared_ptr<ImageKv>& image(size_t i) const { return recordings_[i].image; }
  // Whether every layer has recorded all rows of the i-th image.
  bool complete(size_t i) const;

  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  struct Recording {
    std::shared_ptr<ImageKv> image;
    std::vector<int32_t> n_seen;  // [n_layers] rows before the first missing one
  };
  struct Piece {
    size_t recording;
    int32_t begin, first_row, n;
  };
  std::vector<Recording> recordings_;
  std::vector<Piece> pieces_;
};

}  // namespace vlcache
