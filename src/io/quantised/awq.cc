// AWQ as AutoAWQ writes it ("gemm", 4 bits): qweight I32 [K, N / 8], qzeros I32 [K / g, N / 8], scales [K / g, N];
// w = (q - z) * s. Nibble i of a word is output 8 j + kOrder[i]. Source: awq/utils/packing_utils.py of AutoAWQ 0.2.9.
#include <algorithm>
#include <cctype>

#include "base/at.h"
#include "base/error.h"
#include "io/quantised/module_patterns.h"
#include "io/quantised/quant_format.h"

namespace vlcache {
namespace {

// The nibble of output 0 to 7: the reverse of the order 0 2 4 6 1 3 5 7.
constexpr int kAwqNibble[] = {0, 4, 1, 5, 2, 6, 3, 7};

uint8_t awq_code(const StoredTensor& words, int64_t row, int64_t output, int64_t n_out) {
  return word_at(words, row * (n_out / 8) + output / 8) >> (4 * kAwqNibble[output % 8]) & 0xfu;
}

class Awq : public QuantFormat {
 public:
  explicit Awq(const JsonObject& config)
      : group_(group_size_in(config, config.has("group_size") ? "group_size" : "q_group_size")),
        zero_point_(config.boolean("zero_point", true)),
        ignored_(config, "modules_to_not_convert", ModulePatterns::Style::kTransformers) {
    const char* key = config.has("bits") ? "bits" : "w_bit";
    if (config.integer(key, 4) != 4) config.fail(key, "4, the only width that is read of AWQ");
    std::string version = config.string("version", "gemm");
    std::ranges::transform(version, version.begin(), [](unsigned char c) { return std::tolower(c); });
    if (version != "gemm") config.fail("version", "\"gemm\", the only layout that is read of AWQ");
  }
  std::string name() const override { return "AWQ"; }
  std::vector<std::string_view> marks() const override { return {".qweight"}; }
  bool has(const ModuleTensors& module) const override { return module.has("qweight"); }
  bool ignores(std::string_view module) const override { return ignored_.matches(module); }
  std::array<int64_t, 2> shape(const ModuleTensors& module) const override {
    const std::vector<int64_t>& stored = module.entry("qweight")->shape;
    if (stored.size() != 2) module.fail(ErrorCode::kShape, "qweight", "expected two dimensions");
    return {stored[1] * 8, stored[0]};
  }

  std::unique_ptr<StoredMatrix> matrix(ModuleTensors& module, int64_t n_out, int64_t n_in) const override {
    if (n_out % 8 != 0) {
      module.fail(ErrorCode::kInput, "qweight",
                  "AWQ stores outputs by eights, but the matrix has " + std::to_string(n_out) + " by config.json");
    }
    CodeLayout layout{.bits = 4, .group = group_ == 0 ? n_in : group_};
    const int64_t n_groups = parts_of(n_in, layout.group);
    const StoredTensor words = module.take("qweight", "I32", {{n_in, n_out / 8}});
    if (zero_point_ || module.has("qzeros")) {
      const StoredTensor zeros = module.take("qzeros", "I32", {{n_groups, n_out / 8}});
      layout.zeros.resize(at(n_out * n_groups));
      for (int64_t i = 0; i < n_out; ++i) {
        for (int64_t g = 0; g < n_groups; ++g) layout.zeros[at(i * n_groups + g)] = awq_code(zeros, g, i, n_out);
      }
    }
    GroupScales scales = module.take_scales("scales", n_out, n_groups, /*by_group=*/true);
    layout.scales = std::move(scales.values), layout.scale_kind = scales.kind;
    layout.unpack = [words, n_out, n_in](int64_t first, int64_t n, uint8_t* codes) {
      for (int64_t k = 0; k < n_in; ++k) {  // a row of words holds all outputs
        for (int64_t i = 0; i < n; ++i) codes[i * n_in + k] = awq_code(words, k, first + i, n_out);
      }
    };
    return std::make_unique<GroupedCodes>(n_out, n_in, std::move(layout), module.taken());
  }

 private:
  int64_t group_;
  bool zero_point_;
  ModulePatterns ignored_;
};

}  // namespace

std::unique_ptr<const QuantFormat> awq_format(const JsonObject& config) { return std::make_unique<Awq>(config); }

}  // namespace vlcache
