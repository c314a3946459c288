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
