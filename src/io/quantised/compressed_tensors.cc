#include "io/quantised/compressed_tensors.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/quantised/quant_format.h"

namespace vlcache {
namespace {

constexpr const char* kCompressedFormats =
    "pack-quantized, int-quantized, float-quantized or nvfp4-pack-quantized, the formats of compressed-tensors that "
    "are "
    "read";

CompressedLayout layout_of(const JsonObject& group, const std::string& format, bool is_float) {
  if (format == "pack-quantized") return CompressedLayout::kPacked;
  if (format == "int-quantized") return CompressedLayout::kInts;
  if (format == "float-quantized") return CompressedLayout::kFloats;
  if (format == "naive-quantized") return is_float ? CompressedLayout::kFloats : CompressedLayout::kInts;
  if (format == "nvfp4-pack-quantized") return CompressedLayout::kNvfp4;
  throw Error(ErrorCode::kUnsupported,
              group.where() + ": format: expected " + kCompressedFormats + ", found " + shown_json(Json(format)));
}

// [rows, inputs], or "128x128" as older versions write it.
void parse_block(const JsonObject& weights, CompressedScheme& scheme) {
  constexpr const char* kExpected = "the rows and inputs of a block, two whole numbers from 1 to 65536";
  const Json* block = weights.find("block_structure");
  int64_t sizes[2] = {};
  if (block != nullptr && block->is_string()) {
    const std::string text = block->get<std::string>();
    const size_t x = text.find('x');
    if (x != std::string::npos) {
      std::from_chars(text.data(), text.data() + x, sizes[0]);
      std::from_chars(text.data() + x + 1, text.data() + text.size(), sizes[1]);
    }
  } else if (block != nullptr && block->is_array() && block->size() == 2) {
    for (size_t i = 0; i < 2; ++i) sizes[i] = (*block)[i].is_number_integer() ? (*block)[i].get<int64_t>() : 0;
  }
  for (const int64_t size : sizes) {
    if (size < 1 || size > 65536) weights.fail("block_structure", kExpected);
  }
  scheme.block_rows = sizes[0], scheme.block_inputs = sizes[1];
}

// Which weights share a scale.
void parse_strategy(const JsonObject& weights, CompressedScheme& scheme) {
  const int64_t group = group_size_in(weights, "group_size");
  const std::string fallback = group > 0 ? "group" : weights.has("group_size") ? "channel" : "tensor";
  const std::string strategy = weights.string("strategy", fallback);
  if (strategy == "tensor") {
    scheme.one_scale = true;
  } else if (strategy == "group" || strategy == "tensor_group") {
    if (group == 0) weights.fail("group_size", "the inputs of a group");
    scheme.group = scheme.block_inputs = group;
  } else if (strategy == "block" && scheme.layout == CompressedLayout::kFloats) {
    parse_block(weights, scheme);
  } else if (strategy != "channel") {
    weights.fail("strategy", "tensor, channel, group, or block of floats");
  }
}

class CompressedTensors : public QuantFormat {
 public:
  explicit CompressedTensors(const JsonObject& config)
      : ignored_(config, "ignore", ModulePatterns::Style::kCompressedTensors),
        name_("compressed-tensors " + config.string("format", "")) {
    const auto refuse = [&](const char* key, const std::string& what) {
      const Json* part = config.find(key);
      if (part == nullptr || part->empty()) return;
      throw Error(ErrorCode::kUnsupported, config.where() + ": " + key + ": " + what);
    };
    refuse("transform_config", "transformed weights are not read");
    const Json* sparsity = config.find("sparsity_config");
    if (sparsity != nullptr && (!sparsity->is_object() || sparsity->value("format", Json("dense")) != Json("dense")))
      refuse("sparsity_config", "sparse weights are not read");
    const JsonObject groups = config.object("config_groups");
    for (const auto& [name, group] : groups.raw().items()) {
      if (!group.is_object()) groups.fail(name, "an object with targets and weights");
      const JsonObject object(group, groups.where() + ": " + name);
      if (object.has("weights")) schemes_.push_back(parse_compressed_scheme(object, config.string("format", "")));
    }
    if (schemes_.empty()) config.fail("config_groups", "a group with weights");
  }
  std::string name() const override { return name_; }
  std::vector<std::string_view> marks() const override { return {".weight_packed", ".weight_scale"}; }
  int activation_bits() const override {
    return std::ranges::min(schemes_, {}, &CompressedScheme::activation_bits).activation_bits;
  }
  bool has(const ModuleTensors& module) const override {
    const SafetensorsEntry* weight = module.entry("weight");
    return module.has("weight_packed") ||
           (weight != nullptr && (weight->dtype_name == "I8" || weight->dtype_name == "F8_E4M3"));
  }
  bool ignores(std::string_view module) const override { return ignored_.matches(module); }

  std::array<int64_t, 2> shape(const ModuleTensors& module) const override {
    const SafetensorsEntry* packed = module.entry("weight_packed");
    const SafetensorsEntry& e = packed != nullptr ? *packed : *module.entry("weight");
    if (e.shape.size() != 2)
      module.fail(ErrorCode::kShape, e.name.substr(module.module().size() + 1), "expected two dimensions");
    if (packed == nullptr) return {e.shape[0], e.shape[1]};
    if (packed->dtype_name == "U8") return {e.shape[0], 2 * e.shape[1]};
    // weight_shape is exact where the last word is not full; matrix() compares it with this.
    ModuleTensors copy = module;
    const StoredTensor stored = copy.take("weight_shape", "I64", {{2}});
    const auto n_in = static_cast<int64_t>(word_at(stored, 2));
    return {e.shape[0], n_in};
  }

  std::unique_ptr<StoredMatrix> matrix(ModuleTensors& module, int64_t n_out, int64_t n_in) const override {
    const CompressedScheme& scheme = scheme_of(module);
    switch (scheme.layout) {
      case CompressedLayout::kPacked:
        return read_packed(scheme, module, n_out, n_in);
      case CompressedLayout::kInts:
        return read_ints(scheme, module, n_out, n_in);
      case CompressedLayout::kFloats:
        return read_floats(scheme, module, n_out, n_in);
      case CompressedLayout::kNvfp4:
        return read_nvfp4(scheme, module, n_out, n_in);
    }
    CHECK(false);
  }

 private:
  // The group that names the module, else the one that names a class of modules, which files do not tell.
  const CompressedScheme& scheme_of(const ModuleTensors& module) const {
    if (schemes_.size() == 1) return schemes_[0];
    const auto named = std::ranges::find_if(
        schemes_, [&](const CompressedScheme& scheme) { return scheme.targets.matches(module.module()); });
    if (named != schemes_.end()) return *named;
    const auto general =
        std::ranges::find_if(schemes_, [](const CompressedScheme& scheme) { return scheme.targets.matches("Linear"); });
    if (general == schemes_.end()) module.fail_config("config_groups: no group has a target that matches");
    return *general;
  }

  std::vector<CompressedScheme> schemes_;
  ModulePatterns ignored_;
  std::string name_;
};

}  // namespace

CompressedScheme parse_compressed_scheme(const JsonObject& group, const std::string& format) {
  const JsonObject weights = group.object("weights");
  const std::string type = weights.string("type", "int");
  CompressedScheme scheme{.where = weights.where()};
  scheme.bits = weights.integer("num_bits", 8);
  scheme.layout = layout_of(group, group.string("format", format), type == "float");
  scheme.symmetric = weights.boolean("symmetric", true);
  scheme.targets = ModulePatterns(group, "targets", ModulePatterns::Style::kCompressedTensors);
  if (group.has("input_activations")) {
    const int64_t bits = group.object("input_activations").integer("num_bits", 8);
    scheme.activation_bits = static_cast<int>(std::clamp<int64_t>(bits, 1, 16));
  }
  parse_strategy(weights, scheme);
  const bool floats = scheme.layout == CompressedLayout::kFloats || scheme.layout == CompressedLayout::kNvfp4;
  if (type != (floats ? "float" : "int")) weights.fail("type", floats ? "\"float\"" : "\"int\"");
  if (floats && !scheme.symmetric) weights.fail("symmetric", "true, of floats");
  if (scheme.layout == CompressedLayout::kNvfp4) {
    if (scheme.bits != 4) weights.fail("num_bits", "4");
    if (scheme.group != 16) weights.fail("group_size", "16");
  } else if (scheme.layout == CompressedLayout::kFloats) {
    if (scheme.bits != 8) weights.fail("num_bits", "8");
  } else if (scheme.bits != 4 && scheme.bits != 8) {
    weights.fail("num_bits", "4 or 8, the widths that are read");
  }
  return scheme;
}

std::unique_ptr<const QuantFormat> compressed_tensors_format(const JsonObject& config) {
  return std::make_unique<CompressedTensors>(config);
}

}  // namespace vlcache
