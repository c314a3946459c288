#include "model/weights/packed_weights.h"

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/at.h"
#include "base/error.h"
#include "model/weights/weights.h"
#include "ops/quantiser.h"

namespace vlcache {
namespace {

using json = nlohmann::json;

// Changes whenever loading makes something else of the same source: other names, orders of rows, forms by role.
constexpr int kLoaderVersion = 2;

// Where the model lies, however the user has named it.
std::string real_path(const std::string& where) {
  std::error_code ec;
  const std::filesystem::path path = std::filesystem::canonical(where, ec);
  return ec ? where : path.string();
}

PackedIdentity identity_of(const LoadOptions& options, const Backend& backend, const std::string& where) {
  const auto line = [](const char* name, std::string_view value) {
    return std::string(name) + " " + std::string(value) + "\n";
  };
  const WeightForms& forms = options.forms;
  PackedIdentity identity;
  identity.place = line("model", real_path(where)) + line("backend", backend.name()) +
                   line("compute", dtype_name(backend.compute_dtype())) + line("text", weight_choice_name(forms.text)) +
                   line("vision", weight_choice_name(forms.vision));
  if (!options.calibration.digest.empty()) identity.place += line("calibration", options.calibration.digest);
  identity.key = identity.place + line("layout", backend.packed_layout()) +
                 line("loader", std::to_string(kLoaderVersion)) + line("quantiser", std::to_string(kQuantiserVersion)) +
                 line("calibration", options.calibration.digest.empty() ? "none" : options.calibration.digest) +
                 options.source_identity;
  return identity;
}

json json_of_form(const std::optional<QuantForm>& form) {
  if (!form) return nullptr;
  return {form->bits, form->group, form->scale, form->min, form->table};
}

// A list of five small numbers, or null: dense. False: neither.
bool read_form(const json& from, std::optional<QuantForm>& form) {
  form.reset();
  if (from.is_null()) return true;
  const auto fits = [](const json& n, int most) { return n.is_number_unsigned() && n.get<uint64_t>() <= at(most); };
  if (!from.is_array() || from.size() != 5 || !fits(from[0], 8) || !fits(from[1], 128) ||
      !fits(from[2], static_cast<int>(ScaleKind::kU8OfRow)) || !fits(from[3], static_cast<int>(MinKind::kZeroPoint)) ||
      !fits(from[4], static_cast<int>(CodeTable::kFp4))) {
    return false;
  }
  form = QuantForm{.bits = from[0].get<uint8_t>(),
                   .group = from[1].get<uint8_t>(),
                   .scale = static_cast<ScaleKind>(from[2].get<uint8_t>()),
                   .min = static_cast<MinKind>(from[3].get<uint8_t>()),
                   .table = static_cast<CodeTable>(from[4].get<uint8_t>())};
  return form->valid();
}

// What a record is that holds an order of inputs.
constexpr const char* kOrder = "order of inputs";

// The segment i of a matrix, and the order of its inputs.
std::string segment_name(const std::string& matrix, size_t i) { return matrix + "#" + std::to_string(i); }
std::string order_name(const std::string& matrix, size_t i) { return segment_name(matrix, i) + " order"; }

std::vector<int32_t> order_of(const Buffer& array) {
  std::vector<int32_t> order(at(array.bytes()) / sizeof(int32_t));
  std::memcpy(order.data(), array.data(), order.size() * sizeof(int32_t));
  return order;
}

// Whether it has each of its inputs once.
bool is_order(const Buffer& array) {
  const std::vector<int32_t> order = order_of(array);
  std::vector<bool> seen(order.size());
  for (const int32_t k : order) {
    if (k < 0 || k >= std::ssize(order) || seen[at(k)]) return false;
    seen[at(k)] = true;
  }
  return true;
}

}  // namespace

std::string_view packed_use_name(PackedUse use) {
  return use == PackedUse::kHit ? "hit" : use == PackedUse::kBuilt ? "built" : "off";
}

PackedIdentity packed_identity(const LoadOptions& options, const Backend& backend, const std::string& where) {
  return identity_of(options, backend, where);
}

bool shares_weights(const WeightForms& forms, const PackedCacheOptions& packed) {
  return packed.share && forms.quantised() && !packed.folder.empty();
}

PackedWeights::PackedWeights(const LoadOptions& options, const Backend& backend, const std::string& where)
    : backend_(backend) {
  const WeightForms& forms = options.forms;
  // Codes that a checkpoint has are laid out as fast as a file is read.
  if (!forms.quantised() || options.source_identity.empty()) {
    if (options.packed.share && options.packed.say) {
      options.packed.say("packed weights: not shared: only a checkpoint that is quantised has a packed file");
    }
    return;
  }
  if (options.packed.folder.empty()) {
    if (options.packed.say && !options.packed.off_reason.empty()) {
      options.packed.say("packed weights: not stored: " + options.packed.off_reason);
    }
    return;
  }
  cache_.emplace(options.packed, identity_of(options, backend, where));
  about_ = {{"model", std::filesystem::absolute(where).lexically_normal().parent_path().string()},
            {"text", weight_choice_name(forms.text)},
            {"vision", weight_choice_name(forms.vision)},
            {"compute", dtype_name(backend.compute_dtype())}};
  if (!options.calibration.digest.empty()) about_["calibration"] = options.calibration.digest;
  if (std::optional<PackedContents> contents = cache_->read(options.progress)) read(std::move(*contents));
  if (!hit_) cache_->begin();
}

void PackedWeights::read(PackedContents contents) {
  shared_ = contents.shared;
  for (size_t i = 0; i < contents.arrays.size(); ++i) {
    PackedRecord& record = contents.index.records[i];
    // With checksums that are right: written by a program with an error. The file is made again.
    if (record.about == kOrder && !is_order(contents.arrays[i])) return;
    parts_.emplace(std::move(record.name), Part{std::move(record.about), std::move(contents.arrays[i])});
  }
  const std::optional<Part> hash = take("source hash");
  hit_ = hash && hash->array.bytes() == std::ssize(hash_);
  if (hit_) std::memcpy(hash_.data(), hash->array.data(), hash_.size());
}

std::optional<PackedWeights::Part> PackedWeights::take(const std::string& name) {
  const auto found = parts_.find(name);
  if (found == parts_.end()) return std::nullopt;
  Part part = std::move(found->second);
  parts_.erase(found);
  return part;
}

std::optional<Weight> PackedWeights::matrix(const std::string& name, int64_t n_out, int64_t n_in) {
  if (!hit_) return std::nullopt;
  Weight w{.n_in = n_in, .dtype = backend_.compute_dtype()};
  while (w.n_out < n_out) {
    std::optional<Part> part = take(segment_name(name, w.segments.size()));
    if (!part || !part->about.is_object()) return std::nullopt;
    WeightSegment segment;
    const json& rows = part->about["rows"];
    if (!rows.is_number_unsigned() || !read_form(part->about["form"], segment.form)) return std::nullopt;
    const uint64_t n = rows.get<uint64_t>();
    if (n == 0 || n > at(n_out - w.n_out)) return std::nullopt;
    segment.n_out = static_cast<int64_t>(n);
    if (part->array.bytes() != backend_.packed_bytes(segment.form, segment.n_out, n_in)) return std::nullopt;
    if (part->about.contains("ordered")) {
      const std::optional<Part> order = take(order_name(name, w.segments.size()));
      if (!order || order->about != kOrder) return std::nullopt;
      if (order->array.bytes() != n_in * int64_t{sizeof(int32_t)}) return std::nullopt;
      segment.input_order = order_of(order->array);
    }
    segment.memory = std::move(part->array);
    w.n_out += segment.n_out;
    w.segments.push_back(std::move(segment));
  }
  return w;
}

bool PackedWeights::values(const std::string& name, const Tensor& to) {
  const std::optional<Part> part = hit_ ? take(name) : std::nullopt;
  if (!part || part->array.bytes() != to.bytes()) return false;
  std::memcpy(to.data, part->array.data(), at(to.bytes()));
  return true;
}

std::optional<bool> PackedWeights::answer(const std::string& name) {
  const std::optional<Part> part = hit_ ? take(name) : std::nullopt;
  if (!part || !part->about.is_boolean()) return std::nullopt;
  return part->about.get<bool>();
}

void PackedWeights::add(const std::string& name, const Weight& w) {
  if (!cache_ || hit_) return;
  for (size_t i = 0; i < w.segments.size(); ++i) {
    const WeightSegment& segment = w.segments[i];
    CHECK(segment.memory.bytes() == backend_.packed_bytes(segment.form, segment.n_out, w.n_in));
    json about = {{"rows", segment.n_out}, {"form", json_of_form(segment.form)}};
    if (!segment.input_order.empty()) {
      about["ordered"] = true;
      cache_->add(order_name(name, i), kOrder, std::as_bytes(std::span(segment.input_order)));
    }
    cache_->add(segment_name(name, i), std::move(about), {segment.memory.data(), at(segment.memory.bytes())});
  }
}

void PackedWeights::add(const std::string& name, const Tensor& values) {
  if (cache_ && !hit_) cache_->add(name, nullptr, {values.data, at(values.bytes())});
}

void PackedWeights::add(const std::string& name, bool answer) {
  if (cache_ && !hit_) cache_->add(name, answer, {});
}

PackedUse PackedWeights::finish(const WeightHash& hash) {
  if (hit_) return PackedUse::kHit;
  if (!cache_) return PackedUse::kOff;
  cache_->add("source hash", nullptr, std::as_bytes(std::span(hash)));
  return cache_->commit(about_) ? PackedUse::kBuilt : PackedUse::kOff;
}

}  // namespace vlcache
