#include "ops/backend.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace vlcache {
namespace {

struct NamedActivation {
  std::string_view name;
  Activation act;
};

// Names of transformers' ACT2FN; several mean the same function.
constexpr NamedActivation kActivations[] = {
    {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},         {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_new", Activation::kGeluTanh}, {"quick_gelu", Activation::kQuickGelu},
    {"relu", Activation::kRelu},
};

}  // namespace

int64_t Weight::bytes() const {
  int64_t bytes = packed() ? 0 : rows.bytes();
  for (const WeightSegment& segment : segments) bytes += segment.bytes();
  return bytes;
}

int64_t seen_page_bytes(const AttentionSeq& seq, const AttentionArgs& args) {
  if (seq.n_rows == 0) return 0;
  const KvView& kv = seq.kv;
  const int32_t n_after = seq.n_after != nullptr ? *std::min_element(seq.n_after, seq.n_after + seq.n_rows) : 0;
  const auto pages_of = [](int64_t n_slots) { return (n_slots + kPageSlots - 1) / kPageSlots; };
  int64_t bytes = 0;
  for (int32_t h = 0; h < kv.n_kv_heads; ++h) {
    const int64_t limit = std::max(kv.n_slots[h] - n_after, 0), n = pages_of(limit);
    if (args.window > 0 && kv.slot_pos != nullptr) {
      for (int64_t i = 0; i < n; ++i) bytes += kv.holds(h, i) ? kv.page_bytes(h, i, i + 1, coded_end(limit - 1)) : 0;
      continue;
    }
    const bool windowed = args.window > 0;
    const int64_t first = windowed ? std::max<int64_t>(limit - args.window, 0) / kPageSlots : 0;
    const int64_t sinks = windowed ? std::min(first, pages_of(args.n_sinks)) : 0;
    const int32_t end = coded_end(limit - 1);
    bytes += kv.page_bytes(h, 0, sinks, end) + kv.page_bytes(h, first, n, end);
  }
  return bytes;
}

Weight stack(std::vector<Weight> parts) {
  CHECK(!parts.empty());
  Weight all = std::move(parts[0]);
  CHECK(all.packed());
  for (Weight& part : std::span(parts).subspan(1)) {
    CHECK(part.packed() && part.n_in == all.n_in && part.dtype == all.dtype);
    all.n_out += part.n_out;
    for (WeightSegment& segment : part.segments) all.segments.push_back(std::move(segment));
  }
  return all;
}

Activation activation_from_name(std::string_view name) {
  std::string known;
  for (const NamedActivation& a : kActivations) {
    if (a.name == name) return a.act;
    known += (known.empty() ? "" : ", ") + std::string(a.name);
  }
  throw Error(ErrorCode::kUnsupported,
              "activation " + shown_json(Json(std::string(name))) + " is not supported; expected one of " + known);
}

}  // namespace vlcache
