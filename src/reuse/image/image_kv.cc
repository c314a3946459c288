// One block of memory; rows are coded as they are written.
#include "reuse/image/image_kv.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/numeric/kv_codec.h"

namespace vlcache {
namespace {

constexpr int64_t kLayerAlignment = 64;  // of the first byte of each layer

int64_t padded(int64_t bytes) { return (bytes + kLayerAlignment - 1) / kLayerAlignment * kLayerAlignment; }

// Bytes of a token's K, or V, in a layer.
int64_t row_bytes(const KvShape& shape, const ImageKvForm& form, int32_t layer) {
  const int64_t n_heads = shape.n_own_heads(layer);
  if (n_heads == 0) return 0;
  return n_heads * coded_bytes(form.kv_codec(shape), shape.layers[static_cast<size_t>(layer)].head_dim);
}

int64_t index_bytes(const ImageKvForm& form, int32_t n_kept) {
  return form.keeps_all() ? 0 : n_kept * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace

ImageKv::ImageKv(const KvShape& shape, const ImageKvForm& form, int32_t n_tokens)
    : codec_(form.kv_codec(shape)),
      n_tokens_(n_tokens),
      n_kept_(form.n_kept(n_tokens)),
      memory_(bytes_of(shape, form, n_tokens)),
      layers_(shape.layers.size()) {
  std::byte* at = memory_.data();
  for (int32_t i = 0; i < shape.n_layers(); ++i) {
    Layer& layer = layers_[static_cast<size_t>(i)];
    layer.n_heads = shape.n_own_heads(i);
    if (layer.n_heads == 0) continue;
    layer.head_dim = shape.layers[static_cast<size_t>(i)].head_dim;
    layer.row_bytes = row_bytes(shape, form, i);
    if (!form.keeps_all()) layer.tokens = {reinterpret_cast<int32_t*>(at), static_cast<size_t>(n_kept_)};
    layer.k = at + index_bytes(form, n_kept_);
    layer.v = layer.k + n_kept_ * layer.row_bytes;
    at += padded(std::ssize(bytes_of_layer(layer)));
  }
}

int64_t ImageKv::bytes_of(const KvShape& shape, const ImageKvForm& form, int32_t n_tokens) {
  const int32_t n = form.n_kept(n_tokens);
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    if (shape.n_own_heads(layer) == 0) continue;
    bytes += padded(index_bytes(form, n) + 2 * n * row_bytes(shape, form, layer));
  }
  return bytes;
}

std::span<std::byte> ImageKv::bytes_of_layer(const Layer& layer) const {
  if (layer.n_heads == 0) return {};
  auto* begin = layer.tokens.empty() ? layer.k : reinterpret_cast<std::byte*>(layer.tokens.data());
  return {begin, layer.v + n_kept_ * layer.row_bytes};
}

std::span<std::byte> ImageKv::layer_bytes(int32_t layer) { return bytes_of_layer(layers_[static_cast<size_t>(layer)]); }

std::span<const std::byte> ImageKv::layer_bytes(int32_t layer) const {
  return bytes_of_layer(layers_[static_cast<size_t>(layer)]);
}

bool ImageKv::valid(int32_t layer) const {
  int32_t last = -1;
  for (const int32_t token : layers_[static_cast<size_t>(layer)].tokens) {
    if (token <= last || token >= n_tokens_) return false;
    last = token;
  }
  return true;
}

int32_t ImageKv::row_of(int32_t layer, int32_t token) const {
  const std::span<const int32_t> tokens = layers_[static_cast<size_t>(layer)].tokens;
  if (tokens.empty()) return token;
  const auto at = std::ranges::lower_bound(tokens, token);
  return at != tokens.end() && *at == token ? static_cast<int32_t>(at - tokens.begin()) : -1;
}

void ImageKv::read(Backend& backend, int32_t layer, int32_t first, const Tensor& k, const Tensor& v) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  const auto read_one = [&](std::byte* from, const Tensor& to) {
    if (to.empty()) return;
    CHECK(0 <= first && first + to.rows() <= n_kept_ && to.dim(1) == l.n_heads && to.dim(2) == l.head_dim);
    from += first * l.row_bytes;
    if (codec_ == KvCodec::kF32 || codec_ == KvCodec::kBF16) {
      const DType dtype = codec_ == KvCodec::kF32 ? DType::kF32 : DType::kBF16;
      backend.convert(Tensor(from, dtype, {to.rows(), l.n_heads, l.head_dim}), to);
    } else {
      decode_rows(codec_, from, to);
    }
  };
  read_one(l.k, k);
  read_one(l.v, v);
}

void ImageKv::write(int32_t layer, int32_t first, const Tensor& k, const Tensor& v) {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  CHECK(l.tokens.empty() && 0 <= first && first + k.rows() <= n_kept_ && k.row_size() == l.n_heads * l.head_dim);
  encode_rows(codec_, k, l.k + first * l.row_bytes);
  encode_rows(codec_, v, l.v + first * l.row_bytes);
}

void ImageKv::take_rows(const ImageKv& from, int32_t layer, int32_t n) {
  const Layer &to_layer = layers_[static_cast<size_t>(layer)], &from_layer = from.layers_[static_cast<size_t>(layer)];
  CHECK(codec_ == from.codec_ && to_layer.tokens.empty() && from_layer.tokens.empty() && n <= n_kept_);
  if (to_layer.n_heads == 0) return;
  const auto bytes = static_cast<size_t>(n * to_layer.row_bytes);
  std::memcpy(to_layer.k, from_layer.k, bytes);
  std::memcpy(to_layer.v, from_layer.v, bytes);
}

void ImageKv::take_tokens(const ImageKv& all, int32_t layer, std::span<const int32_t> tokens) {
  const Layer &to = layers_[static_cast<size_t>(layer)], &from = all.layers_[static_cast<size_t>(layer)];
  CHECK(codec_ == all.codec_ && from.tokens.empty() && tokens.size() == to.tokens.size());
  std::ranges::copy(tokens, to.tokens.begin());
  const auto bytes = static_cast<size_t>(to.row_bytes);
  for (size_t row = 0; row < tokens.size(); ++row) {
    const auto token = static_cast<size_t>(tokens[row]);
    std::memcpy(to.k + row * bytes, from.k + token * bytes, bytes);
    std::memcpy(to.v + row * bytes, from.v + token * bytes, bytes);
  }
}

size_t ImageRecorder::add(std::shared_ptr<ImageKv> image) {
  std::vector<int32_t> none(static_cast<size_t>(image->n_layers()), 0);
  recordings_.push_back({std::move(image), std::move(none)});
  return recordings_.size() - 1;
}

void ImageRecorder::place(size_t image, int32_t begin, int32_t first_row, int32_t n) {
  CHECK(0 <= first_row && first_row + n <= recordings_[image].image->n_tokens());
  pieces_.push_back({image, begin, first_row, n});
}

bool ImageRecorder::complete(size_t i) const {
  const Recording& r = recordings_[i];
  return std::ranges::all_of(r.n_seen, [&](int32_t n) { return n == r.image->n_tokens(); });
}

bool ImageRecorder::after_attention(int layer, const Observed& observed, std::vector<int32_t>&) {
  const std::span<const int32_t> tokens = observed.tokens;
  for (const Piece& piece : pieces_) {
    Recording& r = recordings_[piece.recording];
    auto i = std::ranges::lower_bound(tokens, piece.begin) - tokens.begin();
    while (i < std::ssize(tokens) && tokens[static_cast<size_t>(i)] < piece.begin + piece.n) {
      const auto begin = i;  // start of a run of consecutive rows
      const int32_t first = tokens[static_cast<size_t>(begin)];
      for (++i; i < std::ssize(tokens) && tokens[static_cast<size_t>(i)] == first + (i - begin);) ++i;
      const auto n = std::min(static_cast<int32_t>(i - begin), piece.begin + piece.n - first);
      i = begin + n;
      const int32_t row = piece.first_row + first - piece.begin;
      if (r.image->holds(layer)) {
        r.image->write(layer, row, observed.k.slice_rows(begin, i), observed.v.slice_rows(begin, i));
      }
      int32_t& n_seen = r.n_seen[static_cast<size_t>(layer)];
      // A failed step is repeated: rows already seen stay counted.
      if (row <= n_seen) n_seen = std::max(n_seen, row + n);
    }
  }
  return false;
}

}  // namespace vlcache
