// ModuleTensors: the tensors of one quantised module of a checkpoint, checked as they are asked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/quantised/stored_matrix.h"
#include "io/safetensors.h"

namespace vlcache {

// Scales of groups as f32, [n_out, n_groups], and the 16-bit float that holds each of them.
struct GroupScales {
  std::vector<float> values;
  std::optional<ScaleKind> kind;
};

// One of the matrices that are stacked in one tensor, as experts are.
struct StackPlace {
  int64_t i = 0, n = 1;
};

class ModuleTensors {
 public:
  // `module`: without the "." before the names of its tensors. `config`: where config.json is, for errors. `place`:
  // the part taken is the place's of tensors with one dimension more, n, before the others.
  ModuleTensors(const Safetensors& files, std::string module, std::string_view config,
                std::optional<StackPlace> place = std::nullopt)
      : files_(files), module_(std::move(module)), config_(config), place_(place) {}

  const std::string& module() const { return module_; }
  bool has(std::string_view name) const { return entry(name) != nullptr; }
  const SafetensorsEntry* entry(std::string_view name) const { return files_.find(full(name)); }

  // The tensor of this type and one of these shapes, which becomes one of taken(). Throws Error(kNotFound / kShape /
  // kUnsupported) naming it, the expected and the found value.
  StoredTensor take(std::string_view name, std::string_view dtype, const std::vector<std::vector<int64_t>>& shapes);
  // Floats of any type that QuantForm knows, or F32; none may be infinite or NaN.
  struct Floats {
    std::vector<float> values;
    std::string dtype;
  };
  Floats take_floats(std::string_view name, const std::vector<std::vector<int64_t>>& shapes);
  // Scales that are stored as [n_out, n_groups] or, `by_group`, as [n_groups, n_out].
  GroupScales take_scales(std::string_view name, int64_t n_out, int64_t n_groups, bool by_group = false);
  // "g_idx": which of n_groups each input belongs to. Empty if it is k / group, or not there.
  std::vector<int32_t> take_groups(std::string_view name, int64_t n_in, int64_t group, int64_t n_groups);
  std::vector<StoredTensor> taken() const { return taken_; }

  // Throws Error(code): "<file>: tensor "<module>.<name>": <what>".
  [[noreturn]] void fail(ErrorCode code, std::string_view name, const std::string& what) const;
  // Throws Error(kInput): "<config.json>: quantization_config: <what>, for "<module>"".
  [[noreturn]] void fail_config(const std::string& what) const;

 private:
  std::string full(std::string_view name) const { return module_ + "." + std::string(name); }

  const Safetensors& files_;
  std::string module_, config_;
  std::optional<StackPlace> place_;
  std::vector<StoredTensor> taken_;
};

// The 16-bit float that holds all of `values`: bf16 or f16, or none.
std::optional<ScaleKind> kind_that_holds(const std::vector<float>& values);

// Word `i` of a tensor of 32-bit words.
uint32_t word_at(const StoredTensor& t, int64_t i);

}  // namespace vlcache
