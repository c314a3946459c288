// The forward pass of the language model, from top to bottom; every shape is in the header.
#include "model/text_decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace vlcache {
namespace {

// Slots that a sequence may gain before the buffer of its scores has to grow: 4 KiB per query head.
constexpr int64_t kMoreSlots = 1024;

}  // namespace

TextDecoder::TextDecoder(const TextConfig& config, const TextWeights& weights, Backend& backend)
    : config_(config),
      weights_(weights),
      backend_(backend),
      widest_(config.widest()),
      ropes_(config),
      rotations_(static_cast<size_t>(ropes_.n())) {}

void TextDecoder::embed(std::span<const int32_t> ids, const Tensor& x) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= config_.vocab_size) {
      throw Error(ErrorCode::kInput, "token id " + std::to_string(id) + " is outside the vocabulary of " +
                                         std::to_string(config_.vocab_size));
    }
  }
  backend_.embed(ids, weights_.embed, x);
  const float factor = config_.embedding_scale / config_.residual_scale;
  if (factor != 1.0f) backend_.scale(x, factor, x);
}

int64_t TextDecoder::workspace_bytes(const TextConfig& config, DType compute_dtype, int64_t n_rows) {
  const TextLayer most = config.widest();
  const int64_t values = (3 + 2 * most.n_experts_used) * config.hidden_size + 3 * most.q_size() + 4 * most.kv_size() +
                         3 * most.mlp_width() + most.n_experts;
  const int64_t floats = std::ssize(config.ropes) * 4 * (most.head_dim / 2) + most.n_heads + 2 * most.n_experts_used;
  return n_rows * (values * dtype_bytes(compute_dtype) + floats * int64_t{sizeof(float)});
}

void TextDecoder::reserve(int64_t n_rows) {
  if (n_rows <= capacity_) return;
  const int64_t element = dtype_bytes(backend_.compute_dtype());
  const auto room = [&](Buffer& buffer, int64_t width, int64_t size) {
    buffer = Buffer();  // first free, then allocate: the peak stays at one workspace
    buffer = Buffer(n_rows * width * size);
  };
  room(x_spare_[0], config_.hidden_size, element);
  room(x_spare_[1], config_.hidden_size, element);
  room(normed_, config_.hidden_size, element);
  room(qkv_, widest_.q_size() + 2 * widest_.kv_size(), element);
  room(k_rotated_, widest_.kv_size(), element);
  room(k_rounded_, widest_.kv_size(), element);
  room(q_sinks_, widest_.q_size(), element);
  room(attended_, widest_.q_size(), element);
  room(gate_up_, 2 * widest_.mlp_width(), element);
  room(act_, widest_.mlp_width(), element);
  room(router_logits_, widest_.n_experts, element);
  room(routed_, widest_.n_experts_used, sizeof(int32_t));
  room(routed_weights_, widest_.n_experts_used, sizeof(float));
  for (Buffer* rows : {&expert_in_, &expert_out_}) room(*rows, widest_.n_experts_used * config_.hidden_size, element);
  room(lse_, widest_.n_heads, sizeof(float));
  for (Rotation& r : rotations_) {
    for (Buffer* table : {&r.cos, &r.sin, &r.cos_sinks, &r.sin_sinks})
      room(*table, widest_.head_dim / 2, sizeof(float));
  }
  rows_.reserve(n_rows);
  for (std::vector<int32_t>* list : {&keep_, &logit_rows_, &n_after_}) list->reserve(static_cast<size_t>(n_rows));
  sink_positions_.reserve(static_cast<size_t>(n_rows));
  if (config_.learned_positions) position_ids_.reserve(static_cast<size_t>(n_rows));
  capacity_ = n_rows;
}

Tensor TextDecoder::rows_of(const Buffer& buffer, int64_t width) const {
  return Tensor(buffer.data(), backend_.compute_dtype(), {rows_.n(), width});
}

Tensor TextDecoder::table_of(int rope, Buffer Rotation::*which) const {
  return Tensor((rotations_[static_cast<size_t>(rope)].*which).data(), DType::kF32,
                {rows_.n(), std::ssize(ropes_.table(rope).frequencies())});
}

void TextDecoder::multiply(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) const {
  if (inputs_ != nullptr) inputs_->add(w.name, x);
  backend_.matmul(x, w, y, epilogue);
}

void TextDecoder::multiply_experts(const Tensor& x, std::span<const Weight> experts, const Tensor& y,
                                   const std::string& like) const {
  for (size_t i = 0; inputs_ != nullptr && i < experts.size(); ++i) {
    inputs_->add(experts[i].name, x.slice_rows(expert_ends_[i], expert_ends_[i + 1]), like);
  }
  backend_.grouped_matmul(x, experts, expert_ends_, y);
}

void TextDecoder::begin_step(const StepInput& step) {
  CHECK(step.x.rows() == static_cast<int64_t>(step.tokens.size()) && step.kv != nullptr);
  CHECK(step.x.row_size() == config_.hidden_size && step.x.dtype == backend_.compute_dtype());
  reserve(step.x.rows());
  x_ = step.x;
  rows_.begin(step);
  fill_rope(step.pattern);
  if (config_.learned_positions && step.layers.begin == 0) add_positions();
}

void TextDecoder::add_positions() {
  position_ids_.clear();
  for (const Position& p : rows_.positions()) {
    if (p.t >= config_.max_positions) {
      throw Error(ErrorCode::kInput, "position " + std::to_string(p.t) + " is beyond the model's " +
                                         std::to_string(config_.max_positions) + " learned positions");
    }
    position_ids_.push_back(p.t);
  }
  const Tensor rows = rows_of(normed_, config_.hidden_size);
  backend_.embed(position_ids_, weights_.positions, rows);
  backend_.add(x_, rows, x_);
}

void TextDecoder::norm(const Tensor& w, const Tensor& b, const Tensor& y) const {
  if (config_.layer_norm) {
    backend_.layer_norm(x_, w, b, config_.norm_eps, y);
  } else {
    backend_.rms_norm(x_, w, config_.norm_eps, y);
  }
}

void TextDecoder::fill_rope(const AttentionPattern& pattern) {
  for (int32_t i = 0; i < ropes_.n(); ++i) {
    ropes_.table(i).fill(rows_.positions(), table_of(i, &Rotation::cos), table_of(i, &Rotation::sin));
  }
  if (pattern.n_sinks == 0) return;
  const int32_t last = pattern.n_sinks + pattern.window - 1;
  sink_positions_.clear();
  for (const Position& p : rows_.positions()) sink_positions_.push_back(p.capped(last));
  for (int32_t i = 0; i < ropes_.n(); ++i) {
    ropes_.table(i).fill(sink_positions_, table_of(i, &Rotation::cos_sinks), table_of(i, &Rotation::sin_sinks));
  }
}

void TextDecoder::forward(const StepInput& step) {
  if (step.x.rows() == 0) return;
  begin_step(step);
  const auto n_layers = static_cast<int32_t>(config_.n_layers);
  const int32_t end = std::min(step.layers.end, n_layers);
  CHECK(0 <= step.layers.begin && step.layers.begin < end && (end == n_layers || step.logit_rows.empty()));
  for (int32_t layer = step.layers.begin; layer < end; ++layer) {
    attend(layer, step);
    if (rows_.n() == 0) return;
    mix_and_feed(layer);
    if (layer < std::ssize(step.addends)) add_addends(layer, step);
    if (step.after_layer != nullptr) {
      (*step.after_layer)(static_cast<double>(layer + 1 - step.layers.begin) / (end - step.layers.begin));
    }
  }
  if (end < n_layers) {
    leave(step);
  } else {
    write_logits(step);
  }
}

TextDecoder::Projected TextDecoder::project(int layer, const StepInput& step) {
  const TextLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const TextLayer& l = config_.layer(layer);
  const int64_t n = rows_.n(), q_size = l.q_size(), kv_size = l.kv_size(), d = l.head_dim;
  Projected p;
  p.normed = rows_of(normed_, config_.hidden_size);
  norm(w.attn_norm, w.attn_norm_b, p.normed);
  const Tensor qkv = rows_of(qkv_, q_size + 2 * kv_size);
  multiply(p.normed, w.qkv, qkv, {.bias = or_null(w.qkv_bias)});
  p.q = qkv.columns(0, q_size).view({n, l.n_heads, d});
  p.k = qkv.columns(q_size, q_size + kv_size).view({n, l.n_kv_heads, d});
  p.v = qkv.columns(q_size + kv_size, q_size + 2 * kv_size).view({n, l.n_kv_heads, d});
  if (config_.qk_norm) {
    backend_.rms_norm(p.q, w.q_norm, config_.norm_eps, p.q);
    backend_.rms_norm(p.k, w.k_norm, config_.norm_eps, p.k);
  }
  round_keys(p.k, step.kv->codec());
  p.k_rotated = rows_of(k_rotated_, kv_size).view({n, l.n_kv_heads, d});
  backend_.rope(p.k, table_of(l.rope, &Rotation::cos), table_of(l.rope, &Rotation::sin), p.k_rotated);
  if (step.pattern.n_sinks > 0) {
    p.q_sinks = rows_of(q_sinks_, q_size).view({n, l.n_heads, d});
    backend_.rope(p.q, table_of(l.rope, &Rotation::cos_sinks), table_of(l.rope, &Rotation::sin_sinks), p.q_sinks);
  }
  backend_.rope(p.q, table_of(l.rope, &Rotation::cos), table_of(l.rope, &Rotation::sin), p.q);
  return p;
}

void TextDecoder::attend(int layer, const StepInput& step) {
  const Projected p = project(layer, step);
  store(layer, step, p);
  plan_attention(step);
  const TextLayer& l = config_.layer(layer);
  const int32_t own_window = l.window, asked = step.pattern.window;
  AttentionArgs args = {
      .scale = config_.attention_scale > 0 ? config_.attention_scale : 1.0f / std::sqrt(static_cast<float>(l.head_dim)),
      .window = own_window > 0 && asked > 0 ? std::min(own_window, asked) : std::max(own_window, asked),
      .n_sinks = step.pattern.n_sinks,
      .q_sinks = step.pattern.n_sinks > 0 ? &p.q_sinks : nullptr,
      .positions = rows_.tokens().data(),
      .sink_logits = weights_.layers[static_cast<size_t>(layer)].attn_sinks,
      .share = step.share_attention};
  if (step.hooks != nullptr) {
    want_scores(layer, *step.hooks);
    args.lse = Tensor(lse_.data(), DType::kF32, {rows_.n(), l.n_heads});
  }
  const Tensor attended = rows_of(attended_, l.q_size());
  backend_.attention(p.q, attention_, args, attended.view({rows_.n(), l.n_heads, l.head_dim}));
  if (choose_rows(layer, step, p, args)) keep_rows(layer, step);
}

// Stores K and V of every run in step.kv; views_ is what the runs attend to.
void TextDecoder::store(int layer, const StepInput& step, const Projected& p) {
  views_.clear();
  own_view_.clear();
  for (const RowRun& run : rows_.runs()) {
    const int64_t begin = run.row_begin, end = begin + run.n_rows;
    const KvView full =
        step.kv->append(layer, run, rows_.tokens_of(run), p.k.slice_rows(begin, end), p.v.slice_rows(begin, end));
    backend_.kv_write(p.k_rotated.slice_rows(begin, end), p.v.slice_rows(begin, end), full);
    step.kv->written(layer, run);
    views_.push_back(full);
    if (step.hooks != nullptr) {
      views_.back() = step.hooks->view(layer, run, p.q.slice_rows(begin, end), p.normed.slice_rows(begin, end), full);
    }
    const KvView& seen = views_.back();
    own_view_.push_back(seen.n_slots != full.n_slots || seen.pages != full.pages || seen.slot_bias != full.slot_bias);
  }
}

// Runs of one sequence share a call, each row with a limit of its own, so that pages are read once for all of them,
// unless a hook gave one of them another view.
void TextDecoder::plan_attention(const StepInput& step) {
  const std::span<const RowRun> runs = rows_.runs();
  n_after_.resize(static_cast<size_t>(rows_.n()));
  attention_.clear();
  for (size_t i = 0, end = 0; i < runs.size(); i = end) {
    bool own_view = false;
    for (end = i; end < runs.size() && runs[end].seq == runs[i].seq; ++end) own_view = own_view || own_view_[end];
    if (end == i + 1 || own_view) {
      for (size_t r = i; r < end; ++r) {
        attention_.push_back({.row_begin = runs[r].row_begin, .n_rows = runs[r].n_rows, .kv = views_[r]});
      }
      continue;
    }
    AttentionSeq together{.row_begin = runs[i].row_begin, .n_rows = 0, .kv = views_[end - 1]};
    together.n_after = n_after_.data() + together.row_begin;
    for (size_t r = i; r < end; ++r) {
      int32_t n_after = together.kv.n_slots[0] - views_[r].n_slots[0] + runs[r].n_rows;
      for (int32_t row = 0; row < runs[r].n_rows; ++row) {
        n_after_[static_cast<size_t>(runs[r].row_begin + row)] = --n_after;
      }
      together.n_rows += runs[r].n_rows;
    }
    attention_.push_back(together);
  }
  for (size_t i = 0, run = 0; i < attention_.size() && !step.kv_reads.empty(); ++i) {
    while (runs[run].row_begin < attention_[i].row_begin) ++run;
    attention_[i].reads = &step.kv_reads[static_cast<size_t>(runs[run].seq)];
  }
}

// Makes room for the logits of sequences with one row whose hooks request them.
void TextDecoder::want_scores(int layer, LayerHooks& hooks) {
  scores_.clear();
  const std::span<const RowRun> runs = rows_.runs();
  int64_t n_values = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool alone = runs[i].n_rows == 1 && (i == 0 || runs[i - 1].seq != runs[i].seq) &&
                       (i + 1 == runs.size() || runs[i + 1].seq != runs[i].seq);
    if (!alone || !hooks.wants_scores(layer, runs[i].seq)) continue;
    const KvView& view = views_[i];
    const int64_t most = *std::max_element(view.n_slots, view.n_slots + view.n_kv_heads);
    scores_.resize(runs.size());
    scores_[i] = Tensor(nullptr, DType::kF32, {config_.layer(layer).n_heads, most});
    n_values += scores_[i].numel();
  }
  const int64_t bytes = n_values * dtype_bytes(DType::kF32);
  if (bytes > score_values_.bytes()) {  // with room to grow, since slots are added one by one
    score_values_ = Buffer(bytes + rows_.n() * widest_.n_heads * kMoreSlots * dtype_bytes(DType::kF32));
  }
  std::byte* at = score_values_.data();
  for (AttentionSeq& seq : attention_) {
    for (size_t i = 0; i < scores_.size(); ++i) {
      if (runs[i].row_begin != seq.row_begin || scores_[i].rank == 0) continue;
      scores_[i].data = at;
      seq.logits = scores_[i].as<float>();
      seq.logits_stride = scores_[i].row_size();
      at += scores_[i].bytes();
    }
  }
}

// Rounds K to the codec's precision before rotation, so that the stored key and a reused and rotated one are the same
// number.
void TextDecoder::round_keys(const Tensor& k, KvCodec codec) {
  if (codec != KvCodec::kBF16 || backend_.compute_dtype() == DType::kBF16) return;
  const Tensor rounded(k_rounded_.data(), DType::kBF16, {rows_.n(), k.dim(1), k.dim(2)});
  backend_.convert(k, rounded);
  backend_.convert(rounded, k);
}

// Puts the rows that continue into keep_; returns false if all do. After the last attention only rows with logits
// matter.
bool TextDecoder::choose_rows(int layer, const StepInput& step, const Projected& p, const AttentionArgs& args) {
  keep_.clear();
  bool some = false;
  if (step.hooks != nullptr) {
    const Observed observed = {.runs = rows_.runs(),
                               .tokens = rows_.tokens(),
                               .positions = rows_.positions(),
                               .views = views_,
                               .q = p.q,
                               .k = p.k,
                               .v = p.v,
                               .scores = scores_,
                               .lse = args.lse,
                               .sink_logits = args.sink_logits,
                               .scale = args.scale,
                               .cos = table_of(ropes_.index(layer), &Rotation::cos),
                               .sin = table_of(ropes_.index(layer), &Rotation::sin),
                               .frequencies = ropes_.of(layer).frequencies(),
                               .axes = ropes_.of(layer).axes(),
                               .window = args.window};
    some = step.hooks->after_attention(layer, observed, keep_);
  }
  if (layer + 1 < config_.n_layers) return some && static_cast<int64_t>(keep_.size()) < rows_.n();
  rows_.find(step.logit_rows, logit_rows_);
  CHECK(!some || std::ranges::includes(keep_, logit_rows_));  // a hook dropped a row whose logits were requested
  std::swap(keep_, logit_rows_);
  return static_cast<int64_t>(keep_.size()) < rows_.n();
}

// Narrows the step to the rows in keep_: the residual stream and the attention output move to spare buffers.
void TextDecoder::keep_rows(int layer, const StepInput& step) {
  const int64_t q_size = config_.layer(layer).q_size();
  const auto n = static_cast<int64_t>(keep_.size());
  if (n > 0) {
    const Tensor attended = rows_of(attended_, q_size);
    // The sinks' queries are no longer needed in this layer: their buffer, of the same size, gets the kept rows.
    backend_.gather_rows(attended, keep_, Tensor(q_sinks_.data(), attended.dtype, {n, q_size}));
    std::swap(attended_, q_sinks_);
    const Buffer& spare = x_spare_[x_.data == x_spare_[0].data() ? 1 : 0];
    const Tensor kept(spare.data(), x_.dtype, {n, config_.hidden_size});
    backend_.gather_rows(x_, keep_, kept);
    x_ = kept;
  }
  rows_.keep(keep_, *step.kv);
  fill_rope(step.pattern);
}

void TextDecoder::mix_and_feed(int layer) {
  const TextLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const TextLayer& l = config_.layer(layer);
  const Tensor normed = rows_of(normed_, config_.hidden_size);
  if (config_.post_norms) {
    multiply(rows_of(attended_, l.q_size()), w.o, normed, {.bias = or_null(w.o_bias)});
    add_normed(normed, w.post_attn_norm);
  } else {
    multiply(rows_of(attended_, l.q_size()), w.o, x_, {.bias = or_null(w.o_bias), .residual = &x_});
  }
  norm(w.mlp_norm, w.mlp_norm_b, normed);
  if (l.n_experts > 0) {
    feed_experts(layer, normed);
    return;
  }
  const Tensor act = rows_of(act_, l.ffn_size);
  if (config_.gated_mlp) {
    const Tensor gate_up = rows_of(gate_up_, 2 * l.ffn_size);
    multiply(normed, w.gate_up, gate_up, {.bias = or_null(w.gate_up_bias)});
    backend_.gated_act(gate_up, config_.activation, act);
  } else {
    multiply(normed, w.gate_up, act, {.bias = or_null(w.gate_up_bias), .act = config_.activation});
  }
  if (config_.post_norms) {
    multiply(act, w.down, normed, {.bias = or_null(w.down_bias)});
    add_normed(normed, w.post_mlp_norm);
  } else {
    multiply(act, w.down, x_, {.bias = or_null(w.down_bias), .residual = &x_});
  }
}

// Adds rows to the residual stream after a norm of their own.
void TextDecoder::add_normed(const Tensor& rows, const Tensor& norm) {
  backend_.rms_norm(rows, norm, config_.norm_eps, rows);
  backend_.add(x_, rows, x_);
}

// Rows are gathered by expert, so that each expert's weights are read once; what they give back is summed by row.
void TextDecoder::feed_experts(int layer, const Tensor& normed) {
  const TextLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const TextLayer& l = config_.layer(layer);
  const int64_t n = rows_.n(), k = l.n_experts_used, hidden = config_.hidden_size;
  const DType dtype = backend_.compute_dtype();
  const Tensor logits = rows_of(router_logits_, l.n_experts);
  const Tensor ids(routed_.data(), DType::kI32, {n, k}), shares(routed_weights_.data(), DType::kF32, {n, k});
  multiply(normed, w.router, logits);
  backend_.route(logits, ids, shares);
  const std::span<const int32_t> experts(ids.as<int32_t>(), static_cast<size_t>(n * k));
  expert_ends_.assign(static_cast<size_t>(l.n_experts + 1), 0);
  for (const int32_t expert : experts) ++expert_ends_[static_cast<size_t>(expert) + 1];
  std::partial_sum(expert_ends_.begin(), expert_ends_.end(), expert_ends_.begin());
  expert_rows_.resize(experts.size());
  expert_at_.resize(experts.size());
  std::vector<int32_t>& next = expert_ends_;  // while rows are placed: the place of an expert's next row
  for (size_t i = 0; i < experts.size(); ++i) {
    const int32_t at = next[static_cast<size_t>(experts[i])]++;
    expert_rows_[static_cast<size_t>(at)] = static_cast<int32_t>(i) / static_cast<int32_t>(k);
    expert_at_[i] = at;
  }
  std::shift_right(expert_ends_.begin(), expert_ends_.end(), 1);  // an expert's end is where the next one begins
  expert_ends_[0] = 0;
  const auto rows = [&](const Buffer& buffer, int64_t width) { return Tensor(buffer.data(), dtype, {n * k, width}); };
  const Tensor in = rows(expert_in_, hidden), out = rows(expert_out_, hidden);
  const Tensor gate_up = rows(gate_up_, 2 * l.ffn_size), act = rows(act_, l.ffn_size);
  backend_.gather_rows(normed, expert_rows_, in);
  multiply_experts(in, w.experts_gate_up, gate_up, w.router.name);
  backend_.gated_act(gate_up, config_.activation, act);
  multiply_experts(act, w.experts_down, out, "");  // what one expert has computed is of no other
  backend_.combine_rows(x_, out, Tensor(expert_at_.data(), DType::kI32, {n, k}), shares, x_);
}

void TextDecoder::add_addends(int layer, const StepInput& step) {
  const std::span<const int32_t> ids = rows_.ids(), rows = step.addend_rows;
  const Tensor& addend = step.addends[static_cast<size_t>(layer)];
  CHECK(addend.rows() == std::ssize(rows) && addend.row_size() == config_.hidden_size);
  size_t row = 0, next = 0;
  while (row < ids.size() && next < rows.size()) {
    if (ids[row] != rows[next]) {
      ++(ids[row] < rows[next] ? row : next);
      continue;
    }
    size_t n = 1;  // as many as follow each other in both
    while (row + n < ids.size() && next + n < rows.size() && ids[row + n] == rows[next + n]) ++n;
    const auto at = static_cast<int64_t>(row), from = static_cast<int64_t>(next), many = static_cast<int64_t>(n);
    const Tensor x = x_.slice_rows(at, at + many);
    backend_.add(x, addend.slice_rows(from, from + many), x);
    row += n, next += n;
  }
}

// The range ends early: the hidden states of the remaining rows are written back to the step's x.
void TextDecoder::leave(const StepInput& step) {
  if (x_.data != step.x.data) backend_.scatter_rows(x_, rows_.ids(), step.x);
}

void TextDecoder::write_logits(const StepInput& step) {
  const auto n_logits = static_cast<int64_t>(step.logit_rows.size());
  CHECK(step.logits.rows() == n_logits && step.logits.row_size() == config_.vocab_size && rows_.n() == n_logits);
  const Tensor last = rows_of(normed_, config_.hidden_size);
  norm(weights_.final_norm, weights_.final_norm_b, last);
  backend_.matmul(last, weights_.output(), step.logits);
  if (config_.logit_scale != 1.0f) backend_.scale(step.logits, config_.logit_scale, step.logits);
}

}  // namespace vlcache
