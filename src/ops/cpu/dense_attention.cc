// Attention inside each image: K and V are first laid out as pages, then every token sees all of them.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/threads.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/attention_workspace.h"
#include "ops/cpu/kv_pages.h"

namespace vlcache::cpu {
namespace {

struct Image {
  int64_t begin;  // first row
  int32_t n;      // rows
  int64_t n_pages() const { return (n + kPageSlots - 1) / kPageSlots; }
};

void write_page(const DenseTensors& t, const Image& image, const KvView& kv, int64_t index) {
  const int64_t head = index / image.n_pages(), page = index % image.n_pages(), d = kv.head_dim;
  const int64_t bytes = dtype_bytes(t.k.dtype), row = image.begin + page * kPageSlots;
  const HeadRows rows{.k = t.k.data + (row * t.k.stride + head * d) * bytes,
                      .v = t.v.data + (row * t.v.stride + head * d) * bytes,
                      .k_stride = t.k.stride * bytes,
                      .v_stride = t.v.stride * bytes,
                      .dtype = t.k.dtype};
  const int64_t n = std::min<int64_t>(image.n - page * kPageSlots, kPageSlots);
  write_slots({kv.page(static_cast<int>(head), page), kv.codec, d}, rows, 0, static_cast<int>(n));
}

// A of the image's row 0 for one head: probs [n] apart `stride` floats.
void write_first_row(const Tile& tile, const AttentionKernels& kernels, const TileScratch& scratch, float* probs,
                     int64_t stride) {
  const PageRange range = visible_pages(tile);
  const auto sweep = [&](const auto& visit) {
    const int64_t pages[2] = {0, range.size};
    BlockWalk walk(tile, kernels, range, pages);
    int64_t column = 0;
    for (Block b = walk.next(); b.n_pages > 0; b = walk.next()) {
      prepare_block(tile, b, scratch);
      const StripScores scores = score_strip(tile, kernels, b, {0, 0, 1}, nullptr, scratch);
      visit(scores, (scores.n + kLanes - 1) / kLanes * kLanes, column);
      column += scores.n;
    }
  };
  float* largest = scratch.o;
  std::fill(largest, largest + kLanes, kUnseen);
  std::fill(scratch.total, scratch.total + kLanes, 0.0f);
  scratch.top[0] = kNoTop;
  sweep([&](const StripScores& scores, int n, int64_t) {
    kernels.row_sums({.s = scratch.s,
                      .s_stride = kBlockColumns,
                      .m = 1,
                      .n = n,
                      .scale = scores.scale,
                      .top = scratch.top,
                      .total = scratch.total,
                      .largest = largest});
  });
  const float log_total = scratch.top[0] + std::log2(std::accumulate(scratch.total, scratch.total + kLanes, 0.0f));
  sweep([&](const StripScores& scores, int n, int64_t column) {
    float sums[kBlockColumns] = {};
    kernels.columns({.s = scratch.s,
                     .s_stride = kBlockColumns,
                     .m = 1,
                     .n = n,
                     .scale = scores.scale,
                     .log_total = &log_total,
                     .log_small = nullptr,
                     .weight = nullptr,
                     .sums = sums,
                     .most = nullptr,
                     .below = nullptr,
                     .seen = nullptr});
    for (int j = 0; j < scores.n; ++j) probs[(column + j) * stride] = sums[j];
  });
}

struct FirstRows {
  AttentionWorkspace::State& state;
  const ScratchPool& pool;
  const Tensor& q;
  const Tensor& probs;
  Tile tile;

  void head(int64_t head, int thread) const {
    Tile t = tile;
    t.head = t.query_head = static_cast<int>(head);
    const TileScratch scratch = pool.get(thread);
    pack_queries(t, state.kernels(q.dtype), q, scratch);
    write_first_row(t, state.kernels(q.dtype), scratch, probs.row<float>(t.row) + head, probs.stride);
  }
};

void attend_image(AttentionWorkspace::State& state, const DenseTensors& t, const DenseAttentionArgs& dense,
                  const Image& image) {
  const int n_heads = static_cast<int>(t.q.dim(1));
  const int64_t d = t.q.dim(2), n_pages = n_heads * image.n_pages();
  const std::vector<int32_t> n_slots(static_cast<size_t>(n_heads), image.n);
  state.page_ids.resize(static_cast<size_t>(n_pages));
  std::iota(state.page_ids.begin(), state.page_ids.end(), 0);
  KvView kv{.pages = state.page_ids.data(),
            .n_slots = n_slots.data(),
            .page_stride = static_cast<int32_t>(image.n_pages()),
            .n_kv_heads = n_heads,
            .head_dim = static_cast<int32_t>(d),
            .codec = t.k.dtype == DType::kBF16 ? KvCodec::kBF16 : KvCodec::kF32};
  const int64_t page_bytes = kv_page_bytes(kv.codec, d);
  kv.pools[static_cast<size_t>(kv.codec)] = {AttentionWorkspace::State::grow(state.pages, n_pages * page_bytes),
                                             page_bytes};
  parallel_for(n_pages, [&](int64_t i, int) { write_page(t, image, kv, i); });

  const AttentionArgs args{.scale = dense.scale};
  const int step = tokens_per_tile(image.n, 1);
  state.tiles.clear();
  Tile tile{.kv = &kv, .args = &args, .n_seen = image.n, .causal_step = 0};
  for (int head = 0; head < n_heads; ++head) {
    tile.head = tile.query_head = head;
    for (int32_t begin = 0; begin < image.n; begin += step) {
      tile.row = image.begin + begin;
      tile.n_tokens = std::min(step, image.n - begin);
      tile.place();
      state.tiles.push_back({.tile = tile, .range = visible_pages(tile)});
    }
  }
  run_tiles(state, t.q, args, t.out);
  if (dense.first_row_probs.empty()) return;
  const ScratchPool pool(state, n_threads(), 1, d);
  tile.row = image.begin;
  tile.n_tokens = 1;
  tile.place();
  const FirstRows first{state, pool, t.q, dense.first_row_probs, tile};
  parallel_for(n_heads, [&first](int64_t head, int thread) { first.head(head, thread); });
}

}  // namespace

void dense_attention(AttentionWorkspace& workspace, const DenseTensors& tensors, const DenseAttentionArgs& args) {
  const Tensor& q = tensors.q;
  CHECK(q.rank == 3 && q.dim(2) % 2 == 0 && args.scale > 0.0f && q.dtype == tensors.out.dtype);
  for (const Tensor* t : {&tensors.k, &tensors.v, &tensors.out}) {
    CHECK(t->rows() == q.rows() && t->row_size() == q.row_size() && t->dtype == q.dtype);
  }
  for (size_t i = 0; i + 1 < args.offsets.size(); ++i) {
    const Image image{args.offsets[i], args.offsets[i + 1] - args.offsets[i]};
    if (image.n > 0) attend_image(workspace.state(), tensors, args, image);
  }
}

}  // namespace vlcache::cpu
