// The panel kernel on AMX: tiles of 16 rows x 32 inputs with tiles of 32 inputs x 16 outputs, the layout of packed bf16
// weights.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/amx.h"
#include "ops/cpu/matmul/panel_kernel.h"

namespace vlcache::cpu {
namespace {

constexpr int kDepth = kAmxStep;
constexpr int64_t kPairBytes = 256;  // one pair of inputs of 64 outputs
constexpr int64_t kStepBytes = 16 * kPairBytes;
constexpr int64_t kPanel = 64, kAccBytes = kPanel * 4;  // between rows of acc
constexpr int64_t kLineBytes = 2 * kDepth, kTileBytes = 16 * kLineBytes;

// Few rows read weights from memory, front to back; prefetches as far ahead as panel_kernel_avx512bf16.cc.
constexpr int64_t kAhead = 4096;

// Rows of x, 32 inputs of each at a time; the last ones are read from a zero-padded copy, because the memory after them
// may be NaN.
class Rows {
 public:
  explicit Rows(const PanelArgs& args) : at_(args.x), stride_(args.x_stride * 2), steps_(args.n_in / kDepth) {
    const int64_t left = args.n_in % kDepth;
    if (left == 0) return;
    for (int64_t r = 0; r < args.n_rows; ++r)
      std::memcpy(tail_ + r * kDepth * 2, at_ + r * stride_ + steps_ * kDepth * 2, static_cast<size_t>(left) * 2);
    has_tail_ = true;
    read_by_tiles(tail_);
  }

  // body(rows' first byte, bytes between rows, weights' first byte)
  template <typename Body>
  __attribute__((always_inline)) void for_each(const std::byte* weights, const Body& body) const {
    for (int64_t i = 0; i < steps_; ++i) body(at_ + i * kDepth * 2, stride_, weights + i * kStepBytes);
    if (has_tail_) body(tail_, int64_t{kDepth * 2}, weights + steps_ * kStepBytes);
  }

 private:
  const std::byte* at_;
  int64_t stride_, steps_;
  bool has_tail_ = false;
  alignas(64) std::byte tail_[kAmxRows * kDepth * 2] = {};
};

// Up to 16 rows with 16 kGroups outputs. Tiles: sums 0 to 3, rows 4, weights 5 to 7.
template <int kGroups>
void few_rows(const PanelArgs& args, const Rows& rows) {
  zero_sums();
  rows.for_each(args.panel, [](const std::byte* x, int64_t stride, const std::byte* w) {
    for (int64_t line = 0; line < kStepBytes; line += kPairBytes)
      for (int64_t group = 0; group < kGroups; ++group)
        _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + line + 64 * group), _MM_HINT_T0);
    _tile_loadd(4, x, stride);
    _tile_loadd(5, w, kPairBytes);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kGroups > 1) {
      _tile_loadd(6, w + 64, kPairBytes);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kGroups > 2) {
      _tile_loadd(7, w + 128, kPairBytes);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (kGroups > 3) {
      _tile_loadd(5, w + 192, kPairBytes);
      _tile_dpbf16ps(3, 4, 5);
    }
  });
  store_strip<kGroups>(args.acc, kAccBytes);
}

template <int kRowTiles>
void multiply_group(const std::byte* x, const std::byte* w, int64_t n_steps, bool begin, float* sums) {
  begin ? zero_sums() : load_block<kRowTiles, 2>(sums, kAccBytes);
  for (int64_t i = 0; i < n_steps; ++i, x += 2 * kTileBytes, w += kStepBytes)
    multiply_block<kRowTiles, 2>(x, kTileBytes, kLineBytes, w, kPairBytes);
  store_block<kRowTiles, 2>(sums, kAccBytes);
}

}  // namespace

void panel_amx(const PanelArgs& args) {
  const Rows rows(args);
  AmxShape shape;
  for (int tile = 0; tile < 8; ++tile) shape.set(tile, tile <= 4 ? args.n_rows : 16);
  use_tiles(shape);
  switch (args.columns) {
    case 16:
      return few_rows<1>(args, rows);
    case 32:
      return few_rows<2>(args, rows);
    case 48:
      return few_rows<3>(args, rows);
    default:
      return few_rows<4>(args, rows);
  }
}

void panel_amx_group(const AmxGroupArgs& args) {
  AmxShape shape;
  for (int tile = 0; tile < 8; ++tile) shape.set(tile, 16);
  use_tiles(shape);
  read_by_tiles(args.x);
  const auto multiply = args.n_rows > 16 ? multiply_group<2> : multiply_group<1>;
  for (int64_t column = 0; column < args.columns; column += 32)
    multiply(args.x, args.panel + column * 4, args.n_steps, args.begin, args.sums + column);
  read_by_tiles(args.sums);
}

}  // namespace vlcache::cpu
