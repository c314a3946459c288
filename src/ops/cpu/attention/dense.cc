// Attention inside each image: K and V are first laid out as pages, then every token sees all of them.
#include <algorithm>
#include <numeric>
#include <vector>

#include "base/os/threads.h"
#include "ops/cpu/attention/attention.h"
#include "ops/cpu/attention/kv_pages.h"
#include "ops/cpu/attention/tile_runner.h"

namespace vlcache::cpu {
namespace {

// Page `index` of all heads' pages, from rows of an image.
void write_page(const Tensor& k, const Tensor& v, const KvView& kv, int64_t index) {
  const int64_t head = index / kv.page_stride, page = index % kv.page_stride, d = kv.head_dim;
  const int64_t bytes = dtype_bytes(k.dtype), row = page * kPageSlots;
  const HeadRows rows{.k = k.data + (row * k.stride + head * d) * bytes,
                      .v = v.data + (row * v.stride + head * d) * bytes,
                      .k_stride = k.stride * bytes,
                      .v_stride = v.stride * bytes,
                      .dtype = k.dtype};
  const int64_t n = std::min<int64_t>(k.rows() - row, kPageSlots);
  write_slots({kv.page(static_cast<int>(head), page), kv.codec, d}, rows, 0, static_cast<int>(n));
}

// Attention of row 0 to every row of the image, as statistics of one query: probs [n, H].
void write_first_row(AttentionWorkspace& workspace, const Tensor& q, const KvView& kv, float scale,
                     const Tensor& probs) {
  const int64_t n = q.rows(), n_heads = q.dim(1);
  std::vector<float> sums(static_cast<size_t>(n_heads * n));
  AttentionStats stats;
  stats.column_sums = Tensor(sums.data(), DType::kF32, {n_heads, n});
  attention_stats(workspace, q.slice_rows(0, 1), kv, {.scale = scale}, stats);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t h = 0; h < n_heads; ++h) probs.row<float>(j)[h] = stats.column_sums.row<float>(h)[j];
  }
}

// All rows of q, k, v and out are one image's.
void attend_image(AttentionWorkspace& workspace, const DenseTensors& t, float scale, const Tensor& probs) {
  TileRunner& runner = workspace.runner();
  const int n_heads = static_cast<int>(t.q.dim(1));
  const int32_t n = static_cast<int32_t>(t.q.rows()), d = static_cast<int32_t>(t.q.dim(2));
  const int32_t pages_per_head = (n + kPageSlots - 1) / kPageSlots, n_pages = n_heads * pages_per_head;
  const std::vector<int32_t> n_slots(static_cast<size_t>(n_heads), n);
  std::vector<int32_t> page_ids(static_cast<size_t>(n_pages));
  std::iota(page_ids.begin(), page_ids.end(), 0);
  KvView kv{.pages = page_ids.data(),
            .n_slots = n_slots.data(),
            .page_stride = pages_per_head,
            .n_kv_heads = n_heads,
            .head_dim = d,
            .codec = t.k.dtype == DType::kBF16 ? KvCodec::kBF16 : KvCodec::kF32};
  const int64_t page_bytes = kv_page_bytes(kv.codec, d);
  kv.pools[static_cast<size_t>(kv.codec)] = {runner.pages(n_pages * page_bytes), page_bytes};
  parallel_for(n_pages, [&](int64_t i, int) { write_page(t.k, t.v, kv, i); });

  const AttentionArgs args{.scale = scale};
  const int step = runner.tokens_per_tile(t.q.dtype, n, 1, /*coded=*/false);
  runner.clear();
  Tile tile{.kv = &kv, .args = &args, .n_seen = n, .causal_step = 0};
  for (int head = 0; head < n_heads; ++head) {
    tile.head = tile.query_head = head;
    for (int begin = 0; begin < n; begin += step) {
      tile.row = begin;
      tile.n_tokens = std::min(step, n - begin);
      tile.place();
      runner.add(tile);
    }
  }
  runner.run(t.q, t.out, {});
  if (!probs.empty()) write_first_row(workspace, t.q, kv, scale, probs);
}

}  // namespace

void dense_attention(AttentionWorkspace& workspace, const DenseTensors& tensors, const DenseAttentionArgs& args) {
  const Tensor& all = tensors.q;
  CHECK(all.rank == 3 && all.dim(2) % 2 == 0 && args.scale > 0.0f && all.dtype == tensors.out.dtype);
  for (const Tensor* t : {&tensors.k, &tensors.v, &tensors.out}) {
    CHECK(t->rows() == all.rows() && t->row_size() == all.row_size() && t->dtype == all.dtype);
  }
  for (size_t i = 0; i + 1 < args.offsets.size(); ++i) {
    const int64_t begin = args.offsets[i], end = args.offsets[i + 1];
    if (begin == end) continue;
    const auto rows = [&](const Tensor& t) { return t.slice_rows(begin, end); };
    const Tensor q = rows(tensors.q), k = rows(tensors.k), v = rows(tensors.v), out = rows(tensors.out);
    const Tensor& probs = args.first_row_probs;
    attend_image(workspace, {q, k, v, out}, args.scale, probs.empty() ? probs : rows(probs));
  }
}

}  // namespace vlcache::cpu
