// Column sums and counts over the attention of a group of queries: one pass over the pages for every row's sum, one for
// the columns. Scores are computed twice and never stored beyond a block.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/threads.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/attention_workspace.h"

namespace vlcache::cpu {
namespace {

constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kMinItemPages = 8;

// What the first pass finds of a row over some pages, in base 2.
struct RowSums {
  float top;      // scale of `total`
  float total;    // sum of 2^(logit - top)
  float largest;  // logit
  float n_seen;   // slots
};

struct StatsRun {
  AttentionWorkspace::State& state;
  const ScratchPool& pool;
  const Tensor& q;
  const KvView& kv;
  const AttentionArgs& args;
  AttentionStats& stats;
  int64_t n_parts = 1;  // of every head's pages

  // One query head with all its rows is one tile.
  Tile tile(int64_t query_head) const {
    const int group = static_cast<int>(q.dim(1) / kv.n_kv_heads), head = static_cast<int>(query_head / group);
    const int n_rows = static_cast<int>(q.rows());
    return {.kv = &kv,
            .args = &args,
            .head = head,
            .query_head = static_cast<int>(query_head),
            .n_tokens = n_rows,
            .n_seen = int64_t{kv.n_slots[head]} - n_rows + 1};
  }
  RowSums* sums(int64_t query_head, int64_t part) const {
    return reinterpret_cast<RowSums*>(state.partials.data()) + (query_head * n_parts + part) * q.rows();
  }

  template <typename Visit>  // visit(block, strip, scores, columns rounded up to whole vectors)
  void sweep(const Tile& tile, int64_t part, const TileScratch& scratch, const Visit& visit) const {
    const PageRange range = visible_pages(tile);
    int64_t at = range.size * part / n_parts;
    const int64_t end = range.size * (part + 1) / n_parts;
    pack_queries(tile, state.kernels(q.dtype), q, scratch);
    for (Block b = next_block(tile, range, at, end); b.n_pages > 0; b = next_block(tile, range, at, end)) {
      prepare_block(tile, b, scratch);
      visit.begin(b);
      for (int i = 0; i < tile.n_strips(); ++i) {
        const Strip strip = strip_at(tile, i);
        const StripScores scores = score_strip(tile, state.kernels(q.dtype), b, strip, nullptr, scratch);
        if (scores.n > 0) visit.strip(b, strip, scores, (scores.n + kLanes - 1) / kLanes * kLanes);
      }
      visit.end(b);
    }
  }

  void row_pass(int64_t item, int thread) const;
  void column_pass(int64_t item, int thread) const;
  void thresholds(int64_t query_head, const TileScratch& scratch) const;
};

// First pass over a block: rows' sums in scratch.top, .total and, for the maxima, .o.
struct RowVisit {
  const AttentionKernels& kernels;
  const Tile& tile;
  const TileScratch& scratch;
  RowSums* rows;

  void begin(const Block& block) const {
    for (int i = 0; i < block.n_pages; ++i) {
      for (int t = 0; t < tile.n_tokens; ++t) {
        const bool all = block.sights[i] == Sight::kAll;
        rows[t].n_seen += static_cast<float>(all ? kPageSlots : std::popcount(scratch.masks[i * tile.n_tokens + t]));
      }
    }
  }
  void strip(const Block&, const Strip& strip, const StripScores& scores, int n) const {
    kernels.row_sums({.s = scratch.s,
                      .s_stride = kBlockColumns,
                      .m = strip.m,
                      .n = n,
                      .scale = scores.scale,
                      .top = scratch.top + strip.row,
                      .total = scratch.total + strip.row * kLanes,
                      .largest = scratch.o + strip.row * kLanes});
  }
  void end(const Block&) const {}
};

void StatsRun::row_pass(int64_t item, int thread) const {
  const int64_t head = item / n_parts, part = item % n_parts, n = q.rows();
  const TileScratch scratch = pool.get(thread);
  RowSums* rows = sums(head, part);
  std::fill(rows, rows + n, RowSums{});
  std::fill(scratch.top, scratch.top + n, kNoTop);
  std::fill(scratch.total, scratch.total + n * kLanes, 0.0f);
  std::fill(scratch.o, scratch.o + n * kLanes, kUnseen);
  const Tile t = tile(head);
  sweep(t, part, scratch, RowVisit{state.kernels(q.dtype), t, scratch, rows});
  for (int64_t i = 0; i < n; ++i) {
    rows[i].top = scratch.top[i];
    rows[i].largest = *std::max_element(scratch.o + i * kLanes, scratch.o + (i + 1) * kLanes);
    for (int c = 0; c < kLanes; ++c) rows[i].total += scratch.total[i * kLanes + c];
  }
}

// Joins the parts of the first pass: scratch.top = log2 of each row's sum, scratch.total = the log2 below which A is
// small.
void StatsRun::thresholds(int64_t query_head, const TileScratch& scratch) const {
  for (int64_t i = 0; i < q.rows(); ++i) {
    RowSums row = sums(query_head, 0)[i];
    for (int64_t part = 1; part < n_parts; ++part) {
      const RowSums& other = sums(query_head, part)[i];
      const float top = std::max(row.top, other.top);
      row.total = row.total * std::exp2(row.top - top) + other.total * std::exp2(other.top - top);
      row.top = top;
      row.largest = std::max(row.largest, other.largest);
      row.n_seen += other.n_seen;
    }
    const bool any = row.total > 0.0f;
    const float log_total = any ? row.top + std::log2(row.total) : std::numeric_limits<float>::infinity();
    scratch.top[i] = log_total;
    const bool by_row = stats.rule == AttentionStats::Rule::kRowMax;
    const float limit = by_row ? row.largest - log_total + std::log2(stats.threshold) : -std::log2(row.n_seen);
    // What lies on the limit is not below it (a row of equal weights under kUniform), whatever the rounding.
    const float slack = 4e-7f * (1.0f + std::fabs(log_total) + std::fabs(limit));
    scratch.total[i] = any && std::isfinite(limit) ? limit - slack : limit;
  }
}

struct ColumnVisit {
  const StatsRun& run;
  const Tile& tile;
  const TileScratch& scratch;
  struct Columns {
    float sums[kBlockColumns], below[kBlockColumns], seen[kBlockColumns];
  };
  Columns& columns;

  void begin(const Block&) const { columns = {}; }
  void strip(const Block&, const Strip& strip, const StripScores& scores, int n) const {
    run.state.kernels(run.q.dtype)
        .columns({.s = scratch.s,
                  .s_stride = kBlockColumns,
                  .m = strip.m,
                  .n = n,
                  .scale = scores.scale,
                  .log_total = scratch.top + strip.row,
                  .log_small = scratch.total + strip.row,
                  .sums = columns.sums,
                  .below = columns.below,
                  .seen = columns.seen});
  }
  void end(const Block& block) const {
    add(block, columns.sums, run.stats.column_sums);
    add(block, columns.below, run.stats.below_counts);
    add(block, columns.seen, run.stats.seen_counts);
  }
  void add(const Block& block, const float* from, const Tensor& to) const {
    if (to.empty()) return;
    for (int i = 0; i < block.n_pages; ++i) {
      const int64_t begin = block.index[i] * kPageSlots, n = std::min<int64_t>(tile.last_limit() - begin, kPageSlots);
      float* y = to.row<float>(tile.query_head) + begin;
      for (int64_t j = 0; j < n; ++j) y[j] += from[i * kPageSlots + j];
    }
  }
};

void StatsRun::column_pass(int64_t item, int thread) const {
  const int64_t head = item / n_parts, part = item % n_parts;
  const TileScratch scratch = pool.get(thread);
  thresholds(head, scratch);
  const Tile t = tile(head);
  ColumnVisit::Columns columns;
  sweep(t, part, scratch, ColumnVisit{*this, t, scratch, columns});
}

}  // namespace

void attention_stats(AttentionWorkspace& workspace, const Tensor& q, const KvView& kv, const AttentionArgs& args,
                     AttentionStats& stats) {
  CHECK(q.rank == 3 && kv.n_kv_heads > 0 && q.dim(1) % kv.n_kv_heads == 0 && q.dim(2) == kv.head_dim &&
        args.scale > 0.0f);
  CHECK(args.window <= 0 || kv.slot_pos == nullptr || args.positions != nullptr);
  const int64_t most_slots = *std::max_element(kv.n_slots, kv.n_slots + kv.n_kv_heads), n_heads = q.dim(1);
  for (const Tensor* t : {&stats.column_sums, &stats.below_counts, &stats.seen_counts}) {
    CHECK(t->empty() || (t->dtype == DType::kF32 && t->rows() == n_heads && t->row_size() >= most_slots));
  }
  if (q.rows() == 0 || most_slots == 0) return;
  AttentionWorkspace::State& state = workspace.state();
  const int64_t most_parts = std::max<int64_t>(most_slots / (kMinItemPages * kPageSlots), 1);
  const int64_t n_parts = std::clamp<int64_t>((n_threads() * kItemsPerThread + n_heads - 1) / n_heads, 1, most_parts);
  AttentionWorkspace::State::grow(state.partials, n_heads * n_parts * q.rows() * static_cast<int64_t>(sizeof(RowSums)));
  const ScratchPool pool(state, n_threads(), q.rows(), q.dim(2));
  const StatsRun run{state, pool, q, kv, args, stats, n_parts};
  parallel_for(n_heads * n_parts, [&run](int64_t item, int thread) { run.row_pass(item, thread); });
  parallel_for(n_heads * n_parts, [&run](int64_t item, int thread) { run.column_pass(item, thread); });
}

}  // namespace vlcache::cpu
