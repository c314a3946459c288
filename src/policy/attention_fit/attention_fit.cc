#include "policy/attention_fit/attention_fit.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/os/threads.h"
#include "policy/attention_fit/fit_head.h"
#include "policy/parts.h"

namespace vlcache {
namespace {

// A kv head's slots and queries, and the buffers that hold them.
struct Gathered {
  FitHead head;
  std::vector<float> kv, queries, sinks;
  std::vector<int32_t> places;  // [n_queries]
  int32_t first = 0;            // slot of the head that is slot 0 of `head`
};

void take_queries(const LayerCapture& seen, int32_t head, int32_t n_kv_heads, Gathered& into) {
  const Tensor& q = seen.window_queries;  // [w, H, d]
  const int64_t group = q.dim(1) / n_kv_heads, d = q.dim(2);
  for (int64_t row = 0; row < q.rows(); ++row) {
    for (int64_t i = 0; i < group; ++i) {
      into.places.push_back(seen.window_places[static_cast<size_t>(row)]);
      if (!seen.sink_logits.empty()) into.sinks.push_back(seen.sink_logits[static_cast<size_t>(head * group + i)]);
      for (int64_t c = 0; c < d; ++c) {
        const int64_t at = (head * group + i) * d + c;
        const float x = q.dtype == DType::kBF16 ? to_float(q.row<bf16>(row)[at]) : q.row<float>(row)[at];
        into.queries.push_back(x * seen.scale);
      }
    }
  }
}

void gather(const PartInputs& in, int32_t layer, int32_t head, int32_t n_kv_heads, Gathered& into) {
  const auto n = std::ssize(in.slots.places(layer, head));
  const auto d = int64_t{in.slots.head_dim(layer)};
  into.kv.resize(static_cast<size_t>(2 * n * d));
  const Tensor k(into.kv.data(), DType::kF32, {n, d}), v(k.as<float>() + n * d, DType::kF32, {n, d});
  in.slots.read(layer, head, k, v);
  into.first = first_in_window(in.slots, layer, head);
  take_queries(in.capture[static_cast<size_t>(layer)], head, n_kv_heads, into);
  // Without the slots that the window has passed: the prompt's last queries saw them, later ones do not.
  const auto first = static_cast<size_t>(into.first);
  const std::span<const float> bias = in.slots.bias(layer, head);
  into.head = {.n_slots = n - into.first,
               .n_queries = std::ssize(into.places),
               .head_dim = d,
               .k = k.as<float>() + into.first * d,
               .v = v.as<float>() + into.first * d,
               .queries = into.queries.data(),
               .query_places = into.places,
               .slot_places = in.slots.places(layer, head).subspan(first),
               .bias = bias.empty() ? bias : bias.subspan(first),
               .sinks = into.sinks,
               .window = in.slots.window(layer)};
}

}  // namespace

void* fit_memory(size_t bytes) {
  constexpr size_t kLine = 64;
  void* const memory = std::aligned_alloc(kLine, std::max(kLine, (bytes + kLine - 1) / kLine * kLine));
  if (memory == nullptr) throw Error(ErrorCode::kMemory, "no memory for " + std::to_string(bytes) + " bytes of a fit");
  return memory;
}

void fit_kept_slots(const PartInputs& in, int32_t layer, int32_t first, double ridge, std::span<KeepPlan::Head> kept) {
  std::vector<Gathered> heads(kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    gather(in, layer, first + static_cast<int32_t>(i), in.slots.n_kv_heads(layer), heads[i]);
  }
  FitKernel* const fit = fit_kernels(in.isa).front();
  parallel_for(std::ssize(kept), [&](int64_t i, int) {
    KeepPlan::Head& own = kept[static_cast<size_t>(i)];
    const FitHead& head = heads[static_cast<size_t>(i)].head;
    if (own.keep.empty() || std::ssize(own.keep) >= head.n_slots) return;
    own.values.resize(own.keep.size() * static_cast<size_t>(head.head_dim));
    own.slot_bias.resize(own.keep.size());
    std::vector<int32_t> keep = own.keep;
    for (int32_t& slot : keep) slot -= heads[static_cast<size_t>(i)].first;
    fit(head, ridge, keep, own.values, own.slot_bias);
  });
}

}  // namespace vlcache
