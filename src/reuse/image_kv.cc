// One block of memory; rows copied as they come by.
#include "reuse/image_kv.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace vlcache {
namespace {

void copy_row(const Tensor& from, int64_t i, const Tensor& to, int64_t j) {
  const int64_t n = from.row_size();
  if (from.dtype == to.dtype) {
    const int64_t bytes = n * dtype_bytes(to.dtype);
    std::memcpy(to.data + j * bytes, from.data + i * from.stride * dtype_bytes(from.dtype), static_cast<size_t>(bytes));
    return;
  }
  CHECK(from.dtype == DType::kF32 && to.dtype == DType::kBF16);
  for (int64_t c = 0; c < n; ++c) to.row<bf16>(j)[c] = to_bf16(from.row<float>(i)[c]);
}

DType row_type(const KvShape& shape) { return shape.codec == KvCodec::kF32 ? DType::kF32 : DType::kBF16; }

// Of a token's K, or V, in a layer.
int64_t row_bytes(const KvShape& shape, int32_t layer) {
  return int64_t{shape.n_own_heads(layer)} * shape.layers[static_cast<size_t>(layer)].head_dim *
         dtype_bytes(row_type(shape));
}

}  // namespace

ImageKv::ImageKv(const KvShape& shape, int32_t n_tokens)
    : n_tokens_(n_tokens), memory_(bytes_of(shape, n_tokens)), layers_(shape.layers.size()) {
  const DType dtype = row_type(shape);
  std::byte* at = memory_.data();
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    const int64_t n_heads = shape.n_own_heads(layer), d = shape.layers[static_cast<size_t>(layer)].head_dim;
    for (Tensor* t : {&layers_[static_cast<size_t>(layer)].k, &layers_[static_cast<size_t>(layer)].v}) {
      if (n_heads > 0) *t = Tensor(at, dtype, {n_tokens, n_heads, d});
      at += n_tokens * row_bytes(shape, layer);
    }
  }
}

int64_t ImageKv::bytes_of(const KvShape& shape, int32_t n_tokens) {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) bytes += 2 * n_tokens * row_bytes(shape, layer);
  return bytes;
}

std::span<std::byte> ImageKv::layer_bytes(int32_t layer) {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  if (l.k.empty()) return {};
  return {l.k.data, static_cast<size_t>(l.k.bytes() + l.v.bytes())};
}

std::span<const std::byte> ImageKv::layer_bytes(int32_t layer) const {
  return const_cast<ImageKv*>(this)->layer_bytes(layer);  // of memory that is ours
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
  for (const Piece& piece : pieces_) {
    Recording& r = recordings_[piece.recording];
    const Tensor &k = r.image->k(layer), &v = r.image->v(layer);
    const auto first = std::ranges::lower_bound(observed.tokens, piece.begin) - observed.tokens.begin();
    for (auto i = first; i < std::ssize(observed.tokens); ++i) {
      const int32_t at = observed.tokens[static_cast<size_t>(i)] - piece.begin, row = piece.first_row + at;
      if (at >= piece.n) break;
      if (!k.empty()) {
        copy_row(observed.k, i, k, row);
        copy_row(observed.v, i, v, row);
      }
      int32_t& n_seen = r.n_seen[static_cast<size_t>(layer)];
      if (row == n_seen) ++n_seen;  // a step that failed comes again: what was seen stays seen
    }
  }
  return false;
}

}  // namespace vlcache
