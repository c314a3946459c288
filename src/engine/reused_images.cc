// Rotation and rows.
#include "engine/reused_images.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace vlcache {

ReusedImages::ReusedImages(Backend& backend, const RopeTable& rope, RecomputePlan plan)
    : backend_(backend), rope_(rope), plan_(std::move(plan)) {}

void ReusedImages::add(const Sequence& sequence, int32_t begin, std::shared_ptr<const ImageKv> image) {
  CHECK(images_.empty() || images_.back().begin + images_.back().n_tokens() <= begin);
  CHECK(image->n_layers() == plan_.n_layers());
  Placed& placed = images_.emplace_back();
  placed.begin = begin;
  placed.image = std::move(image);
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < placed.n_tokens(); ++i) {
    positions.push_back(sequence.tokens()[static_cast<size_t>(begin + i)].meta.t);
  }
  const auto n = static_cast<int64_t>(positions.size()), half = std::ssize(rope_.frequencies());
  placed.cos.resize(static_cast<size_t>(n * half));
  placed.sin.resize(placed.cos.size());
  rope_.fill(positions, Tensor(placed.cos.data(), DType::kF32, {n, half}),
             Tensor(placed.sin.data(), DType::kF32, {n, half}));
}

void ReusedImages::supply(Sequence& sequence) {
  std::vector<TokenRun> all, entering;
  for (const Placed& placed : images_) {
    all.push_back({placed.begin, placed.begin + placed.n_tokens()});
    if (const int32_t n = plan_.n_tokens(0, placed.n_tokens()); n > 0)
      entering.push_back({placed.begin, placed.begin + n});
  }
  sequence.supply(all, *this, entering);
}

int64_t ReusedImages::n_recomputed(int32_t layer) const {
  int64_t n = 0;
  for (const Placed& placed : images_) n += plan_.n_tokens(layer, placed.n_tokens());
  return n;
}

const ReusedImages::Placed& ReusedImages::at(int32_t token) const {
  const auto behind = std::ranges::upper_bound(images_, token, {}, &Placed::begin);
  CHECK(behind != images_.begin());
  return *std::prev(behind);
}

void ReusedImages::load(int32_t layer, const RunTokens& tokens, const KvView& view) {
  const auto n = static_cast<int64_t>(tokens.indices.size());
  const int64_t n_heads = view.n_kv_heads, d = view.head_dim;
  const DType dtype = backend_.compute_dtype();
  for (Buffer* buffer : {&k_, &v_}) {
    if (buffer->bytes() < n * n_heads * d * dtype_bytes(dtype)) *buffer = Buffer(n * n_heads * d * dtype_bytes(dtype));
  }
  const Tensor k(k_.data(), dtype, {n, n_heads, d}), v(v_.data(), dtype, {n, n_heads, d});
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {  // tokens of one image, side by side
    const int32_t first = tokens.indices[static_cast<size_t>(begin)];
    const Placed& placed = at(first);
    const int64_t row = first - placed.begin, half = d / 2;
    const auto follows = [&](int64_t i) {
      const int32_t token = tokens.indices[static_cast<size_t>(i)];
      return token == first + (i - begin) && token < placed.begin + placed.n_tokens();
    };
    for (end = begin + 1; end < n && follows(end);) ++end;
    const int64_t m = end - begin;
    const Tensor k_rows = k.slice_rows(begin, end), v_rows = v.slice_rows(begin, end);
    backend_.convert(placed.image->k(layer).slice_rows(row, row + m), k_rows);
    backend_.convert(placed.image->v(layer).slice_rows(row, row + m), v_rows);
    const auto table = [&](const std::vector<float>& values) {
      return Tensor(const_cast<float*>(values.data()) + row * half, DType::kF32, {m, half});  // only read
    };
    backend_.rope(k_rows, table(placed.cos), table(placed.sin), k_rows);
  }
  backend_.kv_write(k, v, view);
}

bool ReusedImages::after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) {
  if (layer + 1 >= plan_.n_layers()) return false;
  for (size_t i = 0; i < observed.tokens.size(); ++i) {
    const int32_t token = observed.tokens[i];
    bool goes_on = true;
    for (const Placed& placed : images_) {
      const int32_t at = token - placed.begin;
      if (0 <= at && at < placed.n_tokens()) goes_on = at < plan_.n_tokens(layer + 1, placed.n_tokens());
    }
    if (goes_on) keep.push_back(static_cast<int32_t>(i));
  }
  return keep.size() < observed.tokens.size();
}

}  // namespace vlcache
