// GPTQ as AutoGPTQ and GPTQModel write it (4 and 8 bits): qweight I32 [K b / 32, N], the codes of an output from the
// lowest bits on; qzeros I32 [K / g, N b / 32] likewise along the outputs; scales [K / g, N]; g_idx I32 [K], the group
// of each input. w = (q - z) * s. The first version of the format stores z - 1, the second z. Source:
// qlinear_cuda_old.py of AutoGPTQ 0.7.1.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/at.h"
#include "base/error.h"
#include "io/quantised/module_patterns.h"
#include "io/quantised/quant_format.h"

namespace vlcache {
namespace {

class Gptq : public QuantFormat {
 public:
  explicit Gptq(const JsonObject& config)
      : bits_(config.integer("bits")),
        group_(group_size_in(config, "group_size")),
        symmetric_(config.boolean("sym", true)),
        // Other bits and groups for some modules: what their tensors say counts.
        varies_(config.has("dynamic") && !config.find("dynamic")->empty()),
        ignored_(config, "modules_to_not_convert", ModulePatterns::Style::kTransformers) {
    if (bits_ != 4 && bits_ != 8) config.fail("bits", "4 or 8, the widths that are read of GPTQ");
    const char* key = config.has("checkpoint_format") ? "checkpoint_format" : "format";
    const std::string format = config.string(key, "gptq");
    if (format != "gptq" && format != "gptq_v2") config.fail(key, "\"gptq\" or \"gptq_v2\", the layouts that are read");
    second_version_ = format == "gptq_v2";
    if (config.string("pack_dtype", "int32") != "int32") config.fail("pack_dtype", "\"int32\"");
  }
  std::string name() const override { return "GPTQ"; }
  std::vector<std::string_view> marks() const override { return {".qweight"}; }
  bool has(const ModuleTensors& module) const override { return module.has("qweight"); }
  bool ignores(std::string_view module) const override { return ignored_.matches(module); }
  std::array<int64_t, 2> shape(const ModuleTensors& module) const override {
    const SafetensorsEntry* order = module.entry("g_idx");
    const std::vector<int64_t>& stored = module.entry("qweight")->shape;
    if (stored.size() != 2) module.fail(ErrorCode::kShape, "qweight", "expected two dimensions");
    const bool ordered = order != nullptr && order->shape.size() == 1;
    return {stored[1], ordered ? order->shape[0] : stored[0] * (32 / bits_)};
  }

  std::unique_ptr<StoredMatrix> matrix(ModuleTensors& module, int64_t n_out, int64_t n_in) const override {
    const int64_t bits = bits_of(module, n_in), per_word = 32 / bits;
    CodeLayout layout{.bits = static_cast<int>(bits), .group = group_of(module, n_in)};
    const int64_t n_groups = parts_of(n_in, layout.group);
    const StoredTensor words = module.take("qweight", "I32", {{parts_of(n_in, per_word), n_out}});
    layout.zeros = zeros(module, bits, n_out, n_groups);
    GroupScales scales = module.take_scales("scales", n_out, n_groups, /*by_group=*/true);
    layout.scales = std::move(scales.values), layout.scale_kind = scales.kind;
    layout.group_of = module.take_groups("g_idx", n_in, layout.group, n_groups);
    layout.unpack = [words, n_out, n_in, bits, per_word](int64_t first, int64_t n, uint8_t* codes) {
      const uint32_t mask = (1u << bits) - 1u;
      for (int64_t k = 0; k < n_in; ++k) {
        for (int64_t i = 0; i < n; ++i) {
          const uint32_t word = word_at(words, k / per_word * n_out + first + i);
          codes[i * n_in + k] = static_cast<uint8_t>(word >> (k % per_word * bits) & mask);
        }
      }
    };
    return std::make_unique<GroupedCodes>(n_out, n_in, std::move(layout), module.taken());
  }

 private:
  int64_t bits_of(const ModuleTensors& module, int64_t n_in) const {
    const SafetensorsEntry& words = *module.entry("qweight");
    const int64_t other = 12 - bits_;  // 8 for 4, 4 for 8
    const bool is_other = words.shape.size() == 2 && words.shape[0] == parts_of(n_in, 32 / other);
    return varies_ && is_other ? other : bits_;
  }

  // Inputs of a group.
  int64_t group_of(const ModuleTensors& module, int64_t n_in) const {
    const int64_t group = group_ == 0 ? n_in : group_;
    const SafetensorsEntry* scales = module.entry("scales");
    if (!varies_ || scales == nullptr || scales->shape.size() != 2) return group;
    const int64_t n_groups = scales->shape[0];
    return n_groups > 0 && n_in % n_groups == 0 ? n_in / n_groups : group;
  }

  // Of symmetric codes all zero points are the middle one, so that the values themselves tell the version; files whose
  // checkpoint_format says otherwise exist (vLLM pull request 38966).
  std::vector<uint8_t> zeros(ModuleTensors& module, int64_t bits, int64_t n_out, int64_t n_groups) const {
    const int64_t per_word = 32 / bits, width = parts_of(n_out, per_word);
    const StoredTensor words = module.take("qzeros", "I32", {{n_groups, width}});
    const uint32_t mask = (1u << bits) - 1u, middle = 1u << (bits - 1);
    std::vector<uint8_t> zeros(at(n_out * n_groups));
    for (int64_t i = 0; i < n_out; ++i) {
      for (int64_t g = 0; g < n_groups; ++g) {
        const uint32_t word = word_at(words, g * width + i / per_word);
        zeros[at(i * n_groups + g)] = static_cast<uint8_t>(word >> (i % per_word * bits) & mask);
      }
    }
    const auto all_are = [&](uint32_t z) { return std::ranges::all_of(zeros, [&](uint8_t x) { return x == z; }); };
    const bool told = symmetric_ && (all_are(middle) || all_are(middle - 1));
    const bool stored_less_one = told ? zeros.empty() || zeros[0] != middle : !second_version_;
    if (stored_less_one) {
      for (uint8_t& z : zeros) z = static_cast<uint8_t>((z + 1u) & mask);
    }
    return zeros;
  }

  int64_t bits_, group_;
  bool symmetric_, varies_, second_version_ = false;
  ModulePatterns ignored_;
};

}  // namespace

std::unique_ptr<const QuantFormat> gptq_format(const JsonObject& config) { return std::make_unique<Gptq>(config); }

}  // namespace vlcache
