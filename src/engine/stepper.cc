// Gathering rows, running the model, handing out logits.
#include "engine/stepper.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace vlcache {

// The caches of a step's sequences, as the forward pass sees them.
class Stepper::CacheAccess final : public KvAccess {
 public:
  explicit CacheAccess(KvCodec codec) : codec_(codec) {}
  void begin(std::span<const StepItem> items) { items_ = items; }

  KvView append(int layer, const SeqRows& rows, std::span<const int32_t> positions, const Tensor& k,
                const Tensor& v) override {
    static_cast<void>(k), static_cast<void>(v);  // position-free keys are for stores; none is attached here
    // A token's index in its sequence is its position: families with other positions will pass the index instead.
    return items_[static_cast<size_t>(rows.seq)].sequence->cache().append(layer, positions, positions);
  }
  KvCodec codec() const override { return codec_; }

 private:
  KvCodec codec_;
  std::span<const StepItem> items_;
};

Stepper::Stepper(Model& model, KvCodec codec) : model_(model), access_(std::make_unique<CacheAccess>(codec)) {}
Stepper::~Stepper() = default;

void Stepper::reserve(int64_t n_rows, int64_t n_logit_rows) {
  const TextConfig& text = model_.config().text;
  if (n_rows > row_capacity_) {
    x_ = Buffer(n_rows * text.hidden_size * dtype_bytes(model_.compute_dtype()));
    row_capacity_ = n_rows;
  }
  if (n_logit_rows > logit_capacity_) {
    logits_ = Buffer(n_logit_rows * text.vocab_size * dtype_bytes(DType::kF32));
    logit_capacity_ = n_logit_rows;
  }
}

// Embeddings of all rows: the table's for text, the encoder's for image tokens (whose ids may lie outside the table).
void Stepper::embed(std::span<const StepItem> items, const Tensor& x) {
  int32_t row = 0;
  for (const StepItem& item : items) {
    const int32_t begin = item.sequence->n_computed(), end = begin + item.n_rows;
    for (const ImageSpan& span : item.sequence->prompt().spans) {
      for (int32_t t = std::max(begin, span.begin); t < std::min(end, span.end); ++t)
        ids_[static_cast<size_t>(row + t - begin)] = 0;
    }
    row += item.n_rows;
  }
  model_.embed(ids_, x);
  row = 0;
  for (const StepItem& item : items) {
    const int32_t begin = item.sequence->n_computed(), end = begin + item.n_rows;
    for (const ImageSpan& span : item.sequence->prompt().spans) {
      const int32_t from = std::max(begin, span.begin), to = std::min(end, span.end);
      if (from >= to) continue;
      image_rows_.resize(static_cast<size_t>(to - from));
      std::iota(image_rows_.begin(), image_rows_.end(), row + from - begin);
      const int32_t first = span.first_row + from - span.begin;
      model_.backend().scatter_rows(item.sequence->image(span.image).embeds.slice_rows(first, first + to - from),
                                    image_rows_, x);
    }
    row += item.n_rows;
  }
}

std::span<const Tensor> Stepper::step(std::span<const StepItem> items, LayerHooks* hooks) {
  seqs_.clear();
  ids_.clear();
  positions_.clear();
  logit_rows_.clear();
  for (const StepItem& item : items) {
    const Sequence& s = *item.sequence;
    CHECK(0 < item.n_rows && item.n_rows <= s.n_pending());
    const int32_t row = static_cast<int32_t>(ids_.size());
    seqs_.push_back({static_cast<int32_t>(seqs_.size()), row, item.n_rows});
    for (int32_t i = 0; i < item.n_rows; ++i) {
      ids_.push_back(s.tokens()[static_cast<size_t>(s.n_computed() + i)]);
      positions_.push_back(s.n_computed() + i);
      if (item.all_logits || (i + 1 == item.n_rows && item.n_rows == s.n_pending())) logit_rows_.push_back(row + i);
    }
  }
  const int64_t n = static_cast<int64_t>(ids_.size()), n_logits = static_cast<int64_t>(logit_rows_.size());
  const TextConfig& text = model_.config().text;
  reserve(n, n_logits);

  StepInput in;
  in.x = Tensor(x_.data(), model_.compute_dtype(), {n, text.hidden_size});
  in.positions = positions_;
  in.seqs = seqs_;
  in.logit_rows = logit_rows_;
  in.kv = access_.get();
  in.hooks = hooks;
  in.logits = Tensor(logits_.data(), DType::kF32, {n_logits, text.vocab_size});
  // All sequences of a step attend alike: the engine batches one cache mode at a time.
  in.pattern = {items[0].sequence->mode().n_sinks, items[0].sequence->mode().window};
  embed(items, in.x);
  access_->begin(items);
  model_.forward(in);

  results_.clear();
  int64_t next = 0;
  for (const StepItem& item : items) {
    Sequence& s = *item.sequence;
    CHECK(s.mode().n_sinks == in.pattern.n_sinks && s.mode().window == in.pattern.window);
    const int64_t rows = item.all_logits ? item.n_rows : item.n_rows == s.n_pending() ? 1 : 0;
    results_.push_back(in.logits.slice_rows(next, next + rows));
    next += rows;
    s.advance(item.n_rows);
  }
  return results_;
}

}  // namespace vlcache
