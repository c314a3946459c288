#include "engine/hooks/capture_hooks.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace vlcache {
namespace {
constexpr int64_t kScratchTensors = 4;

// Of a pass over what a layer has attended to.
AttentionArgs args_of(const Observed& observed, const int32_t* positions) {
  return {
      .scale = observed.scale, .window = observed.window, .positions = positions, .sink_logits = observed.sink_logits};
}

int32_t most_slots(const KvView& view) { return *std::max_element(view.n_slots, view.n_slots + view.n_kv_heads); }
}  // namespace

CaptureHooks::CaptureHooks(Backend& backend, int32_t n_layers, int32_t n_prompt, Capture& capture)
    : backend_(backend), n_prompt_(n_prompt), capture_(capture), windows_(static_cast<size_t>(n_layers)) {
  const CaptureRequest& r = capture.request;
  CHECK((!r.all_sums && r.band == 0) || r.reduce != CaptureRequest::Reduce::kMax);
  CHECK((!r.all_max && !r.window_max) || r.reduce == CaptureRequest::Reduce::kMax);
  CHECK(r.window_weights.empty() || static_cast<int32_t>(r.window_weights.size()) == r.window);
  CHECK(r.replay.piece == 0 || r.ahead == 0);
  if (r.future > 0) moments_.resize(windows_.size());
  capture.layers.clear();
  capture.layers.resize(static_cast<size_t>(n_layers));
}

void CaptureHooks::prepare(Window& window, LayerCapture& layer, const Observed& observed) {
  const CaptureRequest& r = capture_.request;
  const int64_t n_heads = observed.q.dim(1), head_dim = observed.q.dim(2), n_kv_heads = observed.views[0].n_kv_heads;
  const int64_t w = std::min(r.window, n_prompt_) + r.ahead;
  const int64_t query_bytes = w * n_heads * head_dim * dtype_bytes(observed.q.dtype);
  const int64_t sum_bytes = n_kv_heads * n_prompt_ * dtype_bytes(DType::kF32);
  std::vector<Tensor*> sums;
  if (r.all_sums) sums.push_back(&layer.all_sums);
  if (r.band > 0) sums.push_back(&layer.band_sums);
  if (r.all_max) sums.push_back(&layer.all_max);
  if (r.window_sums) sums.push_back(&layer.window_sums);
  if (r.window_max) sums.push_back(&layer.window_max);
  if (r.window_counts) sums.insert(sums.end(), {&layer.below_counts, &layer.seen_counts});
  const int64_t moment_bytes = r.future > 0 ? n_heads * head_dim * (1 + head_dim) * dtype_bytes(DType::kF32) : 0;
  layer.scale = observed.scale;
  layer.sink_logits.assign(observed.sink_logits.begin(), observed.sink_logits.end());
  layer.storage = Buffer(query_bytes + static_cast<int64_t>(sums.size()) * sum_bytes + moment_bytes);
  window.queries = Tensor(layer.storage.data(), observed.q.dtype, {w, n_heads, head_dim});
  std::byte* at = layer.storage.data() + query_bytes;
  for (Tensor* sum : sums) {
    *sum = Tensor(at, DType::kF32, {n_kv_heads, n_prompt_});
    at += sum_bytes;
  }
  if (r.future == 0) return;
  layer.future_mean = Tensor(at, DType::kF32, {n_heads, head_dim});
  layer.future_covariance =
      Tensor(layer.future_mean.as<float>() + n_heads * head_dim, DType::kF32, {n_heads, head_dim * head_dim});
}

bool CaptureHooks::after_attention(int layer_index, const Observed& observed, std::vector<int32_t>&) {
  LayerCapture& layer = capture_.layers[static_cast<size_t>(layer_index)];
  // A step that failed after this layer is repeated, perhaps with other cuts: rows count once.
  int32_t& next = windows_[static_cast<size_t>(layer_index)].next_token;
  const auto n_old = std::ranges::lower_bound(observed.tokens, next) - observed.tokens.begin();
  if (n_old == std::ssize(observed.tokens)) return false;
  next = observed.tokens.back() + 1;
  if (observed.tokens.front() >= n_prompt_) {
    if (lookahead_.replay.piece > 0) {
      if (lookahead_.replay == capture_.request.replay) {
        sum_replay(layer_index, observed, n_old);
        if (capture_.request.window_queries) keep_replayed(layer_index, observed, n_old);
      }
    } else if (observed.tokens.back() < n_prompt_ + capture_.request.ahead) {
      sum_draft(layer_index, observed, n_old);
    }
    return false;
  }
  if (layer.storage.empty()) prepare(windows_[static_cast<size_t>(layer_index)], layer, observed);
  note_seen(observed);
  if (capture_.request.needs_all_rows()) sum_rows(layer_index, observed, n_old);
  if (capture_.request.future > 0) add_moments(layer_index, observed, observed.tokens[static_cast<size_t>(n_old)]);
  if (capture_.request.window > 0 && capture_.request.replay.piece == 0) {
    keep_window(layer_index, observed, n_old);
    const bool complete = observed.tokens.back() == n_prompt_ - 1;
    // Where the layer has a window, pages that these rows see may be freed after the step.
    const bool leaves = observed.window > 0 || codes_change(windows_[static_cast<size_t>(layer_index)], observed);
    if (complete || leaves) {
      sum_window(layer_index, observed);
    }
  }
  return false;  // all rows continue
}

void CaptureHooks::begin(const Lookahead& lookahead) {
  lookahead_ = lookahead;
  for (Window& window : windows_) window.next_token = std::min(window.next_token, n_prompt_);
}

// Per row: the slots of head 0 up to and with its own. Heads may differ in what an earlier eviction has left of them;
// the number of slots after a row is the same in all.
void CaptureHooks::note_seen(const Observed& observed) {
  n_seen_.clear();
  for (size_t i = 0; i < observed.runs.size(); ++i) {
    const int32_t n_rows = observed.runs[i].n_rows, end = observed.views[i].n_slots[0];
    for (int32_t row = 0; row < n_rows; ++row) n_seen_.push_back(end - n_rows + 1 + row);
  }
}

// Zeroed, one row per query head.
Tensor CaptureHooks::scratch(int32_t i, const Observed& observed) {
  const int64_t n_heads = observed.q.dim(1);
  const int32_t n = most_slots(observed.views.back());
  const int64_t bytes = n_heads * n * dtype_bytes(DType::kF32);
  if (scratch_.bytes() < kScratchTensors * bytes) {  // with room for a draft, whose slots are added one by one
    scratch_ = Buffer(kScratchTensors * n_heads * (n + capture_.request.ahead) * dtype_bytes(DType::kF32));
  }
  const Tensor t(scratch_.data() + i * bytes, DType::kF32, {n_heads, n});
  std::memset(t.data, 0, static_cast<size_t>(t.bytes()));
  return t;
}

KvView CaptureHooks::biased(const KvView& view, FunctionRef<float(int32_t head, int32_t slot)> extra) {
  KvView other = view;
  other.slot_stride = std::max(view.slot_stride, most_slots(view));
  CHECK(view.slot_pos == nullptr || other.slot_stride == view.slot_stride);
  biases_.resize(static_cast<size_t>(int64_t{view.n_kv_heads} * other.slot_stride));
  for (int32_t head = 0; head < view.n_kv_heads; ++head) {
    float* row = biases_.data() + int64_t{head} * other.slot_stride;
    for (int32_t i = 0; i < view.n_slots[head]; ++i) {
      row[i] = extra(head, i);
      if (view.slot_bias != nullptr) row[i] += view.slot_bias[int64_t{head} * view.slot_stride + i];
    }
  }
  other.slot_bias = biases_.data();
  return other;
}

void CaptureHooks::sum_rows(int layer_index, const Observed& observed, int64_t n_old) {
  LayerCapture& layer = capture_.layers[static_cast<size_t>(layer_index)];
  KvView view = observed.views.back();
  AttentionStats stats;
  if (capture_.request.gumbel_seed != 0) {  // a bias like any other; all rows are needed, so slot i is token i
    view = biased(view, [&](int32_t head, int32_t slot) {
      return gumbel_noise(capture_.request.gumbel_seed, layer_index, head, slot);
    });
  } else if (!observed.lse.empty()) {
    stats.lse = observed.lse.slice_rows(n_old, observed.lse.rows());
  }
  n_after_.clear();
  for (const int32_t seen : n_seen_) n_after_.push_back(view.n_slots[0] - seen);
  stats.n_after = n_after_.data() + n_old;
  if (!layer.all_sums.empty()) stats.column_sums = scratch(0, observed);
  if (!layer.all_max.empty()) stats.column_max = scratch(1, observed);
  if (!layer.band_sums.empty()) stats.band_sums = scratch(2, observed);
  stats.band = capture_.request.band;
  const AttentionArgs args = args_of(observed, observed.tokens.data() + n_old);
  backend_.attention_stats(observed.q.slice_rows(n_old, observed.q.rows()), view, args, stats);
  const int32_t n = most_slots(view);
  if (!layer.all_sums.empty()) reduce(stats.column_sums, n, /*maxima=*/false, layer.all_sums);
  if (!layer.band_sums.empty()) reduce(stats.band_sums, n, /*maxima=*/false, layer.band_sums);
  if (!layer.all_max.empty()) reduce(stats.column_max, n, /*maxima=*/true, layer.all_max);
}

void CaptureHooks::add_moments(int layer_index, const Observed& observed, int32_t first) {
  QueryMoments& moments = moments_[static_cast<size_t>(layer_index)];
  const CaptureRequest& r = capture_.request;
  moments.add(backend_, observed, std::max(first, r.future_skip), n_prompt_);
  if (observed.tokens.back() != n_prompt_ - 1) return;
  const LayerCapture& layer = capture_.layers[static_cast<size_t>(layer_index)];
  moments.expect(observed.positions.back().largest() + 1, r.future, layer.future_mean, layer.future_covariance);
  moments = {};
}

void CaptureHooks::keep_window(int layer_index, const Observed& observed, int64_t n_old) {
  Window& window = windows_[static_cast<size_t>(layer_index)];
  rows_.clear();
  const std::vector<float>& weights = capture_.request.window_weights;
  for (auto i = static_cast<size_t>(n_old); i < observed.tokens.size(); ++i) {
    const int32_t from_end = n_prompt_ - observed.tokens[i];  // 1: the last prompt token
    if (from_end < 1 || from_end > capture_.request.window) continue;
    rows_.push_back(static_cast<int32_t>(i));
    window.places.push_back(observed.tokens[i]);
    window.n_seen.push_back(n_seen_[i]);
    if (!weights.empty()) window.weights.push_back(weights[weights.size() - static_cast<size_t>(from_end)]);
    if (observed.lse.empty()) continue;
    const float* lse = observed.lse.row<float>(static_cast<int64_t>(i));
    window.lse.insert(window.lse.end(), lse, lse + observed.lse.row_size());
  }
  copy_queries(window, observed);
}

// Keeps the queries of `window` tokens, evenly spread over the repeated ones.
void CaptureHooks::keep_replayed(int layer_index, const Observed& observed, int64_t n_old) {
  LayerCapture& layer = capture_.layers[static_cast<size_t>(layer_index)];
  Window& window = windows_[static_cast<size_t>(layer_index)];
  const int32_t n_skipped = lookahead_.replay.n_skipped;
  const int64_t n = n_prompt_ - n_skipped, w = std::min<int64_t>(capture_.request.window, n);
  rows_.clear();
  for (auto i = static_cast<size_t>(n_old); i < observed.tokens.size(); ++i) {
    if (observed.tokens[i] < lookahead_.first_repeated) continue;  // an instruction
    const int64_t t = observed.tokens[i] - lookahead_.first_repeated + lookahead_.begin - n_skipped;
    if ((t + 1) * w / n == t * w / n) continue;
    rows_.push_back(static_cast<int32_t>(i));
    window.places.push_back(observed.tokens[i]);
  }
  copy_queries(window, observed);
  layer.window_queries = window.queries.slice_rows(0, static_cast<int64_t>(window.places.size()));
  layer.window_places = window.places;
}

// Appends the queries of rows_, whose positions are the window's last.
void CaptureHooks::copy_queries(Window& window, const Observed& observed) const {
  if (rows_.empty()) return;
  const auto n = static_cast<int64_t>(rows_.size()), end = static_cast<int64_t>(window.places.size());
  const Tensor& q = observed.q;
  backend_.gather_rows(q.view({q.rows(), q.row_size()}), rows_,
                       window.queries.slice_rows(end - n, end).view({n, q.row_size()}));
}

// Whether the next row sees pages as codes that the window's first row that is not summed sees as values: these are
// freed after this step.
bool CaptureHooks::codes_change(const Window& window, const Observed& observed) {
  const KvView& view = observed.views.back();
  const auto first = static_cast<size_t>(window.n_summed);
  if (view.born == nullptr || first == window.places.size()) return false;
  const int32_t n_rows = view.n_slots[0] - window.n_seen[first] + 1;  // from it on
  const std::span<const int32_t> lengths(view.n_slots, static_cast<size_t>(view.n_kv_heads));
  return std::ranges::any_of(lengths, [&](int32_t n) { return coded_end(n) != coded_end(n - n_rows); });
}

// Sums what the rows of the window attend to that were computed and are not summed: all of them where pages stay as
// they are.
void CaptureHooks::sum_window(int layer_index, const Observed& observed) {
  LayerCapture& layer = capture_.layers[static_cast<size_t>(layer_index)];
  Window& window = windows_[static_cast<size_t>(layer_index)];
  const KvView& view = observed.views.back();
  const int64_t begin = window.n_summed, end = std::ssize(window.places);
  layer.window_queries = window.queries.slice_rows(0, end);
  layer.window_places = window.places;
  if (begin == end) return;
  n_after_.clear();
  for (int64_t i = begin; i < end; ++i) n_after_.push_back(view.n_slots[0] - window.n_seen[static_cast<size_t>(i)]);
  AttentionStats stats = window_stats(observed);
  stats.n_after = n_after_.data();
  if (!window.weights.empty()) stats.row_weight = window.weights.data() + begin;
  if (!window.lse.empty()) {
    const int64_t n_heads = observed.q.dim(1);
    stats.lse = Tensor(window.lse.data() + begin * n_heads, DType::kF32, {end - begin, n_heads});
  }
  const AttentionArgs args = args_of(observed, window.places.data() + begin);
  backend_.attention_stats(layer.window_queries.slice_rows(begin, end), view, args, stats);
  join_window(stats, most_slots(view), layer);
  window.n_summed = static_cast<int32_t>(end);
}

// Drafted tokens are rows of the window that are computed one by one (or again together, of a request that was
// preempted), after slots of their own, whose sums are not needed.
void CaptureHooks::sum_draft(int layer_index, const Observed& observed, int64_t n_old) {
  LayerCapture& layer = capture_.layers[static_cast<size_t>(layer_index)];
  note_seen(observed);
  n_after_.clear();
  for (const int32_t seen : n_seen_) n_after_.push_back(observed.views.back().n_slots[0] - seen);
  AttentionStats stats = window_stats(observed);
  stats.n_after = n_after_.data() + n_old;
  const Tensor q = observed.q.slice_rows(n_old, observed.q.rows());
  if (!observed.lse.empty()) stats.lse = observed.lse.slice_rows(n_old, observed.lse.rows());
  const AttentionArgs args = args_of(observed, observed.tokens.data() + n_old);
  backend_.attention_stats(q, observed.views.back(), args, stats);
  join_window(stats, most_slots(observed.views.back()), layer);
  const Tensor& all = windows_[static_cast<size_t>(layer_index)].queries;
  const int64_t n = layer.window_queries.rows(), more = q.rows();
  rows_.resize(static_cast<size_t>(more));
  std::iota(rows_.begin(), rows_.end(), 0);
  backend_.gather_rows(q.view({more, q.row_size()}), rows_, all.slice_rows(n, n + more).view({more, q.row_size()}));
  layer.window_queries = all.slice_rows(0, n + more);
  layer.window_places.insert(layer.window_places.end(), observed.tokens.begin() + n_old, observed.tokens.end());
}

// Of the prompt's slots a replayed row must see only the sinks and the piece it repeats; the others are hidden from
// this pass. Only the piece's columns count.
void CaptureHooks::sum_replay(int layer_index, const Observed& observed, int64_t n_old) {
  note_seen(observed);
  n_after_.clear();
  for (const int32_t seen : n_seen_) n_after_.push_back(observed.views.back().n_slots[0] - seen);
  const KvView& all = observed.views.back();
  const auto token = [&](int32_t head, int32_t slot) {
    return all.slot_pos != nullptr ? all.slot_pos[int64_t{head} * all.slot_stride + slot] : slot;
  };
  const auto repeated = [&](int32_t head, int32_t slot) {
    const int32_t t = token(head, slot);
    return lookahead_.begin <= t && t < lookahead_.end;
  };
  const KvView view = biased(all, [&](int32_t head, int32_t slot) {
    const int32_t t = token(head, slot);
    const bool seen = t < lookahead_.replay.n_sinks || repeated(head, slot) || t >= lookahead_.first_own;
    return seen ? 0.0f : -std::numeric_limits<float>::infinity();
  });
  AttentionStats stats = window_stats(observed);
  stats.n_after = n_after_.data() + n_old;
  const AttentionArgs args = args_of(observed, observed.tokens.data() + n_old);
  backend_.attention_stats(observed.q.slice_rows(n_old, observed.q.rows()), view, args, stats);
  const int64_t group = observed.q.dim(1) / view.n_kv_heads;
  for (const Tensor* t : {&stats.column_sums, &stats.column_max, &stats.below_counts, &stats.seen_counts}) {
    for (int64_t h = 0; !t->empty() && h < t->rows(); ++h) {
      const auto head = static_cast<int32_t>(h / group);
      for (int32_t i = 0; i < view.n_slots[head]; ++i) {
        if (!repeated(head, i)) t->row<float>(h)[i] = 0;
      }
    }
  }
  join_window(stats, most_slots(view), capture_.layers[static_cast<size_t>(layer_index)]);
}

AttentionStats CaptureHooks::window_stats(const Observed& observed) {
  const CaptureRequest& r = capture_.request;
  AttentionStats stats;
  stats.rule = r.small_is_uniform ? AttentionStats::Rule::kUniform : AttentionStats::Rule::kRowMax;
  stats.threshold = r.threshold;
  if (r.window_sums) stats.column_sums = scratch(0, observed);
  if (r.window_max) stats.column_max = scratch(1, observed);
  if (r.window_counts) {
    stats.below_counts = scratch(2, observed);
    stats.seen_counts = scratch(3, observed);
  }
  return stats;
}

void CaptureHooks::join_window(const AttentionStats& stats, int32_t n_columns, LayerCapture& layer) const {
  const CaptureRequest& r = capture_.request;
  if (r.window_sums) reduce(stats.column_sums, n_columns, /*maxima=*/false, layer.window_sums);
  if (r.window_max) reduce(stats.column_max, n_columns, /*maxima=*/true, layer.window_max);
  if (r.window_counts) {
    reduce(stats.below_counts, n_columns, /*maxima=*/false, layer.below_counts);
    reduce(stats.seen_counts, n_columns, /*maxima=*/false, layer.seen_counts);
  }
}

// Joins [H, n] of query heads to [Hk, n] of kv heads, and with the sums of earlier chunks.
void CaptureHooks::reduce(const Tensor& heads, int32_t n_columns, bool maxima, const Tensor& sum) const {
  using Reduce = CaptureRequest::Reduce;
  const int64_t group = heads.rows() / sum.rows();
  const float factor = capture_.request.reduce == Reduce::kMean ? 1.0f / static_cast<float>(group) : 1.0f;
  n_columns = std::min(n_columns, static_cast<int32_t>(sum.dim(1)));  // slots of a draft have none
  std::vector<float> joined(static_cast<size_t>(n_columns));
  for (int64_t kv_head = 0; kv_head < sum.rows(); ++kv_head) {
    std::ranges::fill(joined, 0.0f);
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const float* x = heads.row<float>(h);
      if (capture_.request.reduce == Reduce::kMax) {
        for (size_t j = 0; j < joined.size(); ++j) joined[j] = std::max(joined[j], x[j]);
      } else {
        for (size_t j = 0; j < joined.size(); ++j) joined[j] += x[j] * factor;
      }
    }
    float* y = sum.row<float>(kv_head);
    for (size_t j = 0; j < joined.size(); ++j) y[j] = maxima ? std::max(y[j], joined[j]) : y[j] + joined[j];
  }
}

}  // namespace vlcache
