// FP8 in blocks, as Qwen and DeepSeek publish it (quant_method "fp8"): weight F8_E4M3 [N, K] and weight_scale_inv
// [N / b, K / c], the factor of each block of b rows and c inputs, b and c from weight_block_size. The last blocks of
// rows and inputs may be smaller. w = code * factor. Experts that transformers stacks are X [E, N, K] and X_scale_inv
// [E, N / b, K / c] (Fp8Quantize of transformers 5.23). Without weight_block_size, the whole matrix has one factor, as
// vLLM and AutoFP8 write it (weight_scale; transformers: weight_scale_inv), or each row has one (FBGEMM).
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/quantised/module_patterns.h"
#include "io/quantised/quant_format.h"

namespace vlcache {
namespace {

class Fp8 : public QuantFormat {
 public:
  explicit Fp8(const JsonObject& config)
      : activations_(config.string("activation_scheme", "dynamic")),
        ignored_(config, "modules_to_not_convert", ModulePatterns::Style::kTransformers) {
    if (config.string("fmt", "e4m3") != "e4m3") config.fail("fmt", "\"e4m3\"");
    constexpr const char* kExpected = "the rows and inputs of a block, two whole numbers from 1 to 65536";
    const Json* block = config.find("weight_block_size");
    if (block == nullptr) return;
    if (!block->is_array() || block->size() != 2) config.fail("weight_block_size", kExpected);
    for (size_t i = 0; i < 2; ++i) {
      const Json& size = (*block)[i];
      if (!size.is_number_integer() || size < 1 || size > 65536) config.fail("weight_block_size", kExpected);
      block_[i] = size.get<int64_t>();
    }
  }
  std::string name() const override { return in_blocks() ? "FP8 blocks" : "FP8"; }
  std::vector<std::string_view> marks() const override {
    std::vector<std::string_view> own{".weight_scale_inv", "_proj_scale_inv"};
    if (!in_blocks()) own.emplace_back(".weight_scale");
    return own;
  }
  int activation_bits() const override { return activations_ == "none" ? 16 : 8; }
  bool has(const ModuleTensors& module) const override {
    const SafetensorsEntry* weight = module.entry("weight");
    return weight != nullptr && weight->dtype_name == "F8_E4M3";
  }
  bool ignores(std::string_view module) const override { return ignored_.matches(module); }
  std::array<int64_t, 2> shape(const ModuleTensors& module) const override {
    const std::vector<int64_t>& stored = module.entry("weight")->shape;
    if (stored.size() != 2) module.fail(ErrorCode::kShape, "weight", "expected two dimensions");
    return {stored[0], stored[1]};
  }

  std::unique_ptr<StoredMatrix> matrix(ModuleTensors& module, int64_t n_out, int64_t n_in) const override {
    return stacked(module, "weight", n_out, n_in);
  }
  bool has_stack(const ModuleTensors& module, const std::string& name) const override {
    const SafetensorsEntry* stack = module.entry(name);
    return stack != nullptr && stack->dtype_name == "F8_E4M3" && stack->shape.size() == 3 && stack->shape[0] > 0;
  }
  std::unique_ptr<StoredMatrix> stacked(ModuleTensors& module, const std::string& name, int64_t n_out,
                                        int64_t n_in) const override {
    module.take(name, "F8_E4M3", {{n_out, n_in}});
    if (!in_blocks()) return whole(module, name, n_out, n_in);
    std::vector<float> factors =
        module.take_floats(name + "_scale_inv", {{parts_of(n_out, block_[0]), parts_of(n_in, block_[1])}}).values;
    return std::make_unique<BlockValues>(n_out, n_in, block_[0], block_[1], std::move(factors), module.taken());
  }

 private:
  bool in_blocks() const { return block_[0] > 0; }

  // One factor of the matrix, or one of each row.
  static std::unique_ptr<StoredMatrix> whole(ModuleTensors& module, const std::string& name, int64_t n_out,
                                             int64_t n_in) {
    const std::string scale = name + (module.has(name + "_scale") ? "_scale" : "_scale_inv");
    const SafetensorsEntry* stored = module.entry(scale);
    if (name == "weight" && stored != nullptr && stored->shape.size() == 2 && stored->shape[1] > 1) {
      module.fail_config("weight_block_size: expected the rows and inputs of a block, found nothing");
    }
    std::vector<float> factors = module.take_floats(scale, {{}, {1}, {1, 1}, {n_out, 1}, {n_out}}).values;
    const int64_t rows = factors.size() == 1 ? n_out : 1;
    return std::make_unique<BlockValues>(n_out, n_in, rows, n_in, std::move(factors), module.taken());
  }

  std::string activations_;
  int64_t block_[2] = {};  // rows and inputs; 0: all
  ModulePatterns ignored_;
};

}  // namespace

std::unique_ptr<const QuantFormat> fp8_format(const JsonObject& config) { return std::make_unique<Fp8>(config); }

}  // namespace vlcache
