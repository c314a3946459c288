// Attention over pages: cuts a batch into items of similar cost, runs them on all threads, joins what was cut.
#include "ops/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/threads.h"
#include "ops/cpu/attention_workspace.h"
#include "ops/cpu/kv_pages.h"

namespace vlcache::cpu {
namespace {

// Rows of a tile: enough for the arithmetic on a page (128 cycles a row) to hide its transfer (about 2500), few enough
// for queries and sums to stay in L2 beside the block.
constexpr int kTileRows = 96;
// What reading a page costs, in rows of arithmetic.
constexpr int64_t kPageCost = 16;
constexpr int64_t kItemsPerThread = 8;  // so that a thread that was held up leaves little behind
constexpr int64_t kMinItemPages = 8;    // 128 KiB: some microseconds

int64_t page_cost(const Tile& tile) { return kPageCost + tile.n_rows(); }

int64_t sums_floats(const Tile& tile) { return tile.n_rows() * (padded_dim(tile.kv->head_dim) + 1 + kLanes); }
TileSums sums_at(const Tile& tile, float* at) {
  const int64_t n_rows = tile.n_rows(), o = n_rows * padded_dim(tile.kv->head_dim);
  return {at, at + o, at + o + n_rows};
}

// Lengths of items, and where their sums go. Returns the floats that partial sums need.
int64_t cut_items(AttentionWorkspace::State& state) {
  int64_t total = 0, floats = 0;
  for (const PlannedTile& t : state.tiles) total += t.range.size * page_cost(t.tile);
  const int64_t target = std::max<int64_t>(total / (n_threads() * kItemsPerThread), 1);
  state.items.clear();
  for (PlannedTile& t : state.tiles) {
    const int64_t most = std::max<int64_t>(t.range.size / kMinItemPages, 1);
    const int64_t n = std::clamp<int64_t>((t.range.size * page_cost(t.tile) + target / 2) / target, 1, most);
    t.first_item = static_cast<int64_t>(state.items.size());
    t.n_items = n;
    t.unfinished = static_cast<int32_t>(n);
    t.partials = n > 1 ? floats : -1;
    if (n > 1) floats += n * sums_floats(t.tile);
    const int32_t index = static_cast<int32_t>(&t - state.tiles.data());
    for (int64_t i = 0; i < n; ++i) {
      state.items.push_back({index, {t.range.size * i / n, t.range.size * (i + 1) / n}});
    }
  }
  return floats;
}

float sum_lanes(const float* x) {
  float four[4];  // independent chains
  for (int i = 0; i < 4; ++i) four[i] = (x[i] + x[i + 4]) + (x[i + 8] + x[i + 12]);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

void write_row(const AttentionKernels& kernels, const float* o, float factor, int64_t d, const Tensor& out,
               int64_t at) {
  if (out.dtype == DType::kBF16) {
    kernels.write_bf16(o, factor, d, out.as<bf16>() + at);
  } else {
    kernels.write_f32(o, factor, d, out.as<float>() + at);
  }
}

// Normalises and writes the tile's rows.
void finish(const Tile& tile, const AttentionKernels& kernels, const TileSums& sums, const AttentionArgs& args,
            const Tensor& out) {
  const int64_t d = tile.kv->head_dim, dp = padded_dim(d);
  for (int r = 0; r < tile.n_rows(); ++r) {
    const float total = sum_lanes(sums.total + r * kLanes);
    const int64_t row = tile.row + r / tile.group, head = tile.query_head + r % tile.group;
    write_row(kernels, sums.o + r * dp, total > 0.0f ? 1.0f / total : 0.0f, d, out, row * out.stride + head * d);
    if (args.lse.empty()) continue;
    args.lse.row<float>(row)[head] =
        total > 0.0f ? (sums.top[r] + std::log2(total)) / kLog2e : -std::numeric_limits<float>::infinity();
  }
}

// Adds the sums of all items of a tile into those of the first, in order.
TileSums join(const PlannedTile& planned, float* partials) {
  const Tile& tile = planned.tile;
  const int64_t dp = padded_dim(tile.kv->head_dim);
  const TileSums sum = sums_at(tile, partials + planned.partials);
  for (int64_t item = 1; item < planned.n_items; ++item) {
    const TileSums part = sums_at(tile, partials + planned.partials + item * sums_floats(tile));
    for (int r = 0; r < tile.n_rows(); ++r) {
      const float top = std::max(sum.top[r], part.top[r]);
      const float a = std::exp2(sum.top[r] - top), b = std::exp2(part.top[r] - top);
      sum.top[r] = top;
      for (int64_t c = r * dp; c < (r + 1) * dp; ++c) sum.o[c] = a * sum.o[c] + b * part.o[c];
      for (int c = r * kLanes; c < (r + 1) * kLanes; ++c) sum.total[c] = a * sum.total[c] + b * part.total[c];
    }
  }
  return sum;
}

struct Run {
  AttentionWorkspace::State& state;
  const ScratchPool& pool;
  const Tensor& q;
  const AttentionArgs& args;
  const Tensor& out;

  void item(int64_t index, int thread) const {
    const AttentionItem& item = state.items[static_cast<size_t>(index)];
    PlannedTile& planned = state.tiles[static_cast<size_t>(item.tile)];
    const Tile& tile = planned.tile;
    const TileScratch scratch = pool.get(thread);
    float* partials = reinterpret_cast<float*>(state.partials.data());
    TileSums sums{scratch.o, scratch.top, scratch.total};
    if (planned.partials >= 0) {
      sums = sums_at(tile, partials + planned.partials + (index - planned.first_item) * sums_floats(tile));
    }
    const AttentionKernels& kernels = state.kernels(q.dtype);
    pack_queries(tile, kernels, q, scratch);
    attend(tile, kernels, planned.range, item.pages, scratch, sums);
    if (std::atomic_ref<int32_t>(planned.unfinished).fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    finish(tile, kernels, planned.partials >= 0 ? join(planned, partials) : sums, args, out);
  }
};

// The tiles of one sequence, the most expensive first: heads in turn, so that threads walk the same pages at the same
// time.
void plan_sequence(AttentionWorkspace::State& state, const AttentionSeq& seq, const AttentionArgs& args, int group) {
  const int step = tokens_per_tile(seq.n_rows, group);
  for (int head = 0; head < seq.kv.n_kv_heads; ++head) {
    for (int begin = (seq.n_rows - 1) / step * step; begin >= 0; begin -= step) {
      PlannedTile planned;
      planned.tile = {.kv = &seq.kv,
                      .args = &args,
                      .head = head,
                      .query_head = head * group,
                      .group = group,
                      .row = seq.row_begin + begin,
                      .n_tokens = std::min(step, seq.n_rows - begin),
                      .n_seen = int64_t{seq.kv.n_slots[head]} - seq.n_rows + 1 + begin,
                      .behind = seq.behind != nullptr ? seq.behind + begin : nullptr,
                      .logits_stride = seq.logits_stride};
      if (seq.logits != nullptr) planned.tile.logits = seq.logits + planned.tile.query_head * seq.logits_stride;
      planned.tile.place();
      planned.range = visible_pages(planned.tile);
      state.tiles.push_back(planned);
    }
  }
}

}  // namespace

AttentionWorkspace::AttentionWorkspace(Isa isa) : state_(std::make_unique<State>()) {
  state_->bf16_kernels = attention_kernels(isa);
  state_->f32_kernels = attention_kernels(std::min(isa, Isa::kAvx512));
}
AttentionWorkspace::~AttentionWorkspace() = default;

int64_t AttentionWorkspace::bytes() const {
  const State& s = *state_;
  return s.partials.bytes() + s.scratch.bytes() + s.pages.bytes() +
         static_cast<int64_t>(s.tiles.capacity() * sizeof(PlannedTile) + s.items.capacity() * sizeof(AttentionItem));
}

ScratchPool::ScratchPool(AttentionWorkspace::State& state, int n_threads, int64_t n_rows_in, int64_t head_dim_in)
    : n_rows(n_rows_in), head_dim(head_dim_in) {
  TileScratch none;
  stride =
      TileScratch::layout(none, nullptr, n_rows, head_dim) + 128;  // not a multiple of 4096: threads' rows alias else
  base = AttentionWorkspace::State::grow(state.scratch, stride * n_threads);
}

int tokens_per_tile(int64_t n_tokens, int group) {
  const int64_t most = std::max(kTileRows / group, 1);
  const int64_t n_tiles = std::max<int64_t>((n_tokens + most - 1) / most, 1);
  return static_cast<int>(std::max<int64_t>((n_tokens + n_tiles - 1) / n_tiles, 1));
}

void run_tiles(AttentionWorkspace::State& state, const Tensor& q, const AttentionArgs& args, const Tensor& out) {
  if (state.tiles.empty()) return;
  int64_t n_rows = 0;
  for (const PlannedTile& t : state.tiles) n_rows = std::max<int64_t>(n_rows, t.tile.n_rows());
  AttentionWorkspace::State::grow(state.partials, 4 * cut_items(state));
  const ScratchPool pool(state, n_threads(), n_rows, q.dim(2));
  const Run run{state, pool, q, args, out};
  // One captured reference: fits std::function without an allocation.
  parallel_for(static_cast<int64_t>(state.items.size()), [&run](int64_t i, int thread) { run.item(i, thread); });
}

void attention(AttentionWorkspace& workspace, const Tensor& q, std::span<const AttentionSeq> seqs,
               const AttentionArgs& args, const Tensor& out) {
  AttentionWorkspace::State& state = workspace.state();
  state.tiles.clear();
  CHECK(q.rank == 3 && out.rank == 3 && q.dtype == out.dtype && args.scale > 0.0f);
  for (const AttentionSeq& seq : seqs) {
    CHECK(seq.kv.n_kv_heads > 0 && q.dim(1) % seq.kv.n_kv_heads == 0 && q.dim(2) == seq.kv.head_dim);
    CHECK(seq.kv.head_dim % 2 == 0 && seq.row_begin >= 0 && seq.row_begin + seq.n_rows <= q.rows());
    CHECK(args.window <= 0 || seq.kv.slot_pos == nullptr || args.positions != nullptr);
    CHECK(seq.behind == nullptr || std::all_of(seq.behind, seq.behind + seq.n_rows, [](int32_t n) { return n >= 0; }));
    CHECK(seq.logits == nullptr ||
          (seq.n_rows == 1 &&
           seq.logits_stride >= *std::max_element(seq.kv.n_slots, seq.kv.n_slots + seq.kv.n_kv_heads)));
    if (seq.n_rows > 0) plan_sequence(state, seq, args, static_cast<int>(q.dim(1) / seq.kv.n_kv_heads));
  }
  run_tiles(state, q, args, out);
}

}  // namespace vlcache::cpu
