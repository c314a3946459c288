// A tile of query rows against pages: visibility, packing, and the block loop of online softmax.
#include "ops/cpu/attention_tile.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/cpu/kv_pages.h"

namespace vlcache::cpu {
namespace {

constexpr uint64_t low_bits(int64_t n) { return n >= 64 ? ~uint64_t{0} : n <= 0 ? 0 : (uint64_t{1} << n) - 1; }

const int32_t* slot_positions(const Tile& tile) {
  const KvView& kv = *tile.kv;
  return kv.slot_pos == nullptr ? nullptr : kv.slot_pos + static_cast<int64_t>(tile.head) * kv.slot_stride;
}

void include(Interval& r, int64_t x) {
  r.lowest = std::min(r.lowest, x);
  r.highest = std::max(r.highest, x);
}

// The largest limit of a strip's tokens.
int64_t strip_limit(const Tile& tile, const Strip& strip) {
  int64_t token = strip.row / tile.group;
  const int64_t last = (strip.row + strip.m - 1) / tile.group;
  if (tile.behind == nullptr) return tile.limit(last);
  int64_t most = tile.limit(token);
  while (++token <= last) most = std::max(most, tile.limit(token));
  return most;
}

const float* slot_bias(const Tile& tile) {
  const KvView& kv = *tile.kv;
  return kv.slot_bias == nullptr ? nullptr : kv.slot_bias + static_cast<int64_t>(tile.head) * kv.slot_stride;
}

int operand_index(DType dtype) { return dtype == DType::kBF16 ? 0 : 1; }

template <typename To, typename From>
void convert_row(const From* x, int64_t n, std::byte* y) {
  To* to = reinterpret_cast<To*>(y);
  for (int64_t c = 0; c < n; ++c) to[c] = from_float<To>(to_float(x[c]));
}

void pack_row(const Tensor& q, const std::byte* x, DType dtype, std::byte* y) {
  const int64_t d = q.dim(2);
  if (q.dtype == dtype) {
    std::memcpy(y, x, static_cast<size_t>(d * dtype_bytes(dtype)));
  } else if (dtype == DType::kBF16) {
    convert_row<bf16>(reinterpret_cast<const float*>(x), d, y);
  } else {
    convert_row<float>(reinterpret_cast<const bf16*>(x), d, y);
  }
}

void pack_tile(const Tile& tile, const Tensor& q, DType dtype, std::byte* y) {
  const int64_t row_bytes = q.dim(2) * dtype_bytes(dtype), x_bytes = dtype_bytes(q.dtype);
  for (int64_t t = 0; t < tile.n_tokens; ++t) {
    const std::byte* x = q.data + ((tile.row + t) * q.stride + tile.query_head * q.dim(2)) * x_bytes;
    for (int g = 0; g < tile.group; ++g, y += row_bytes) pack_row(q, x + g * q.dim(2) * x_bytes, dtype, y);
  }
}

// The first strips of a block fetch the next one, page by page and front to back: strip i its 2i-th part beside K and
// the one after it beside V. The hardware's own prefetcher can follow one stream in the order of addresses: 31 GB/s of
// one core's 38, against 27 with K beside K and V beside V (32 query heads of 4 kv heads).
class PrefetchPlan {
 public:
  PrefetchPlan(const Tile& tile, KvCodec codec)
      : strips_(std::min(tile.n_strips(), 4)), part_bytes_(kv_page_bytes(codec, tile.kv->head_dim) / (2 * strips_)) {}
  bool wants(const Strip& strip) const { return strip.index < strips_; }
  const std::byte* beside_k(const Strip& strip, const std::byte* page) const {
    return page + 2 * strip.index * part_bytes_;
  }
  const std::byte* beside_v(const Strip& strip, const std::byte* page) const {
    return beside_k(strip, page) + part_bytes_;
  }
  // Cache lines for each of `steps` steps of a kernel.
  int lines(int64_t steps) const { return static_cast<int>((part_bytes_ / 64 + steps - 1) / steps); }

 private:
  int strips_;
  int64_t part_bytes_;
};

// Asks for one line of every 4 KiB of a block's pages: the address translation, which costs most where pages are
// scattered.
void prefetch_translation(const Block& block, int64_t head_dim) {
  const int64_t bytes = kv_page_bytes(block.codec, head_dim);
  for (int i = 0; i < block.n_pages; ++i) {
    for (int64_t at = 0; at < bytes; at += 4096) __builtin_prefetch(block.k[i] + at);
  }
}

// The logits of one token's heads, written by whoever computes them: the item of pages [begin, end) of the range
// answers for all slots from its first page on to the next item's, those of pages that nobody looks at included.
class LogitsOutput {
 public:
  LogitsOutput(const Tile& tile, const AttentionKernels& kernels, const PageRange& range,
               std::span<const int64_t, 2> pages)
      : tile_(tile),
        kernels_(kernels),
        at_(pages[0] == 0 ? 0 : range.page(pages[0]) * kPageSlots),
        end_(pages[1] == range.size ? tile.kv->n_slots[tile.head] : range.page(pages[1]) * kPageSlots) {}

  void write(const Block& block, const Strip& strip, const StripScores& scores, const float* s) {
    const float factor = block.biased ? 1.0f / kLog2e : tile_.args->scale;
    for (int i = 0; i * kPageSlots < scores.n; ++i) {
      const int64_t begin = block.index[i] * kPageSlots;
      const int n = std::min(scores.n - i * kPageSlots, kPageSlots);
      if (strip.index == 0) skip_to(begin);
      for (int r = 0; r < strip.m; ++r) {
        kernels_.write_logits(s + r * kBlockColumns + i * kPageSlots, factor, n, row(strip.row + r) + begin);
      }
      at_ = begin + n;
    }
  }
  void finish() { skip_to(end_); }

 private:
  float* row(int r) const { return tile_.logits + r * tile_.logits_stride; }
  void skip_to(int64_t slot) {
    for (int r = 0; r < tile_.n_rows() && at_ < slot; ++r) {
      std::fill(row(r) + at_, row(r) + slot, -std::numeric_limits<float>::infinity());
    }
    at_ = std::max(at_, slot);
  }

  const Tile& tile_;
  const AttentionKernels& kernels_;
  int64_t at_, end_;
};

}  // namespace

void Tile::place() {
  limits = {limit(0), limit(0)};
  positions = {position(0), position(0)};
  for (int64_t t = 1; t < n_tokens; ++t) {
    include(limits, limit(t));
    include(positions, position(t));
  }
}

PageRange visible_pages(const Tile& tile) {
  const int64_t n = (std::max<int64_t>(tile.limits.highest, 0) + kPageSlots - 1) / kPageSlots;
  const int64_t window = tile.args->window;
  if (window <= 0 || slot_positions(tile) != nullptr) return {0, 0, n};
  const int64_t sinks = std::min<int64_t>(n, (std::max(tile.args->n_sinks, 0) + kPageSlots - 1) / kPageSlots);
  const int64_t first = std::max<int64_t>(tile.positions.lowest - window + 1, 0) / kPageSlots;
  const int64_t gap = std::clamp<int64_t>(first - sinks, 0, n - sinks);
  return {sinks, gap, n - gap};
}

Sight sight(const Tile& tile, int64_t page) {
  const int64_t begin = page * kPageSlots, end = begin + kPageSlots;
  if (begin >= tile.limits.highest) return Sight::kNone;
  bool all = end <= tile.limits.lowest;
  if (tile.args->window > 0 && end > tile.args->n_sinks) {
    Interval slots{begin, end - 1};
    if (const int32_t* pos = slot_positions(tile)) {
      const auto [low, high] = std::minmax_element(pos + begin, pos + std::min(end, tile.limits.highest));
      slots = {*low, *high};
    }
    if (slots.highest <= tile.positions.lowest - tile.args->window && begin >= tile.args->n_sinks) return Sight::kNone;
    all = all && slots.lowest > tile.positions.highest - tile.args->window;
  }
  return all ? Sight::kAll : Sight::kSome;
}

uint64_t seen_mask(const Tile& tile, int64_t token, int64_t page) {
  const int64_t begin = page * kPageSlots, n = std::clamp<int64_t>(tile.limit(token) - begin, 0, kPageSlots);
  const uint64_t exists = low_bits(n);
  if (tile.args->window <= 0) return exists;
  const int64_t after = tile.position(token) - tile.args->window;  // slots at positions beyond this one are seen
  uint64_t seen = 0;
  if (const int32_t* pos = slot_positions(tile)) {
    for (int64_t j = 0; j < n; ++j) seen |= uint64_t{pos[begin + j] > after} << j;
  } else {
    seen = ~low_bits(after + 1 - begin);
  }
  return exists & (seen | low_bits(tile.args->n_sinks - begin));
}

int Block::columns(int64_t limit) const {
  for (int i = n_pages - 1; i >= 0; --i) {
    const int64_t n = limit - index[i] * kPageSlots;
    if (n > 0) return i * kPageSlots + static_cast<int>(std::min<int64_t>(n, kPageSlots));
  }
  return 0;
}

Block BlockWalk::next() {
  const KvView& kv = *tile_.kv;
  const float* bias = slot_bias(tile_);
  Block block;
  for (; at_ < end_ && block.n_pages < tile_.block_pages(); ++at_) {
    const int64_t page = range_.page(at_), begin = page * kPageSlots;
    const Sight seen = sight(tile_, page);
    if (seen == Sight::kNone) continue;
    uint64_t hidden = 0;
    bool biased = false;
    if (bias != nullptr) {
      const int n = static_cast<int>(std::min<int64_t>(tile_.limits.highest - begin, kPageSlots));
      biased = kernels_.scan_bias(bias + begin, n, &hidden);
      if (hidden == low_bits(n)) continue;
    }
    const KvCodec codec = kv.page_codec(tile_.head, page);
    if (block.n_pages > 0 && codec != block.codec) break;
    const int i = block.n_pages++;
    block.codec = codec;
    block.index[i] = page;
    block.sights[i] = hidden != 0 ? Sight::kSome : seen;
    block.hidden[i] = hidden;
    block.biased = block.biased || biased;
    block.k[i] = kv.page(tile_.head, page);
    block.v[i] = block.k[i] + kv_k_bytes(codec, kv.head_dim);
  }
  return block;
}

int64_t TileScratch::layout(TileScratch& scratch, std::byte* base, int64_t n_rows, int64_t head_dim) {
  int64_t used = 0;
  const auto cut = [&](int64_t bytes) {
    std::byte* at = base == nullptr ? nullptr : base + used;
    used += (bytes + 63) / 64 * 64;
    return at;
  };
  const auto cut_floats = [&](int64_t n) { return reinterpret_cast<float*>(cut(4 * n)); };
  for (std::byte** q : {scratch.q, scratch.q_sinks}) {
    q[0] = cut(2 * n_rows * head_dim);
    q[1] = cut(4 * n_rows * head_dim);
  }
  scratch.o = cut_floats(n_rows * padded_dim(head_dim));
  scratch.top = cut_floats(n_rows);
  scratch.total = cut_floats(n_rows * kLanes);
  scratch.s = cut_floats(kStripRows * kBlockColumns);
  scratch.sink_s = cut_floats(kStripRows * kPageSlots);
  scratch.p = cut(4 * kStripRows * kBlockColumns);
  scratch.bias = cut_floats(kBlockColumns);
  scratch.masks = reinterpret_cast<uint64_t*>(cut(8 * kBlockPages * n_rows));
  return used;
}

void pack_queries(const Tile& tile, const AttentionKernels& kernels, const Tensor& q, const TileScratch& scratch) {
  const KvView& kv = *tile.kv;
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    bool needed = false;
    for (int codec = 0; codec < kKvCodecs; ++codec) {
      const bool used = kv.codecs != nullptr || kv.codec == static_cast<KvCodec>(codec);
      needed = needed || (used && kernels.operand_dtype[codec] == dtype);
    }
    if (!needed) continue;
    pack_tile(tile, q, dtype, scratch.q[operand_index(dtype)]);
    if (tile.args->q_sinks != nullptr) {
      pack_tile(tile, *tile.args->q_sinks, dtype, scratch.q_sinks[operand_index(dtype)]);
    }
  }
}

void prepare_block(const Tile& tile, const Block& block, const TileScratch& scratch) {
  for (int i = 0; i < block.n_pages; ++i) {
    if (block.sights[i] == Sight::kAll) continue;
    for (int t = 0; t < tile.n_tokens; ++t) {
      scratch.masks[i * tile.n_tokens + t] = seen_mask(tile, t, block.index[i]) & ~block.hidden[i];
    }
  }
  if (!block.biased) return;
  const float* bias = slot_bias(tile);
  for (int i = 0; i < block.n_pages; ++i) {
    const int64_t begin = block.index[i] * kPageSlots;
    const int64_t n = std::min<int64_t>(tile.limits.highest - begin, kPageSlots);
    float* to = scratch.bias + i * kPageSlots;
    for (int64_t j = 0; j < kPageSlots; ++j) to[j] = j < n ? bias[begin + j] * kLog2e : 0.0f;
  }
}

StripScores score_strip(const Tile& tile, const AttentionKernels& kernels, const Block& block, const Strip& strip,
                        const Block* next, const TileScratch& scratch) {
  const size_t codec = static_cast<size_t>(block.codec);
  const DType dtype = kernels.operand_dtype[codec];
  const int64_t q_stride = int64_t{tile.kv->head_dim} * dtype_bytes(dtype);
  const int n = block.columns(strip_limit(tile, strip));
  const float scale = tile.args->scale * kLog2e;
  const PrefetchPlan plan(tile, block.codec);
  for (int i = 0; i * kPageSlots < n; ++i) {
    const int columns = std::min(n - i * kPageSlots, kPageSlots), padded = (columns + kLanes - 1) / kLanes * kLanes;
    float* s = scratch.s + i * kPageSlots;
    ScoreTile t{.q = scratch.q[operand_index(dtype)] + strip.row * q_stride,
                .q_stride = q_stride,
                .m = strip.m,
                .n = columns,
                .k = block.k[i],
                .head_dim = tile.kv->head_dim,
                .s = s,
                .s_stride = kBlockColumns};
    if (next != nullptr && i < next->n_pages && plan.wants(strip)) {
      t.prefetch_lines = plan.lines(t.head_dim / 2);
      t.prefetch = plan.beside_k(strip, next->k[i]);
    }
    kernels.scores[codec](t);
    const int64_t sinks = tile.args->n_sinks - block.index[i] * kPageSlots;
    if (tile.args->q_sinks != nullptr && sinks > 0) {
      t.q = scratch.q_sinks[operand_index(dtype)] + strip.row * q_stride;
      t.s = scratch.sink_s, t.s_stride = kPageSlots, t.prefetch = nullptr;
      kernels.scores[codec](t);
      const size_t bytes = 4 * static_cast<size_t>(std::min<int64_t>(sinks, columns));
      for (int r = 0; r < strip.m; ++r) std::memcpy(s + r * kBlockColumns, t.s + r * kPageSlots, bytes);
    }
    for (int r = 0; r < strip.m; ++r) {
      if (block.biased) kernels.scale_bias(s + r * kBlockColumns, scale, scratch.bias + i * kPageSlots, padded);
      if (block.sights[i] == Sight::kAll) continue;
      const uint64_t seen = scratch.masks[i * tile.n_tokens + (strip.row + r) / tile.group];
      if ((~seen & low_bits(padded)) != 0) kernels.mask(s + r * kBlockColumns, seen, padded);
    }
  }
  return {n, block.biased ? 1.0f : scale};
}

void attend(const Tile& tile, const AttentionKernels& kernels, const PageRange& range,
            std::span<const int64_t, 2> pages, const TileScratch& scratch, const TileSums& sums) {
  const int n_rows = tile.n_rows();
  const int64_t dp = padded_dim(tile.kv->head_dim);
  std::fill(sums.o, sums.o + n_rows * dp, 0.0f);
  std::fill(sums.top, sums.top + n_rows, kNoTop);
  std::fill(sums.total, sums.total + n_rows * kLanes, 0.0f);
  LogitsOutput logits(tile, kernels, range, pages);
  BlockWalk walk(tile, kernels, range, pages);
  Block block = walk.next(), next = walk.next();
  while (block.n_pages > 0) {
    const Block after = walk.next();
    prefetch_translation(after, tile.kv->head_dim);
    prepare_block(tile, block, scratch);
    const PrefetchPlan plan(tile, block.codec);
    const size_t codec = static_cast<size_t>(block.codec);
    const int64_t p_stride = kBlockColumns * dtype_bytes(kernels.operand_dtype[codec]);
    for (int i = 0; i < tile.n_strips(); ++i) {
      const Strip strip = strip_at(tile, i);
      const StripScores scores = score_strip(tile, kernels, block, strip, &next, scratch);
      if (scores.n == 0) continue;
      if (tile.logits != nullptr) logits.write(block, strip, scores, scratch.s);
      float* o = sums.o + strip.row * dp;
      kernels.softmax[codec]({.s = scratch.s,
                              .s_stride = kBlockColumns,
                              .m = strip.m,
                              .n = (scores.n + kLanes - 1) / kLanes * kLanes,
                              .scale = scores.scale,
                              .top = sums.top + strip.row,
                              .total = sums.total + strip.row * kLanes,
                              .p = scratch.p,
                              .p_stride = p_stride,
                              .o = o,
                              .o_stride = dp,
                              .padded_dim = static_cast<int>(dp)});
      ValueTile values{.p = scratch.p,
                       .p_stride = p_stride,
                       .m = strip.m,
                       .n = scores.n,
                       .v = block.v,
                       .padded_dim = static_cast<int>(dp),
                       .o = o,
                       .o_stride = dp};
      const std::byte* prefetch[kBlockPages];
      if (next.n_pages >= block.n_pages && plan.wants(strip)) {
        values.prefetch_lines = plan.lines(kPageSlots / 2);
        for (int j = 0; j < next.n_pages; ++j) prefetch[j] = plan.beside_v(strip, next.k[j]);
        values.prefetch = prefetch;
      }
      kernels.values[codec](values);
    }
    block = next;
    next = after;
  }
  if (tile.logits != nullptr) logits.finish();
}

}  // namespace vlcache::cpu
