// QuantisedTensors: the matrices of a checkpoint that are stored as codes, by the quantization_config of its
// config.json, whatever their format.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "io/quantised/stored_matrix.h"

namespace vlcache {

class QuantFormat;
struct StackPlace;
class Safetensors;

// Files beside config.json in which older programs and GPTQModel write the settings of quantization_config, and the
// method of a file that names none. A reader of checkpoints adds the first one to a configuration without
// quantization_config, under its name.
struct QuantFile {
  std::string_view name, method;
};
inline constexpr QuantFile kQuantFiles[] = {
    {"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}, {"quantization_config.json", "auto-round"}};
// Whether `config` has the settings of quantised tensors itself.
bool has_quantization_config(const JsonObject& config);

// Any thread.
class QuantisedTensors {
 public:
  // Null: `config` (config.json) has no quantization_config, nor one of kQuantFiles. Throws
  // Error(kUnsupported) naming a method that is not read, Error(kInput) for a configuration that contradicts itself or
  // the tensors: those of another method, or of any where there is no quantization_config.
  static std::unique_ptr<const QuantisedTensors> open(const JsonObject& config,
                                                      std::shared_ptr<const Safetensors> files);
  ~QuantisedTensors();

  // A module is named without the "." before its tensors' names. What the tensors are counts, not whether
  // config.json ignores the module, except where it is there in both ways: then the values count if it does.
  bool has(std::string_view module) const;
  // Throws Error naming the tensor (shape, type, scales that are no numbers) or the key of config.json.
  std::unique_ptr<StoredMatrix> matrix(const std::string& module, int64_t n_out, int64_t n_in) const;

  // The same of a tensor of matrices of one shape, [n, n_out, n_in], "....experts.down_proj", and of one of them.
  bool has_stack(const std::string& tensor) const;
  std::unique_ptr<StoredMatrix> stacked(const std::string& tensor, const StackPlace& place, int64_t n_out,
                                        int64_t n_in) const;

  // "AWQ", "compressed-tensors pack-quantized", ...
  std::string name() const;
  // Bits in which the checkpoint wants activations, which is not done; 16: it does not.
  int activation_bits() const;

  // ---- for descriptions: all modules that has() is true for, sorted
  // --------------------------------------------------
  std::vector<std::string> modules() const;
  std::array<int64_t, 2> shape(const std::string& module) const;  // by the file
  std::vector<std::string> stacks() const;                        // all tensors that has_stack() is true for
  std::array<int64_t, 3> stack_shape(const std::string& tensor) const;

 private:
  QuantisedTensors(std::unique_ptr<const QuantFormat> format, std::shared_ptr<const Safetensors> files,
                   std::string where);

  std::unique_ptr<const QuantFormat> format_;
  std::shared_ptr<const Safetensors> files_;
  std::string where_;  // config.json
};

}  // namespace vlcache
