// Scores of a strip, and the block loop of online softmax.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/numeric/kv_codec.h"
#include "ops/cpu/attention/kv_pages.h"
#include "ops/cpu/attention/tile.h"

namespace vlcache::cpu {
namespace {

// The first strips of a block fetch the next one, page by page and front to back: strip i its 2i-th part beside K and
// the one after it beside V. The hardware's own prefetcher can follow one stream in the order of addresses: 31 GB/s of
// one core's 38, against 27 with K beside K and V beside V (32 query heads of 4 kv heads).
class PrefetchPlan {
 public:
  PrefetchPlan(const Walk& walk, KvCodec codec)
      : strips_(std::min(Strips(walk.tile(), walk.kernels(), codec).size(), 4)),
        part_bytes_(kv_page_bytes(codec, walk.tile().kv->head_dim) / (2 * strips_)) {}
  bool wants(const Strip& strip) const { return strip.index < strips_; }
  const std::byte* beside_k(const Strip& strip, const std::byte* page) const {
    return page + 2 * strip.index * part_bytes_;
  }
  const std::byte* beside_v(const Strip& strip, const std::byte* page) const {
    return beside_k(strip, page) + part_bytes_;
  }
  int total_lines() const { return static_cast<int>((part_bytes_ + 63) / 64); }
  // Cache lines for each of `steps` steps of a kernel.
  int lines(int64_t steps) const { return static_cast<int>((part_bytes_ / 64 + steps - 1) / steps); }

 private:
  int strips_;
  int64_t part_bytes_;
};

// Prefetches one line of every 4 KiB of a block's pages, for the address translation, which costs most where pages are
// scattered.
void prefetch_translation(const Block& block, int64_t head_dim) {
  const int64_t bytes = kv_page_bytes(block.codec, head_dim);
  for (int i = 0; i < block.n_pages; ++i) {
    for (int64_t at = 0; at < bytes; at += 4096) {
      const std::byte* line = block.k[i] + at;
      __builtin_prefetch(line);
      asm volatile("" : : "r"(line));  // GCC removes calls of functions that only prefetch
    }
  }
}

// The logits of a tile of one token. Each item writes all of its slots(): those it computes, and -inf for the others.
class LogitsOutput {
 public:
  explicit LogitsOutput(const Walk& walk) : walk_(walk), left_(walk.slots()) {}

  void write(const Block& block, const Strip& strip, const float* s) {
    const float factor = block.biased ? 1.0f / kLog2e : walk_.tile().args->scale;
    for (int i = 0; i * kPageSlots < strip.n; ++i) {
      const int64_t begin = block.index[i] * kPageSlots;
      const int n = std::min(strip.n - i * kPageSlots, kPageSlots);
      if (strip.index == 0) hide_until(begin);
      for (int r = 0; r < strip.m; ++r) {
        walk_.kernels().write_logits(s + r * kBlockColumns + i * kPageSlots, factor, n, row(strip.row + r) + begin);
      }
      left_.lowest = begin + n;
    }
  }
  void finish() { hide_until(left_.highest); }

 private:
  float* row(int r) const { return walk_.tile().logits + r * walk_.tile().logits_stride; }
  void hide_until(int64_t slot) {
    for (int r = 0; r < walk_.tile().n_rows() && left_.lowest < slot; ++r) {
      std::fill(row(r) + left_.lowest, row(r) + slot, -std::numeric_limits<float>::infinity());
    }
    left_.lowest = std::max(left_.lowest, slot);
  }

  const Walk& walk_;
  Interval left_;  // slots that were not written yet
};

// The largest limit of a strip's tokens.
int64_t strip_limit(const Tile& tile, const Strip& strip) {
  int64_t token = strip.row / tile.group;
  const int64_t last = (strip.row + strip.m - 1) / tile.group;
  if (tile.n_after == nullptr) return tile.limit(last);
  int64_t most = tile.limit(token);
  while (++token <= last) most = std::max(most, tile.limit(token));
  return most;
}

// Masks the scores of a page; `masks` by token.
void mask_rows(const Walk& walk, const Strip& strip, const uint64_t* masks, float* s, int n) {
  const int group = walk.tile().group;
  for (int r = 0; r < strip.m;) {
    const int token = (strip.row + r) / group, m = std::min((token + 1) * group - strip.row, strip.m) - r;
    if ((~masks[token] & low_bits(n)) != 0) walk.kernels().mask(s + r * kBlockColumns, m, masks[token], n);
    r += m;
  }
}

// The basis of o, [n_rows, dp] of sums: that of values, or of the codes that were added last.
class Basis {
 public:
  Basis(const AttentionKernels& kernels, int64_t d, int n_rows, float* o)
      : kernels_(kernels), d_(d), n_rows_(n_rows), o_(o) {}

  // rotation: as Block has it. Sums that are all 0 need no turn.
  void become(KvCodec rotation, bool zero) {
    const bool same = rotation == now_ || (!is_coded(rotation) && !is_coded(now_));
    for (int r = 0; r < n_rows_ && !same && !zero; ++r) {
      float* row = o_ + r * padded_dim(d_);
      if (is_coded(now_)) rotate_row(kernels_, {now_, /*divides=*/true}, d_, row);
      if (is_coded(rotation)) rotate_row(kernels_, {rotation, /*divides=*/false}, d_, row);
    }
    now_ = rotation;
  }

 private:
  const AttentionKernels& kernels_;
  int64_t d_;
  int n_rows_;
  float* o_;
  KvCodec now_ = KvCodec::kF32;
};

}  // namespace

int Strip::columns() const { return (n + kLanes - 1) / kLanes * kLanes; }

Strips::Strips(const Tile& tile, const AttentionKernels& kernels, KvCodec codec) : n_rows_(tile.n_rows()) {
  const int most = kernels.strip_rows[static_cast<size_t>(codec)];
  // AMX: one token, too, with more query heads than a strip of vector registers has; so the bits of a row do not depend
  // on the few beside it.
  const bool many = n_rows_ > kFewRows || tile.group > kStripRows;
  if (is_coded(codec) || (most > kStripRows && many)) {
    most_ = most;
  } else {
    // Five suit five vectors of V (head_dim 72 and 80): 25 accumulators, and V is read once.
    most_ = (tile.kv->head_dim + 15) / 16 == 5 ? 5 : kStripRows;
  }
  size_ = (n_rows_ + most_ - 1) / most_;
}

Strip Strips::operator[](int i) const {
  // AMX: full tiles, because changing their shape is costly. Vector registers: rows are shared out evenly.
  const auto begin = [&](int j) { return most_ > kStripRows ? std::min(j * most_, n_rows_) : n_rows_ * j / size_; };
  return {.index = i, .row = begin(i), .m = begin(i + 1) - begin(i)};
}

void score_strip(const Walk& walk, const Block& block, Strip& strip, const Block* next, const TileScratch& scratch) {
  const Tile& tile = walk.tile();
  const AttentionKernels& kernels = walk.kernels();
  const size_t codec = static_cast<size_t>(k_codec(block.codec)), form = static_cast<size_t>(block.query);
  const int64_t q_stride = query_bytes(block.query, tile.kv->head_dim);
  const int n = block.columns(strip_limit(tile, strip));
  const float scale = tile.args->scale * kLog2e;
  strip.n = n;
  strip.scale = block.biased ? 1.0f : scale;
  const PrefetchPlan plan(walk, next != nullptr ? next->codec : block.codec);
  for (int i = 0; i * kPageSlots < n; ++i) {
    const int columns = std::min(n - i * kPageSlots, kPageSlots), padded = (columns + kLanes - 1) / kLanes * kLanes;
    float* s = scratch.s + i * kPageSlots;
    ScoreTile t{.q = scratch.q[form] + strip.row * q_stride,
                .q_stride = q_stride,
                .m = strip.m,
                .n = columns,
                .k = block.k[i],
                .head_dim = tile.kv->head_dim,
                .s = s,
                .s_stride = kBlockColumns};
    if (next != nullptr && i < next->n_pages && plan.wants(strip)) {
      t.prefetch_lines = plan.lines(t.head_dim / 2), t.prefetch_total = plan.total_lines();
      t.prefetch = plan.beside_k(strip, next->k[i]);
    }
    const auto compute = [&] {
      kernels.scores[codec](t);
      if (block.k_scale == nullptr) return;
      kernels.scale_columns(t.s, t.s_stride, t.m, block.k_scale + i * kPageSlots, padded);
    };
    compute();
    const int64_t sinks = tile.args->n_sinks - block.index[i] * kPageSlots;
    if (tile.args->q_sinks != nullptr && sinks > 0) {
      t.q = scratch.q_sinks[form] + strip.row * q_stride;
      t.s = scratch.sink_s, t.s_stride = kPageSlots, t.prefetch = nullptr;
      compute();
      const size_t bytes = 4 * static_cast<size_t>(std::min<int64_t>(sinks, columns));
      for (int r = 0; r < strip.m; ++r) std::memcpy(s + r * kBlockColumns, t.s + r * kPageSlots, bytes);
    }
    for (int r = 0; r < strip.m && block.biased; ++r) {
      kernels.scale_bias(s + r * kBlockColumns, scale, scratch.bias + i * kPageSlots, padded);
    }
    if (block.masked[i]) mask_rows(walk, strip, scratch.masks + i * tile.n_tokens, s, padded);
  }
}

void attend(Walk walk, const TileScratch& scratch, const TileSums& sums) {
  const Tile& tile = walk.tile();
  const AttentionKernels& kernels = walk.kernels();
  const int n_rows = tile.n_rows();
  const int64_t dp = padded_dim(tile.kv->head_dim);
  std::fill(sums.o, sums.o + n_rows * dp, 0.0f);
  std::fill(sums.top, sums.top + n_rows, kNoTop);
  std::fill(sums.total, sums.total + n_rows * kLanes, 0.0f);
  LogitsOutput logits(walk);
  Basis basis(kernels, tile.kv->head_dim, n_rows, sums.o);
  bool any = false;  // block was added
  Block block = walk.next(), next = walk.next();
  while (block.n_pages > 0) {
    const Block after = walk.next();
    prefetch_translation(after, tile.kv->head_dim);
    prepare_block(tile, block, scratch);
    load_block(walk, scratch, /*values=*/true, block);
    basis.become(block.rotation, /*zero=*/!any);
    any = true;
    const PrefetchPlan plan(walk, next.codec);
    const Strips strips(tile, kernels, block.codec);
    const size_t codec = static_cast<size_t>(v_codec(block.codec));
    const int64_t p_stride = kBlockColumns * (kernels.query_form[codec] == QueryForm::kBF16 ? 2 : 4);
    for (int i = 0; i < strips.size(); ++i) {
      Strip strip = strips[i];
      score_strip(walk, block, strip, &next, scratch);
      if (strip.n == 0) continue;
      if (tile.logits != nullptr) logits.write(block, strip, scratch.s);
      float* o = sums.o + strip.row * dp;
      kernels.softmax[codec]({.s = scratch.s,
                              .s_stride = kBlockColumns,
                              .m = strip.m,
                              .n = strip.columns(),
                              .scale = strip.scale,
                              .top = sums.top + strip.row,
                              .total = sums.total + strip.row * kLanes,
                              .p = scratch.p,
                              .p_stride = p_stride,
                              .o = o,
                              .o_stride = dp,
                              .padded_dim = static_cast<int>(dp),
                              .weight = block.v_scale});
      ValueTile values{.p = scratch.p,
                       .p_stride = p_stride,
                       .m = strip.m,
                       .n = strip.n,
                       .v = block.v,
                       .padded_dim = static_cast<int>(dp),
                       .o = o,
                       .o_stride = dp};
      const std::byte* prefetch[kBlockPages];
      if (next.n_pages >= block.n_pages && plan.wants(strip)) {
        values.prefetch_lines = plan.lines(kPageSlots / 2), values.prefetch_total = plan.total_lines();
        for (int j = 0; j < next.n_pages; ++j) prefetch[j] = plan.beside_v(strip, next.k[j]);
        values.prefetch = prefetch;
      }
      kernels.values[codec](values);
    }
    block = next;
    next = after;
  }
  basis.become(KvCodec::kF32, /*zero=*/!any);
  if (tile.logits != nullptr) logits.finish();
}

}  // namespace vlcache::cpu
