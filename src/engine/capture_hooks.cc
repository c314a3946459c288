// Copying queries and asking the backend for sums.
#include "engine/capture_hooks.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace vlcache {

CaptureHooks::CaptureHooks(Backend& backend, int32_t n_layers, int32_t n_prompt, const AttentionArgs& args,
                           Capture& capture)
    : backend_(backend), n_prompt_(n_prompt), args_(args), capture_(capture) {
  capture.layers.clear();
  capture.layers.resize(static_cast<size_t>(n_layers));
}

void CaptureHooks::prepare(LayerCapture& layer, int64_t n_heads, int64_t head_dim) {
  const CaptureRequest& r = capture_.request;
  const int64_t w = std::min(r.query_window, n_prompt_);
  const int64_t query_bytes = w * n_heads * head_dim * dtype_bytes(backend_.compute_dtype());
  const int64_t sum_bytes = n_heads * n_prompt_ * static_cast<int64_t>(sizeof(float));
  layer.storage = Buffer(query_bytes + 3 * sum_bytes);
  std::byte* sums = layer.storage.data() + query_bytes;
  layer.window_queries = Tensor(layer.storage.data(), backend_.compute_dtype(), {w, n_heads, head_dim});
  if (r.column_sums) layer.column_sums = Tensor(sums, DType::kF32, {n_heads, n_prompt_});
  if (r.threshold_counts) {
    layer.below_counts = Tensor(sums + sum_bytes, DType::kF32, {n_heads, n_prompt_});
    layer.seen_counts = Tensor(sums + 2 * sum_bytes, DType::kF32, {n_heads, n_prompt_});
  }
}

void CaptureHooks::rows_after(int layer_index, const Observed& observed, std::vector<int32_t>& keep) {
  static_cast<void>(keep);  // all rows go on
  CHECK(observed.seqs.size() == 1);
  const Tensor& q = observed.q;
  const int32_t begin = observed.positions.front(), end = observed.positions.back() + 1;
  LayerCapture& layer = capture_.layers[static_cast<size_t>(layer_index)];
  if (layer.storage.empty()) prepare(layer, q.dim(1), q.dim(2));

  if (capture_.request.column_sums) {
    AttentionStats sums;
    sums.column_sums = layer.column_sums;
    backend_.attention_stats(q, observed.views[0], args_, sums);
  }
  const Tensor& window = layer.window_queries;
  const int32_t window_begin = n_prompt_ - static_cast<int32_t>(window.rows());
  const int32_t first = std::max(begin, window_begin);
  if (first < end) {
    std::vector<int32_t> rows(static_cast<size_t>(end - first));
    std::iota(rows.begin(), rows.end(), first - begin);
    backend_.gather_rows(q.view({q.rows(), q.row_size()}), rows,
                         window.slice_rows(first - window_begin, end - window_begin).view({end - first, q.row_size()}));
  }
  if (end == n_prompt_ && capture_.request.threshold_counts && window.rows() > 0) {
    AttentionStats counts;
    counts.threshold = capture_.request.threshold;
    counts.below_counts = layer.below_counts;
    counts.seen_counts = layer.seen_counts;
    backend_.attention_stats(window, observed.views[0], args_, counts);
  }
}

}  // namespace vlcache
