#include "engine/reuse/loaded_image_source.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace vlcache {
namespace {

// A step waits this long for a layer, and so do requests that arrive meanwhile: loads at the usual speed of disks and
// networks are hidden by computing; slower ones are waited for outside of steps.
constexpr std::chrono::milliseconds kLongestStall{50};

// Of a token among these, which ascend; -1: it is not among them.
int64_t index_of(std::span<const int32_t> tokens, int32_t token) {
  const auto at = std::ranges::lower_bound(tokens, token);
  return at != tokens.end() && *at == token ? at - tokens.begin() : -1;
}

void copy_row(const Tensor& to, const Tensor& from) {
  CHECK(to.bytes() == from.bytes());
  std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
}

}  // namespace

void LoadedImageSource::Placed::set_depth(int32_t row, int32_t depth) {
  const auto at = static_cast<size_t>(row);
  depths[at] = !always.empty() && always[at] ? image->n_layers() : depth;
}

void LoadedImageSource::recompute(std::vector<bool> tokens) {
  Placed& placed = images_.back();
  CHECK(std::ssize(tokens) == placed.image->n_tokens());
  placed.always = std::move(tokens);
  for (int32_t row = 0; row < placed.image->n_tokens(); ++row)
    placed.set_depth(row, placed.depths[static_cast<size_t>(row)]);
}

void LoadedImageSource::add(const Sequence& sequence, std::span<const ImageSpan> spans,
                            std::shared_ptr<const ImageKv> image, const RecomputePlan& plan,
                            std::shared_ptr<ImageLoad> load) {
  CHECK(image->n_layers() == plan.n_layers());
  std::vector<int32_t> depths = plan.depths(image->n_tokens());
  images_.push_back({std::move(image), std::move(load), std::move(depths), {}});
  for (const ImageSpan& span : spans) {
    const int32_t n = span.end - span.begin, n_rows = images_.back().image->n_tokens();
    CHECK(span.rows.empty() && span.first_row + n <= n_rows);
    CHECK(pieces_.empty() || pieces_.back().end <= span.begin);
    Piece& piece = pieces_.emplace_back(
        Piece{.image = images_.size() - 1, .begin = span.begin, .end = span.end, .first_row = span.first_row});
    std::vector<Position> positions;
    for (int32_t t = span.begin; t < span.end; ++t) {
      positions.push_back(sequence.tokens()[static_cast<size_t>(t)].meta.position);
    }
    for (int32_t rope = 0; rope < ropes_.n(); ++rope) {
      const int64_t half = std::ssize(ropes_.table(rope).frequencies());
      Piece::Rotation& r = piece.rotations.emplace_back();
      r.cos.resize(static_cast<size_t>(n * half));
      r.sin.resize(r.cos.size());
      ropes_.table(rope).fill(positions, Tensor(r.cos.data(), DType::kF32, {n, half}),
                              Tensor(r.sin.data(), DType::kF32, {n, half}));
    }
  }
}

void LoadedImageSource::set_depths(std::span<const int32_t> depths) {
  size_t next = 0;
  for (const Piece& piece : pieces_) {
    for (int32_t i = 0; i < piece.end - piece.begin; ++i) {
      images_[piece.image].set_depth(piece.first_row + i, depths[next++]);
    }
  }
  CHECK(next == depths.size());
  keeps_ = false;
}

void LoadedImageSource::keep_recomputed() {
  keeps_ = true;
  Kept& kept = kept_.emplace_back();
  for (const Piece& piece : pieces_) {
    for (int32_t t = piece.begin; t < piece.end; ++t) {
      if (depth(piece, t) == 0) continue;
      kept.tokens.push_back(t);
      kept.depths.push_back(depth(piece, t));
    }
  }
  kept.layers.resize(static_cast<size_t>(images_[0].image->n_layers()));
}

void LoadedImageSource::keep_rows(int32_t layer, const Observed& observed) {
  Kept& kept = kept_.back();
  Kept::Rows& rows = kept.layers[static_cast<size_t>(layer)];
  const int64_t n = std::ssize(kept.tokens), n_heads = observed.k.dim(1), d = observed.k.dim(2);
  const DType dtype = backend_.compute_dtype();
  for (Buffer* buffer : {&rows.k, &rows.v}) {
    if (buffer->bytes() == 0) *buffer = Buffer(n * n_heads * d * dtype_bytes(dtype));
  }
  const Tensor k(rows.k.data(), dtype, {n, n_heads, d}), v(rows.v.data(), dtype, {n, n_heads, d});
  for (int64_t i = 0; i < std::ssize(observed.tokens); ++i) {
    const int64_t at = index_of(kept.tokens, observed.tokens[static_cast<size_t>(i)]);
    if (at < 0) continue;
    backend_.rope(observed.k.slice_rows(i, i + 1), observed.cos.slice_rows(i, i + 1), observed.sin.slice_rows(i, i + 1),
                  k.slice_rows(at, at + 1));
    copy_row(v.slice_rows(at, at + 1), observed.v.slice_rows(i, i + 1));
  }
}

void LoadedImageSource::read_kept(int32_t layer, std::span<const int32_t> tokens, const Tensor& k,
                                  const Tensor& v) const {
  for (const Kept& kept : kept_) {
    const Kept::Rows& rows = kept.layers[static_cast<size_t>(layer)];
    const int64_t n = std::ssize(kept.tokens);
    for (int64_t i = 0; i < std::ssize(tokens); ++i) {
      const int64_t at = index_of(kept.tokens, tokens[static_cast<size_t>(i)]);
      if (at < 0 || kept.depths[static_cast<size_t>(at)] <= layer) continue;
      const auto kept_rows = [&](const Buffer& buffer) {
        return Tensor(const_cast<std::byte*>(buffer.data()), k.dtype, {n, k.dim(1), k.dim(2)});  // only read
      };
      copy_row(k.slice_rows(i, i + 1), kept_rows(rows.k).slice_rows(at, at + 1));
      copy_row(v.slice_rows(i, i + 1), kept_rows(rows.v).slice_rows(at, at + 1));
    }
  }
}

std::vector<int32_t> LoadedImageSource::tokens() const {
  std::vector<int32_t> tokens;
  for (const Piece& piece : pieces_) {
    for (int32_t t = piece.begin; t < piece.end; ++t) tokens.push_back(t);
  }
  return tokens;
}

std::vector<size_t> LoadedImageSource::images_of_tokens() const {
  std::vector<size_t> images;
  for (const Piece& piece : pieces_)
    images.insert(images.end(), static_cast<size_t>(piece.end - piece.begin), piece.image);
  return images;
}

void LoadedImageSource::supply(Sequence& sequence) {
  std::vector<TokenRun> all, entering;
  for (const Piece& piece : pieces_) {
    all.push_back({piece.begin, piece.end});
    for (int32_t t = piece.begin; t < piece.end; ++t) {
      if (depth(piece, t) == 0) continue;
      if (entering.empty() || entering.back().end != t) entering.push_back({t, t});
      ++entering.back().end;
    }
  }
  sequence.supply(all, *this, entering);
}

int64_t LoadedImageSource::n_recomputed(int32_t layer) const {
  int64_t n = 0;
  for (const Placed& placed : images_) {
    n += std::ranges::count_if(placed.depths, [&](int32_t depth) { return depth > layer; });
  }
  return n;
}

int32_t LoadedImageSource::depth(const Piece& piece, int32_t token) const {
  return images_[piece.image].depths[static_cast<size_t>(piece.first_row + token - piece.begin)];
}

const LoadedImageSource::Piece* LoadedImageSource::find(int32_t token) const {
  const auto after = std::ranges::upper_bound(pieces_, token, {}, &Piece::begin);
  if (after == pieces_.begin() || token >= std::prev(after)->end) return nullptr;
  return &*std::prev(after);
}

const ImageKv& LoadedImageSource::loaded(const Piece& piece, int32_t layer) {
  const Placed& placed = images_[piece.image];
  const auto there = [&] {
    const auto until = Clock::now() + kLongestStall;
    return LoadingImage{placed.image, placed.load}.wait(layer, until) == ImageLoad::State::kReady;
  };
  if (placed.load != nullptr && !there()) {
    missed_ = static_cast<int32_t>(piece.image);
    throw Error(ErrorCode::kIo, "KV of an image: " + describe(placed.load->miss()));
  }
  return *placed.image;
}

void LoadedImageSource::leave_out_missing(int32_t layer, std::vector<int32_t>& tokens) {
  if (std::ranges::all_of(images_, [](const Placed& placed) { return placed.image->keeps_all(); })) return;
  std::erase_if(tokens, [&](int32_t token) {
    const Piece& piece = *find(token);
    return loaded(piece, layer).row_of(layer, piece.first_row + token - piece.begin) < 0;
  });
}

void LoadedImageSource::load(int32_t layer, std::span<const int32_t> tokens, const KvView& view) {
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t n_heads = view.n_kv_heads, d = view.head_dim;
  const DType dtype = backend_.compute_dtype();
  for (Buffer* buffer : {&k_, &v_}) {
    if (buffer->bytes() < n * n_heads * d * dtype_bytes(dtype)) *buffer = Buffer(n * n_heads * d * dtype_bytes(dtype));
  }
  const Tensor k(k_.data(), dtype, {n, n_heads, d}), v(v_.data(), dtype, {n, n_heads, d});
  read(layer, tokens, k, v);
  backend_.kv_write(k, v, view);
}

void LoadedImageSource::read(int32_t layer, std::span<const int32_t> tokens, const Tensor& k, const Tensor& v) {
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t half = k.dim(2) / 2;
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {  // consecutive tokens of one piece
    const int32_t first = tokens[static_cast<size_t>(begin)];
    const Piece* piece = find(first);
    CHECK(piece != nullptr);
    const ImageKv& image = loaded(*piece, layer);
    const int64_t at = first - piece->begin;
    const auto follows = [&](int64_t i) {
      const int32_t token = tokens[static_cast<size_t>(i)];
      return token == first + (i - begin) && token < piece->end;
    };
    for (end = begin + 1; end < n && follows(end);) ++end;
    const int64_t m = end - begin;
    const int32_t row = image.row_of(layer, piece->first_row + static_cast<int32_t>(at));
    CHECK(row >= 0);  // the other rows follow it
    const Tensor k_rows = k.slice_rows(begin, end), v_rows = v.slice_rows(begin, end);
    image.read(backend_, layer, row, k_rows, v_rows);
    const auto table = [&](const std::vector<float>& values) {
      return Tensor(const_cast<float*>(values.data()) + at * half, DType::kF32, {m, half});  // only read
    };
    const Piece::Rotation& rotation = piece->rotations[static_cast<size_t>(ropes_.index(layer))];
    backend_.rope(k_rows, table(rotation.cos), table(rotation.sin), k_rows);
  }
  read_kept(layer, tokens, k, v);
}

bool LoadedImageSource::after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) {
  if (images_.empty()) return false;
  if (keeps_ && holds(layer)) keep_rows(layer, observed);
  if (layer + 1 >= images_[0].image->n_layers()) return false;
  for (size_t i = 0; i < observed.tokens.size(); ++i) {
    const int32_t token = observed.tokens[i];
    const Piece* piece = find(token);
    if (piece == nullptr || depth(*piece, token) > layer + 1) keep.push_back(static_cast<int32_t>(i));
  }
  return keep.size() < observed.tokens.size();
}

}  // namespace vlcache
