#include "io/quantised/module_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/at.h"
#include "base/dtype.h"
#include "base/error.h"

namespace vlcache {
namespace {

float float_at(const StoredTensor& t, int64_t i) {
  if (t.dtype == "F32") {
    float value;
    std::memcpy(&value, t.bytes.data() + 4 * i, sizeof value);
    return value;
  }
  if (t.dtype == "F8_E4M3") return e4m3_to_float(std::to_integer<uint8_t>(t.bytes[at(i)]));
  uint16_t bits;
  std::memcpy(&bits, t.bytes.data() + 2 * i, sizeof bits);
  return t.dtype == "BF16" ? to_float(bf16{bits}) : f16_to_float(bits);
}

std::string expected_shapes(std::string_view dtype, const std::vector<std::vector<int64_t>>& shapes) {
  std::string text;
  for (const std::vector<int64_t>& shape : shapes) {
    text += (text.empty() ? "" : " or ") +
            StoredTensor{.name = "", .dtype = std::string(dtype), .shape = shape, .bytes = {}}.describe();
  }
  return text;
}

}  // namespace

std::optional<ScaleKind> kind_that_holds(const std::vector<float>& values) {
  if (std::ranges::all_of(values, [](float x) { return to_float(to_bf16(x)) == x; })) return ScaleKind::kBF16;
  if (std::ranges::all_of(values, [](float x) { return f16_to_float(float_to_f16(x)) == x; })) return ScaleKind::kF16;
  return std::nullopt;
}

uint32_t word_at(const StoredTensor& t, int64_t i) {
  uint32_t word;
  std::memcpy(&word, t.bytes.data() + 4 * i, sizeof word);
  return word;
}

void ModuleTensors::fail(ErrorCode code, std::string_view name, const std::string& what) const {
  throw Error(code, files_.where() + ": tensor \"" + full(name) + "\": " + what);
}

void ModuleTensors::fail_config(const std::string& what) const {
  throw Error(ErrorCode::kInput, config_ + ": quantization_config: " + what + ", for \"" + module_ + "\"");
}

StoredTensor ModuleTensors::take(std::string_view name, std::string_view dtype,
                                 const std::vector<std::vector<int64_t>>& shapes_of_one) {
  std::vector<std::vector<int64_t>> shapes = shapes_of_one;
  if (place_) {
    for (std::vector<int64_t>& shape : shapes) shape.insert(shape.begin(), place_->n);
  }
  const SafetensorsEntry* e = entry(name);
  if (e == nullptr) {
    fail(ErrorCode::kNotFound, name, "not there, but other tensors of this quantised matrix are");
  }
  StoredTensor t{.name = e->name, .dtype = e->dtype_name, .shape = e->shape, .bytes = {}};
  const bool fits = std::ranges::find(shapes, e->shape) != shapes.end();
  if (!fits || (e->dtype_name != dtype && !dtype.empty())) {
    fail(fits ? ErrorCode::kUnsupported : ErrorCode::kShape, name,
         "expected " + expected_shapes(dtype.empty() ? "" : dtype, shapes) + " (from config.json), found " +
             t.describe());
  }
  t.bytes = files_.bytes(e->name);
  if (place_) {
    CHECK(0 <= place_->i && place_->i < place_->n);
    const size_t size = t.bytes.size() / at(place_->n);
    t.bytes = t.bytes.subspan(at(place_->i) * size, size);
    t.shape.erase(t.shape.begin());
  }
  return taken_.emplace_back(std::move(t));
}

ModuleTensors::Floats ModuleTensors::take_floats(std::string_view name,
                                                 const std::vector<std::vector<int64_t>>& shapes) {
  const StoredTensor t = take(name, "", shapes);
  if (t.dtype != "F16" && t.dtype != "BF16" && t.dtype != "F32" && t.dtype != "F8_E4M3") {
    fail(ErrorCode::kUnsupported, name, "expected scales in F16, BF16, F32 or F8_E4M3, found " + t.describe());
  }
  Floats floats{.values = {}, .dtype = t.dtype};
  int64_t n = 1;
  for (const int64_t d : t.shape) n *= d;
  floats.values.resize(at(n));
  for (int64_t i = 0; i < n; ++i) floats.values[at(i)] = float_at(t, i);
  if (!std::ranges::all_of(floats.values, [](float x) { return std::isfinite(x); })) {
    fail(ErrorCode::kInput, name, "holds scales that are infinite or not a number");
  }
  return floats;
}

GroupScales ModuleTensors::take_scales(std::string_view name, int64_t n_out, int64_t n_groups, bool by_group) {
  std::vector<std::vector<int64_t>> shapes = {by_group ? std::vector{n_groups, n_out} : std::vector{n_out, n_groups}};
  if (!by_group && n_groups == 1) shapes.push_back({n_out});
  Floats stored = take_floats(name, shapes);
  GroupScales scales;
  scales.kind = stored.dtype == "F16"    ? ScaleKind::kF16
                : stored.dtype == "BF16" ? ScaleKind::kBF16
                                         : kind_that_holds(stored.values);
  if (!by_group) {
    scales.values = std::move(stored.values);
    return scales;
  }
  scales.values.resize(stored.values.size());
  for (int64_t g = 0; g < n_groups; ++g) {
    for (int64_t i = 0; i < n_out; ++i) scales.values[at(i * n_groups + g)] = stored.values[at(g * n_out + i)];
  }
  return scales;
}

std::vector<int32_t> ModuleTensors::take_groups(std::string_view name, int64_t n_in, int64_t group, int64_t n_groups) {
  if (!has(name)) return {};
  const StoredTensor t = take(name, "I32", {{n_in}});
  std::vector<int32_t> groups(at(n_in));
  std::memcpy(groups.data(), t.bytes.data(), t.bytes.size());
  bool in_order = true;
  for (int64_t k = 0; k < n_in; ++k) {
    const int32_t g = groups[at(k)];
    if (g < 0 || g >= n_groups) {
      fail(ErrorCode::kInput, name,
           "input " + std::to_string(k) + " is of group " + std::to_string(g) + ", expected 0 to " +
               std::to_string(n_groups - 1));
    }
    in_order = in_order && g == k / group;
  }
  if (in_order) groups.clear();
  return groups;
}

}  // namespace vlcache
