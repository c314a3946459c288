// QuantFormat: a format of quantised checkpoints. A new one is a file that implements it, and a line in
// quantised_tensors.cc.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "io/quantised/module_tensors.h"
#include "io/quantised/stored_matrix.h"

namespace vlcache {

// Any thread.
class QuantFormat {
 public:
  virtual ~QuantFormat() = default;
  virtual std::string name() const = 0;  // as users know it: "AWQ"
  // Ends of the names of tensors that are its own: one that belongs to another format is an error.
  virtual std::vector<std::string_view> marks() const = 0;
  // Bits in which the checkpoint wants activations; 16: they stay as they are.
  virtual int activation_bits() const { return 16; }

  // Whether a module's matrix is stored in it, as names and types of its tensors tell.
  virtual bool has(const ModuleTensors& module) const = 0;
  // Whether config.json says that it is not.
  virtual bool ignores(std::string_view module) const = 0;
  // [n_out, n_in] by the shapes of the tensors alone, for has() modules.
  virtual std::array<int64_t, 2> shape(const ModuleTensors& module) const = 0;
  // Throws Error naming the tensor or the key of config.json.
  virtual std::unique_ptr<StoredMatrix> matrix(ModuleTensors& module, int64_t n_out, int64_t n_in) const = 0;

  // ---- matrices of one shape that are stacked in one tensor, `name` of the module; most formats have none -----------
  virtual bool has_stack(const ModuleTensors&, const std::string&) const { return false; }
  // The one at the module's place.
  virtual std::unique_ptr<StoredMatrix> stacked(ModuleTensors& module, const std::string& name, int64_t n_out,
                                                int64_t n_in) const;
};

// Of a "quantization_config" of the method.
std::unique_ptr<const QuantFormat> awq_format(const JsonObject& config);
std::unique_ptr<const QuantFormat> gptq_format(const JsonObject& config);
std::unique_ptr<const QuantFormat> fp8_format(const JsonObject& config);
std::unique_ptr<const QuantFormat> compressed_tensors_format(const JsonObject& config);

// Parts of `size` that n has.
inline int64_t parts_of(int64_t n, int64_t size) { return n / size + (n % size != 0 ? 1 : 0); }
// "group_size", -1 or null (all inputs) as 0. Throws Error(kInput).
int64_t group_size_in(const JsonObject& config, std::string_view key);

}  // namespace vlcache
