#include "engine/sequence/stepper.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace vlcache {

// The caches of a group's sequences, as the forward pass uses them.
class Stepper::StepKv final : public KvAccess {
 public:
  void begin(std::span<const StepItem> items, std::span<const int32_t> members, size_t n_rows) {
    items_ = items;
    members_ = members;
    if (!members.empty()) codec_ = sequence(0).cache().shape().codec;
    layer_ = last_called_ = -1;
    size_t most_heads = 0;
    for (const int32_t m : members) {
      for (const KvLayerShape& shape : items[static_cast<size_t>(m)].sequence->cache().shape().layers) {
        most_heads = std::max(most_heads, static_cast<size_t>(shape.n_kv_heads));
      }
    }
    lengths_.resize(std::max(lengths_.size(), n_rows * most_heads));  // a run has at least one row
    n_heads_ = most_heads;
  }

  KvView append(int layer, const RowRun& run, std::span<const int32_t> tokens, const Tensor& k,
                const Tensor& v) override {
    static_cast<void>(k), static_cast<void>(v);  // position-free keys are for stores; none is attached here
    if (layer != layer_) n_views_ = 0;
    layer_ = layer;
    last_called_ = run.seq;
    const KvView view = sequence(run.seq).append(layer, tokens, lengths_.data() + n_views_++ * n_heads_);
    last_called_ = -1;
    return view;
  }
  void written(int layer, const RowRun& run) override {
    last_called_ = run.seq;
    sequence(run.seq).cache().encode(layer);
    last_called_ = -1;
  }
  bool supplies(int32_t seq, int32_t after, int32_t before) const override {
    return sequence(seq).supplies(after, before);
  }
  KvCodec codec() const override { return codec_; }
  // The sequence whose cache was called last: at fault when it throws.
  int32_t last_called() const { return last_called_; }

 private:
  Sequence& sequence(int32_t seq) const {
    return *items_[static_cast<size_t>(members_[static_cast<size_t>(seq)])].sequence;
  }

  KvCodec codec_ = KvCodec::kBF16;  // values of the group
  std::span<const StepItem> items_;
  std::span<const int32_t> members_;
  int32_t layer_ = -1, last_called_ = -1;
  std::vector<int32_t> lengths_;  // of the views of the current layer, n_heads_ each
  size_t n_heads_ = 0, n_views_ = 0;
};

namespace {

int32_t n_rows_of(const StepItem& item) {
  int32_t n = 0;
  for (const TokenRun& run : item.runs) n += run.end - run.begin;
  return n;
}

bool alike(const StepItem& a, const StepItem& b) {
  return a.sequence->policy().pattern() == b.sequence->policy().pattern() && a.layers == b.layers &&
         a.sequence->cache().shape().codec == b.sequence->cache().shape().codec;
}

// Tokens [from, to) of an item that stand for rows of an image, and the row of the group that the first of them has.
struct ImagePiece {
  const StepItem& item;
  const ImageSpan& span;
  int32_t from = 0, to = 0, first_row = 0;

  const VisionOutput& image() const { return item.images[static_cast<size_t>(span.image)]; }
  int32_t n() const { return to - from; }
  void list_rows(std::vector<int32_t>& rows) const {
    rows.clear();
    for (int32_t token = from; token < to; ++token) rows.push_back(span.row_of(token));
  }
};

// Calls use(ImagePiece) for every piece of an image among the rows of these items, in the order of the rows.
template <typename Use>
void for_each_image_piece(std::span<const StepItem> items, std::span<const int32_t> members, const Use& use) {
  int32_t row = 0;
  for (const int32_t m : members) {
    const StepItem& item = items[static_cast<size_t>(m)];
    for (const TokenRun& run : item.runs) {
      for (const ImageSpan& span : item.sequence->images().spans()) {
        const int32_t from = std::max(run.begin, span.begin), to = std::min(run.end, span.end);
        if (from < to && !item.images.empty()) use(ImagePiece{item, span, from, to, row + from - run.begin});
      }
      row += run.end - run.begin;
    }
  }
}

}  // namespace

Stepper::Stepper(Model& model, bool share_attention)
    : model_(model), share_attention_(share_attention), kv_(std::make_unique<StepKv>()) {}
Stepper::~Stepper() = default;

// Gathers the rows of all items that go through the same layers with the same attention pattern.
void Stepper::gather(std::span<const StepItem> items, const StepItem& like) {
  members_.clear();
  runs_.clear();
  ids_.clear();
  tokens_.clear();
  positions_.clear();
  logit_rows_.clear();
  hooks_.begin();
  const bool to_the_end = like.layers.end >= model_.config().text.n_layers;
  for (size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    if (done_[i] != 0 || !alike(item, like)) continue;
    done_[i] = 1;
    Sequence& s = *item.sequence;
    const auto seq = static_cast<int32_t>(members_.size());
    members_.push_back(static_cast<int32_t>(i));
    blame_ = static_cast<int32_t>(i);
    LayerHooks* policy_hooks = item.preview ? nullptr : s.policy_hooks(model_.backend());
    if (policy_hooks != nullptr) hooks_.add(seq, *policy_hooks);
    blame_ = -1;
    if (item.hooks != nullptr) hooks_.add(seq, *item.hooks);
    int32_t last = -1;
    for (const TokenRun& run : item.runs) {
      CHECK(run.begin < run.end && run.end <= s.n_tokens());
      // Nothing lies between tokens that were dropped before these layers: one run for all.
      const bool goes_on = last >= 0 && run.begin > last + 1 && !s.supplies(last, run.begin);
      if (!goes_on) runs_.push_back({seq, static_cast<int32_t>(ids_.size()), 0});
      runs_.back().n_rows += run.end - run.begin;
      last = run.end - 1;
      for (int32_t t = run.begin; t < run.end; ++t) {
        const TokenInfo& token = s.tokens()[static_cast<size_t>(t)];
        // Entering tokens are dropped before the last layer.
        const bool wanted = item.all_logits && s.state(t) == TokenState::kPending;
        if (to_the_end && (wanted || t + 1 == s.n_tokens())) {
          logit_rows_.push_back(static_cast<int32_t>(ids_.size()));
        }
        ids_.push_back(token.id);
        tokens_.push_back(t);
        positions_.push_back(token.meta.position);
      }
    }
  }
}

// Embeddings of the group's rows: the table's for text, the encoder's for image tokens (whose ids may lie outside the
// table).
void Stepper::embed(std::span<const StepItem> items, const Tensor& x) {
  for_each_image_piece(items, members_,
                       [&](const ImagePiece& piece) { std::fill_n(ids_.begin() + piece.first_row, piece.n(), 0); });
  model_.embed(ids_, x);
  for_each_image_piece(items, members_, [&](const ImagePiece& piece) {
    piece.list_rows(image_rows_);
    model_.backend().gather_rows(piece.image().embeds, image_rows_,
                                 x.slice_rows(piece.first_row, piece.first_row + piece.n()));
  });
}

// What images add to the outputs of the first layers (VisionOutput::extra), if `layers` has any of these.
void Stepper::gather_addends(std::span<const StepItem> items, LayerRange layers) {
  addend_rows_.clear();
  addends_.clear();
  size_t n_layers = 0;
  for_each_image_piece(items, members_, [&](const ImagePiece& piece) {
    const size_t n_extra = piece.image().extra.size();
    n_layers = std::max(n_layers, n_extra);
    for (int32_t i = 0; n_extra > 0 && i < piece.n(); ++i) addend_rows_.push_back(piece.first_row + i);
  });
  if (layers.begin >= static_cast<int64_t>(n_layers)) {
    addend_rows_.clear();
    return;
  }
  const int64_t n = std::ssize(addend_rows_), hidden = model_.config().text.hidden_size;
  const DType dtype = model_.compute_dtype();
  const int64_t layer_bytes = n * hidden * dtype_bytes(dtype), bytes = static_cast<int64_t>(n_layers) * layer_bytes;
  if (bytes > addend_values_.bytes()) addend_values_ = Buffer(bytes);
  for (size_t l = 0; l < n_layers; ++l) {
    addends_.emplace_back(addend_values_.data() + static_cast<int64_t>(l) * layer_bytes, dtype,
                          std::initializer_list<int64_t>{n, hidden});
  }
  int64_t at = 0;
  for_each_image_piece(items, members_, [&](const ImagePiece& piece) {
    if (piece.image().extra.empty()) return;
    piece.list_rows(image_rows_);
    for (size_t l = 0; l < n_layers; ++l) {
      model_.backend().gather_rows(piece.image().extra[l], image_rows_, addends_[l].slice_rows(at, at + piece.n()));
    }
    at += piece.n();
  });
}

void Stepper::take_hidden(std::span<const StepItem> items, const Tensor& x) {
  std::byte* to = x.data;
  for (const int32_t m : members_) {
    const Tensor& hidden = items[static_cast<size_t>(m)].hidden;
    CHECK(hidden.dense() && hidden.dtype == x.dtype && hidden.row_size() == x.row_size());
    std::memcpy(to, hidden.data, static_cast<size_t>(hidden.bytes()));
    to += hidden.bytes();
  }
}

void Stepper::leave_hidden(std::span<const StepItem> items, const Tensor& x) {
  const std::byte* from = x.data;
  for (const int32_t m : members_) {
    const Tensor& hidden = items[static_cast<size_t>(m)].hidden;
    CHECK(hidden.dense() && hidden.dtype == x.dtype && hidden.rows() == n_rows_of(items[static_cast<size_t>(m)]));
    std::memcpy(hidden.data, from, static_cast<size_t>(hidden.bytes()));
    from += hidden.bytes();
  }
}

void Stepper::run_group(std::span<const StepItem> items, const StepItem& like) {
  gather(items, like);
  const auto n = static_cast<int64_t>(ids_.size()), n_logits = static_cast<int64_t>(logit_rows_.size());
  const TextConfig& text = model_.config().text;
  const int64_t x_bytes = n * text.hidden_size * dtype_bytes(model_.compute_dtype());
  if (x_bytes > x_.bytes()) x_ = Buffer(x_bytes);

  StepInput in;
  in.x = Tensor(x_.data(), model_.compute_dtype(), {n, text.hidden_size});
  in.tokens = tokens_;
  in.positions = positions_;
  in.runs = runs_;
  in.logit_rows = logit_rows_;
  in.kv = kv_.get();
  group_reads_.assign(members_.size(), {});
  in.kv_reads = group_reads_;
  in.share_attention = share_attention_;
  in.hooks = hooks_.any() ? &hooks_ : nullptr;
  in.pattern = like.sequence->policy().pattern();
  in.layers = like.layers;
  const Tensor all(logits_.data(), DType::kF32, {n_logits_ + n_logits, text.vocab_size});
  in.logits = all.slice_rows(n_logits_, n_logits_ + n_logits);
  if (like.layers.begin == 0) {
    embed(items, in.x);
  } else {
    take_hidden(items, in.x);
  }
  gather_addends(items, like.layers);
  in.addend_rows = addend_rows_;
  in.addends = addends_;
  kv_->begin(items, members_, ids_.size());
  const auto tell = [this](double share) { (*layers_done_)(members_, share); };
  const FunctionRef<void(double)> after_layer(tell);
  if (layers_done_ != nullptr) in.after_layer = &after_layer;
  model_.forward(in);
  if (like.layers.end < text.n_layers) leave_hidden(items, in.x);

  size_t next = 0;  // of logit_rows_
  int32_t end_row = 0;
  for (size_t i = 0; i < members_.size(); ++i) reads_[static_cast<size_t>(members_[i])] = group_reads_[i];
  for (const int32_t m : members_) {
    end_row += n_rows_of(items[static_cast<size_t>(m)]);
    const size_t first = next;
    while (next < logit_rows_.size() && logit_rows_[next] < end_row) ++next;
    results_[static_cast<size_t>(m)] = in.logits.slice_rows(static_cast<int64_t>(first), static_cast<int64_t>(next));
  }
  n_logits_ += n_logits;
}

void Stepper::forward_all(std::span<const StepItem> items) {
  int64_t n_logits = 0;
  for (const StepItem& item : items) {
    const int32_t n_rows = n_rows_of(item);
    n_logits += item.all_logits ? n_rows : 1;  // at most
    item.sequence->make_room(n_rows);
  }
  const int64_t bytes = n_logits * model_.config().text.vocab_size * dtype_bytes(DType::kF32);
  if (bytes > logits_.bytes()) logits_ = Buffer(bytes);
  n_logits_ = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (done_[i] == 0) run_group(items, items[i]);
  }
}

// The item whose cache, hooks or policy was being called when something was thrown; -1: none was.
int32_t Stepper::to_blame() const {
  const int32_t seq = std::max(kv_->last_called(), hooks_.last_called());
  return seq < 0 ? blame_ : members_[static_cast<size_t>(seq)];
}

std::span<const Tensor> Stepper::step(std::span<const StepItem> items, const LayersDone* layers_done) {
  layers_done_ = layers_done;
  done_.assign(items.size(), 0);
  results_.assign(items.size(), Tensor());
  reads_.assign(items.size(), {});
  blame_ = -1;
  kv_->begin(items, {}, 0);
  hooks_.begin();
  for (const StepItem& item : items) item.sequence->begin_step();
  const auto undo = [&] {
    for (const StepItem& item : items) item.sequence->rollback_step();
  };
  try {
    const CheckScope own(CheckScope::Failure::kThrow);  // a step that fails is undone
    forward_all(items);
  } catch (...) {
    const Error error = caught_error();
    undo();
    throw StepFailed(error.code(), error.what(), to_blame());
  }
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].sequence->finish_step(items[i].runs, items[i].layers.end >= model_.config().text.n_layers);
    items[i].sequence->add_kv_reads(reads_[i]);
  }
  return results_;
}

}  // namespace vlcache
