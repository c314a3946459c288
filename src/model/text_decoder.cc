// The forward pass of the language model. Reads top to bottom; every shape is in the header.
#include "model/text_decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace vlcache {
namespace {

const Tensor* or_null(const Tensor& t) { return t.empty() ? nullptr : &t; }

}  // namespace

TextDecoder::TextDecoder(const TextConfig& config, const TextWeights& weights, Backend& backend)
    : config_(config),
      weights_(weights),
      backend_(backend),
      rope_(config.rope, config.head_dim),
      scale_(1.0f / std::sqrt(static_cast<float>(config.head_dim))) {}

void TextDecoder::embed(std::span<const int32_t> ids, const Tensor& x) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= config_.vocab_size) {
      throw Error(ErrorCode::kInput, "token id " + std::to_string(id) + " is outside the vocabulary of " +
                                         std::to_string(config_.vocab_size));
    }
  }
  backend_.embed(ids, weights_.embed, x);
}

int64_t TextDecoder::workspace_bytes(const TextConfig& config, DType compute_dtype, int64_t n_rows) {
  const int64_t values = 3 * config.hidden_size + 3 * config.q_size() + 4 * config.kv_size() + 3 * config.ffn_size;
  return n_rows * (values * dtype_bytes(compute_dtype) + 4 * (config.head_dim / 2) * int64_t{sizeof(float)});
}

void TextDecoder::reserve(int64_t n_rows) {
  if (n_rows <= capacity_) return;
  const int64_t element = dtype_bytes(backend_.compute_dtype());
  const auto room = [&](Buffer& buffer, int64_t width, int64_t size) {
    buffer = Buffer();  // first give back, then take: the peak stays at one workspace
    buffer = Buffer(n_rows * width * size);
  };
  room(x_spare_[0], config_.hidden_size, element);
  room(x_spare_[1], config_.hidden_size, element);
  room(normed_, config_.hidden_size, element);
  room(qkv_, config_.q_size() + 2 * config_.kv_size(), element);
  room(k_rotated_, config_.kv_size(), element);
  room(k_rounded_, config_.kv_size(), element);
  room(q_sinks_, config_.q_size(), element);
  room(attended_, config_.q_size(), element);
  room(gate_up_, 2 * config_.ffn_size, element);
  room(act_, config_.ffn_size, element);
  for (Buffer* table : {&cos_, &sin_, &cos_sinks_, &sin_sinks_}) room(*table, config_.head_dim / 2, sizeof(float));
  const auto n = static_cast<size_t>(n_rows);
  row_ids_.reserve(n);
  positions_.reserve(n);
  sink_positions_.reserve(n);
  keep_.reserve(n);
  capacity_ = n_rows;
}

Tensor TextDecoder::rows_of(const Buffer& buffer, int64_t width) const {
  return Tensor(buffer.data(), backend_.compute_dtype(), {n_, width});
}

Tensor TextDecoder::table_of(const Buffer& buffer) const {
  return Tensor(buffer.data(), DType::kF32, {n_, config_.head_dim / 2});
}

void TextDecoder::begin_step(const StepInput& step) {
  n_ = step.x.rows();
  CHECK(n_ == static_cast<int64_t>(step.positions.size()) && step.kv != nullptr);
  CHECK(step.x.row_size() == config_.hidden_size && step.x.dtype == backend_.compute_dtype());
  reserve(n_);
  x_ = step.x;
  row_ids_.resize(static_cast<size_t>(n_));
  std::iota(row_ids_.begin(), row_ids_.end(), 0);
  positions_.assign(step.positions.begin(), step.positions.end());
  seqs_.assign(step.seqs.begin(), step.seqs.end());
  views_.resize(seqs_.size());
  attention_seqs_.resize(seqs_.size());
  fill_rope(step.pattern);
}

void TextDecoder::fill_rope(const AttentionPattern& pattern) {
  rope_.fill(positions_, table_of(cos_), table_of(sin_));
  if (pattern.n_sinks == 0) return;
  const int32_t last = pattern.n_sinks + pattern.window - 1;
  sink_positions_.clear();
  for (const int32_t p : positions_) sink_positions_.push_back(std::min(p, last));
  rope_.fill(sink_positions_, table_of(cos_sinks_), table_of(sin_sinks_));
}

void TextDecoder::forward(const StepInput& step) {
  if (step.x.rows() == 0) return;
  begin_step(step);
  const auto n_layers = static_cast<int>(config_.n_layers);
  for (int layer = 0; layer < n_layers; ++layer) {
    attend(layer, step);
    // Behind the last attention only rows whose logits are wanted matter, unless somebody watches.
    if (layer == n_layers - 1 && step.hooks == nullptr) keep_logit_rows(step);
    if (n_ == 0) return;
    mix_and_feed(layer);
    if (step.hooks != nullptr) ask_rows(layer, step);
  }
  write_logits(step);
}

void TextDecoder::attend(int layer, const StepInput& step) {
  const TextLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t q_size = config_.q_size(), kv_size = config_.kv_size(), d = config_.head_dim;
  const Tensor normed = rows_of(normed_, config_.hidden_size);
  backend_.rms_norm(x_, w.attn_norm, config_.rms_norm_eps, normed);
  const Tensor qkv = rows_of(qkv_, q_size + 2 * kv_size);
  backend_.matmul(normed, w.qkv, qkv, {.bias = or_null(w.qkv_bias)});
  const Tensor q = qkv.columns(0, q_size).view({n_, config_.n_heads, d});
  const Tensor k = qkv.columns(q_size, q_size + kv_size).view({n_, config_.n_kv_heads, d});
  const Tensor v = qkv.columns(q_size + kv_size, q_size + 2 * kv_size).view({n_, config_.n_kv_heads, d});
  if (config_.qk_norm) {
    backend_.rms_norm(q, w.q_norm, config_.rms_norm_eps, q);
    backend_.rms_norm(k, w.k_norm, config_.rms_norm_eps, k);
  }
  round_keys(k, step.kv->codec());
  const Tensor k_rotated = rows_of(k_rotated_, kv_size).view({n_, config_.n_kv_heads, d});
  backend_.rope(k, table_of(cos_), table_of(sin_), k_rotated);
  const Tensor q_sinks = rows_of(q_sinks_, q_size).view({n_, config_.n_heads, d});
  if (step.pattern.n_sinks > 0) backend_.rope(q, table_of(cos_sinks_), table_of(sin_sinks_), q_sinks);
  backend_.rope(q, table_of(cos_), table_of(sin_), q);

  for (size_t i = 0; i < seqs_.size(); ++i) {
    const int64_t begin = seqs_[i].row_begin, end = begin + seqs_[i].n_rows;
    const std::span<const int32_t> positions(positions_.data() + begin, static_cast<size_t>(seqs_[i].n_rows));
    views_[i] = step.kv->append(layer, seqs_[i], positions, k.slice_rows(begin, end), v.slice_rows(begin, end));
    backend_.kv_write(k_rotated.slice_rows(begin, end), v.slice_rows(begin, end), views_[i]);
    if (step.hooks != nullptr) {
      views_[i] = step.hooks->view(layer, seqs_[i], q.slice_rows(begin, end), normed.slice_rows(begin, end), views_[i]);
    }
    attention_seqs_[i] = {.row_begin = seqs_[i].row_begin, .n_rows = seqs_[i].n_rows, .kv = views_[i]};
  }
  const int32_t own_window = config_.windows[static_cast<size_t>(layer)], asked = step.pattern.window;
  const AttentionArgs args = {
      .scale = scale_,
      .window = own_window > 0 && asked > 0 ? std::min(own_window, asked) : std::max(own_window, asked),
      .n_sinks = step.pattern.n_sinks,
      .q_sinks = step.pattern.n_sinks > 0 ? &q_sinks : nullptr,
      .positions = positions_.data()};
  backend_.attention(q, attention_seqs_, args, rows_of(attended_, q_size).view({n_, config_.n_heads, d}));
}

// K enters the cache as its codec can hold it, before rotation: what is stored, reused and rotated later is then the
// same number.
void TextDecoder::round_keys(const Tensor& k, KvCodec codec) {
  if (codec != KvCodec::kBF16 || backend_.compute_dtype() == DType::kBF16) return;
  const Tensor rounded(k_rounded_.data(), DType::kBF16, {n_, k.dim(1), k.dim(2)});
  backend_.convert(k, rounded);
  backend_.convert(rounded, k);
}

void TextDecoder::mix_and_feed(int layer) {
  const TextLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  backend_.matmul(rows_of(attended_, config_.q_size()), w.o, x_, {.bias = or_null(w.o_bias), .residual = &x_});
  const Tensor normed = rows_of(normed_, config_.hidden_size);
  backend_.rms_norm(x_, w.mlp_norm, config_.rms_norm_eps, normed);
  const Tensor gate_up = rows_of(gate_up_, 2 * config_.ffn_size), act = rows_of(act_, config_.ffn_size);
  backend_.matmul(normed, w.gate_up, gate_up, {.bias = or_null(w.gate_up_bias)});
  backend_.gated_act(gate_up, config_.activation, act);
  backend_.matmul(act, w.down, x_, {.bias = or_null(w.down_bias), .residual = &x_});
}

void TextDecoder::ask_rows(int layer, const StepInput& step) {
  const int64_t q_size = config_.q_size(), kv_size = config_.kv_size(), d = config_.head_dim;
  const Tensor qkv = rows_of(qkv_, q_size + 2 * kv_size);
  const Tensor q = qkv.columns(0, q_size).view({n_, config_.n_heads, d});
  const Tensor k = qkv.columns(q_size, q_size + kv_size).view({n_, config_.n_kv_heads, d});
  const Tensor v = qkv.columns(q_size + kv_size, q_size + 2 * kv_size).view({n_, config_.n_kv_heads, d});
  keep_.clear();
  step.hooks->rows_after(
      layer, {.seqs = seqs_, .positions = positions_, .views = views_, .q = q, .k = k, .v = v, .hidden = x_}, keep_);
  if (keep_.empty() || static_cast<int64_t>(keep_.size()) == n_) return;
  keep_rows();
  fill_rope(step.pattern);
}

void TextDecoder::keep_logit_rows(const StepInput& step) {
  if (static_cast<int64_t>(step.logit_rows.size()) == n_) return;
  keep_.assign(step.logit_rows.begin(),
               step.logit_rows.end());  // no row was dropped: row numbers are those of the input
  if (keep_.empty()) {
    n_ = 0;
    return;
  }
  const Tensor attended = rows_of(attended_, config_.q_size());
  // The sinks' queries have served this layer: their buffer, of the same size, takes the kept rows.
  backend_.gather_rows(attended, keep_,
                       Tensor(q_sinks_.data(), attended.dtype, {static_cast<int64_t>(keep_.size()), config_.q_size()}));
  std::swap(attended_, q_sinks_);
  keep_rows();
}

// Narrows the step to the rows in keep_: the residual stream moves to a spare buffer, everything else is rebuilt in
// place.
void TextDecoder::keep_rows() {
  CHECK(std::is_sorted(keep_.begin(), keep_.end()) && keep_.front() >= 0 && keep_.back() < n_);
  const Buffer& spare = x_spare_[x_.data == x_spare_[0].data() ? 1 : 0];
  const Tensor kept(spare.data(), x_.dtype, {static_cast<int64_t>(keep_.size()), config_.hidden_size});
  backend_.gather_rows(x_, keep_, kept);
  x_ = kept;
  for (size_t i = 0; i < keep_.size(); ++i) {
    positions_[i] = positions_[static_cast<size_t>(keep_[i])];
    row_ids_[i] = row_ids_[static_cast<size_t>(keep_[i])];
  }
  positions_.resize(keep_.size());
  row_ids_.resize(keep_.size());
  for (SeqRows& seq : seqs_) {
    const auto first = std::lower_bound(keep_.begin(), keep_.end(), seq.row_begin);
    const auto last = std::lower_bound(first, keep_.end(), seq.row_begin + seq.n_rows);
    seq.row_begin = static_cast<int32_t>(first - keep_.begin());
    seq.n_rows = static_cast<int32_t>(last - first);
  }
  n_ = static_cast<int64_t>(keep_.size());
}

void TextDecoder::write_logits(const StepInput& step) {
  const auto n_logits = static_cast<int64_t>(step.logit_rows.size());
  if (n_logits == 0) return;
  CHECK(step.logits.rows() == n_logits && step.logits.row_size() == config_.vocab_size);
  keep_.clear();
  for (const int32_t row : step.logit_rows) {
    const auto at = std::lower_bound(row_ids_.begin(), row_ids_.end(), row);
    CHECK(at != row_ids_.end() && *at == row);  // a hook dropped a row whose logits are wanted
    keep_.push_back(static_cast<int32_t>(at - row_ids_.begin()));
  }
  const Tensor last(normed_.data(), x_.dtype, {n_logits, config_.hidden_size});
  backend_.gather_rows(x_, keep_, last);
  backend_.rms_norm(last, weights_.final_norm, config_.rms_norm_eps, last);
  backend_.matmul(last, weights_.output(), step.logits);
}

}  // namespace vlcache
