// Cuts tiles into items of similar cost, runs these on all threads, merges and writes.
#include "ops/cpu/attention/tile_runner.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/os/threads.h"
#include "ops/cpu/attention/kv_pages.h"
#include "ops/cpu/attention/merge.h"

namespace vlcache::cpu {
namespace {

// Rows of a tile: enough for the arithmetic on a page (128 cycles a row) to hide its transfer (about 2500), few enough
// for queries and sums to stay in L2 beside the block. Twice as many share what it costs to widen a page: with 96 rows
// dense attention is 2 to 4 % slower. Codes that become bf16 values cost three times as much as widening: 512 rows of
// 16384 slots of int8 (32 query heads of 4, AMX) take 1.16 of the time of bf16 pages with 96 rows, 1.09 with 192, 1.04
// with 384.
constexpr int kTileRows = 96, kWidenedTileRows = 192, kCodedTileRows = 384;
// The cost of reading a page, in rows of arithmetic.
constexpr int64_t kPageCost = 16;
constexpr int64_t kItemsPerThread = 8;  // so that a delayed thread leaves little work for the end
constexpr int64_t kMinItemPages = 8;    // 128 KiB: some microseconds

int64_t cost(const Tile& tile) { return tile.pages.size * (kPageCost + tile.n_rows()); }

int64_t sums_floats(const Tile& tile) { return tile.n_rows() * (padded_dim(tile.kv->head_dim) + 1 + kLanes); }

void write_row(const AttentionKernels& kernels, const float* o, float factor, int64_t d, const Tensor& out,
               int64_t at) {
  if (out.dtype == DType::kBF16) {
    kernels.write_bf16(o, factor, d, out.as<bf16>() + at);
  } else {
    kernels.write_f32(o, factor, d, out.as<float>() + at);
  }
}

// The sums of a row, log2 of the sink's logit joined: the factor that normalises o, and lse.
struct RowEnd {
  float factor, lse;
};
RowEnd end_of(float top, float total, float sink) {
  const Merge m = merge(top, sink);
  const float all = total * m.a + m.b;
  if (!(all > 0.0f)) return {0.0f, -std::numeric_limits<float>::infinity()};
  return {m.a / all, (m.top + std::log2(all)) / kLog2e};
}

// Normalises and writes rows.
void finish(const PlannedRows& rows, const AttentionKernels& kernels, const TileSums& sums, const Tensor& out,
            const Tensor& lse) {
  const int64_t d = out.dim(2), dp = padded_dim(d);
  for (int r = 0; r < rows.n_tokens * rows.group; ++r) {
    const float total = sum_lanes(sums.total + r * kLanes);
    const int64_t row = rows.row + r / rows.group, head = rows.query_head + r % rows.group;
    const RowEnd end = end_of(sums.top[r], total, sink_of(*rows.args, head));
    write_row(kernels, sums.o + r * dp, end.factor, d, out, row * out.stride + head * d);
    if (!lse.empty()) lse.row<float>(row)[head] = end.lse;
  }
}

// Adds the partial sums of n_rows rows to `sum`.
void add_sums(const TileSums& part, int64_t n_rows, int64_t dp, const TileSums& sum) {
  for (int64_t r = 0; r < n_rows; ++r) {
    const auto [top, a, b] = merge(sum.top[r], part.top[r]);
    sum.top[r] = top;
    for (int64_t c = r * dp; c < (r + 1) * dp; ++c) sum.o[c] = a * sum.o[c] + b * part.o[c];
    for (int64_t c = r * kLanes; c < (r + 1) * kLanes; ++c) sum.total[c] = a * sum.total[c] + b * part.total[c];
  }
}

}  // namespace

int TileRunner::tokens_per_tile(DType compute, int64_t n_tokens, int group, bool coded) const {
  const AttentionKernels& kernels = this->kernels(compute);
  const int rows = kernels.widen != nullptr ? kWidenedTileRows : coded ? kCodedTileRows : kTileRows;
  const int64_t most = std::max(rows / group, 1);
  const int64_t n_tiles = std::max<int64_t>((n_tokens + most - 1) / most, 1);
  return static_cast<int>(std::max<int64_t>((n_tokens + n_tiles - 1) / n_tiles, 1));
}

TileRunner::TileRunner(Isa isa, bool byte_dots)
    : bf16_kernels_(attention_kernels(isa, byte_dots)),
      f32_kernels_(attention_kernels(std::min(isa, Isa::kAvx512), false)) {
  for (int codec = 0; codec < kKvCodecs; ++codec) {
    if (is_coded(static_cast<KvCodec>(codec))) f32_kernels_.scores[codec] = nullptr;
  }
}

std::byte* TileRunner::grow(Buffer& buffer, int64_t bytes) {
  if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  return buffer.data();
}

void TileRunner::reserve(int64_t n_rows, int64_t head_dim) {
  TileScratch none;
  scratch_rows_ = n_rows, scratch_dim_ = head_dim;
  // Not a multiple of 4096: otherwise the threads' rows alias in the cache.
  scratch_stride_ = TileScratch::layout(none, nullptr, n_rows, head_dim) + 128;
  grow(scratch_, scratch_stride_ * n_threads());
}

TileScratch TileRunner::scratch(int thread) const {
  TileScratch scratch;
  TileScratch::layout(scratch, scratch_.data() + thread * scratch_stride_, scratch_rows_, scratch_dim_);
  return scratch;
}

int64_t TileRunner::bytes() const {
  return scratch_.bytes() + shared_.bytes() + pages_.bytes() +
         static_cast<int64_t>(tiles_.capacity() * sizeof(PlannedTile) + rows_.capacity() * sizeof(PlannedRows) +
                              (tile_rows_.capacity() + items_.capacity()) * sizeof(int32_t));
}

int32_t TileRunner::add_rows(const PlannedRows& rows) {
  rows_.push_back(rows);
  return static_cast<int32_t>(rows_.size()) - 1;
}

void TileRunner::add(const Tile& tile) {
  const int32_t rows = add_rows({.args = tile.args,
                                 .row = tile.row,
                                 .query_head = tile.query_head,
                                 .group = tile.group,
                                 .n_tokens = tile.n_tokens,
                                 .parts = {}});
  add(tile, {&rows, 1});
}

void TileRunner::add(const Tile& tile, std::span<const int32_t> rows) {
  const auto index = static_cast<int32_t>(tiles_.size());
  tiles_.push_back({.tile = tile,
                    .first_rows = static_cast<int32_t>(tile_rows_.size()),
                    .n_rows = static_cast<int32_t>(rows.size())});
  for (int32_t token = 0; const int32_t i : rows) {
    PlannedRows& planned = rows_[static_cast<size_t>(i)];
    CHECK(planned.n_parts < PlannedRows::kMostParts);
    planned.parts[planned.n_parts++] = {index, token++};
    tile_rows_.push_back(i);
  }
}

int64_t TileRunner::cut() {
  int64_t total = 0, floats = 0;
  for (const PlannedTile& t : tiles_) total += cost(t.tile);
  const int64_t target = std::max<int64_t>(total / (n_threads() * kItemsPerThread), 1);
  items_.clear();
  for (PlannedTile& t : tiles_) {
    const int64_t most = std::max<int64_t>(t.tile.pages.size / kMinItemPages, 1);
    t.n_items = std::clamp<int64_t>((cost(t.tile) + target / 2) / target, 1, most);
    t.first_item = static_cast<int64_t>(items_.size());
    const std::span<const int32_t> rows(tile_rows_.data() + t.first_rows, static_cast<size_t>(t.n_rows));
    for (const int32_t i : rows) rows_[static_cast<size_t>(i)].unfinished += static_cast<int32_t>(t.n_items);
    const bool merges = t.n_items > 1 || rows_[static_cast<size_t>(rows[0])].n_parts > 1;
    t.sums = merges ? floats : -1;
    if (merges) floats += t.n_items * sums_floats(t.tile);
    items_.insert(items_.end(), static_cast<size_t>(t.n_items), static_cast<int32_t>(&t - tiles_.data()));
  }
  return floats;
}

// The sums of an item's rows from first_row on.
TileSums TileRunner::shared_sums(const PlannedTile& planned, int64_t item, int64_t first_row) const {
  const int64_t n_rows = planned.tile.n_rows(), dp = padded_dim(planned.tile.kv->head_dim), o = n_rows * dp;
  float* at = reinterpret_cast<float*>(shared_.data()) + planned.sums + item * sums_floats(planned.tile);
  return {at + first_row * dp, at + o + first_row, at + o + n_rows + first_row * kLanes};
}

// Adds the sums of the other items of the parts to the first item's, in order.
TileSums TileRunner::merge_parts(const PlannedRows& rows) const {
  TileSums sum;
  for (const PlannedRows::Part& part : std::span(rows.parts, static_cast<size_t>(rows.n_parts))) {
    const PlannedTile& planned = tiles_[static_cast<size_t>(part.tile)];
    const int64_t dp = padded_dim(planned.tile.kv->head_dim), first_row = int64_t{part.token} * rows.group;
    for (int64_t item = 0; item < planned.n_items; ++item) {
      const TileSums sums = shared_sums(planned, item, first_row);
      if (sum.o == nullptr) {
        sum = sums;
      } else {
        add_sums(sums, int64_t{rows.n_tokens} * rows.group, dp, sum);
      }
    }
  }
  return sum;
}

void TileRunner::run_item(int64_t index, int thread, const Tensor& q, const Tensor& out, const Tensor& lse) {
  const PlannedTile& planned = tiles_[static_cast<size_t>(items_[static_cast<size_t>(index)])];
  const Tile& tile = planned.tile;
  const AttentionKernels& kernels = this->kernels(q.dtype);
  const int64_t item = index - planned.first_item, n_pages = tile.pages.size, n = planned.n_items;
  const TileScratch memory = scratch(thread);
  const TileSums sums = planned.sums >= 0 ? shared_sums(planned, item) : memory.sums;
  pack_queries(tile, kernels, q, memory);
  attend(Walk(tile, kernels, n_pages * item / n, n_pages * (item + 1) / n), memory, sums);
  for (int32_t i = planned.first_rows; i < planned.first_rows + planned.n_rows; ++i) {
    PlannedRows& rows = rows_[static_cast<size_t>(tile_rows_[static_cast<size_t>(i)])];
    if (std::atomic_ref<int32_t>(rows.unfinished).fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
    finish(rows, kernels, planned.sums >= 0 ? merge_parts(rows) : sums, out, lse);
  }
}

void TileRunner::run(const Tensor& q, const Tensor& out, const Tensor& lse) {
  if (tiles_.empty()) return;
  int64_t n_rows = 0;
  for (const PlannedTile& t : tiles_) n_rows = std::max<int64_t>(n_rows, t.tile.n_rows());
  grow(shared_, 4 * cut());
  reserve(n_rows, q.dim(2));
  parallel_for(static_cast<int64_t>(items_.size()), [&](int64_t i, int thread) { run_item(i, thread, q, out, lse); });
}

}  // namespace vlcache::cpu
