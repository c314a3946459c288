#include "ops/ref/slot_logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/ref/rows.h"

namespace vlcache {

SlotQueries::SlotQueries(const Tensor& q, const AttentionArgs& args, const SlotRows& rows)
    : q_(q), args_(args), rows_(rows), query_(static_cast<size_t>(q.dim(2))) {
  if (args.q_sinks != nullptr) {
    CHECK(same_shape(*args.q_sinks, q) && args.q_sinks->dtype == q.dtype);
    sink_query_.resize(query_.size());
  }
  CHECK(args.sink_logits.empty() || std::ssize(args.sink_logits) == q.dim(1));
}

const HeadSlots& FormedSlots::of(int64_t n_causal) {
  const int32_t end = coded_end(n_causal - 1);
  if (end_ == 0 || (end != end_ && kv_.born != nullptr)) slots_ = load_head(kv_, head_, end);
  end_ = end;
  return slots_;
}

int64_t SlotQueries::n_causal(int64_t i, int64_t n_slots) const {
  const int64_t n_after = rows_.n_after != nullptr ? rows_.n_after[i] : rows_.n - 1 - i;
  CHECK(n_after >= 0);
  return n_slots - n_after;
}

SlotQuery SlotQueries::get(int64_t i, int64_t head, const HeadSlots& slots) {
  const int64_t d = q_.dim(2), row = rows_.begin + i;
  load_values(q_, row * q_.stride + head * d, d, query_.data());
  SlotQuery query{.q = query_.data(), .q_sinks = query_.data(), .n_causal = n_causal(i, slots.n_slots)};
  if (args_.q_sinks != nullptr) {
    load_values(*args_.q_sinks, row * args_.q_sinks->stride + head * d, d, sink_query_.data());
    query.q_sinks = sink_query_.data();
  }
  if (!args_.sink_logits.empty()) query.sink = args_.sink_logits[static_cast<size_t>(head)];
  // Without positions a query is at its own slot's index.
  query.position = args_.positions != nullptr ? args_.positions[row] : query.n_causal - 1;
  return query;
}

bool sees(const SlotQuery& query, const HeadSlots& slots, const AttentionArgs& args, int64_t slot) {
  if (slot >= query.n_causal) return false;
  if (slots.bias != nullptr && slots.bias[slot] == -std::numeric_limits<float>::infinity()) return false;
  if (args.window <= 0 || slot < args.n_sinks) return true;
  const int64_t position = slots.position != nullptr ? slots.position[slot] : slot;
  return position > query.position - args.window;
}

void weigh_slots(const SlotQuery& query, const HeadSlots& slots, const AttentionArgs& args, SlotWeights& result) {
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  CHECK(args.window <= 0 || args.positions != nullptr || slots.position == nullptr);
  const int64_t d = slots.head_dim;
  std::vector<float>& logits = result.logits;
  logits.assign(static_cast<size_t>(slots.n_slots), kUnseen);
  result.n_seen = 0;
  for (int64_t j = 0; j < slots.n_slots; ++j) {
    if (!sees(query, slots, args, j)) continue;
    const float* q = j < args.n_sinks ? query.q_sinks : query.q;
    logits[static_cast<size_t>(j)] =
        args.scale * dot(q, slots.k.data() + j * d, d) + (slots.bias != nullptr ? slots.bias[j] : 0.0f);
    ++result.n_seen;
  }
  const float top = logits.empty() ? kUnseen : *std::max_element(logits.begin(), logits.end());
  result.top = std::max(top, query.sink);
  std::vector<float>& w = result.weights;
  w.resize(logits.size());
  // If no slot is visible every weight is 0.
  const auto weight = [&](float x) { return result.top == kUnseen ? 0.0f : std::exp(x - result.top); };
  std::transform(logits.begin(), logits.end(), w.begin(), weight);
  result.largest = weight(top);
  result.total = sum(w.data(), slots.n_slots) + weight(query.sink);
}

}  // namespace vlcache
