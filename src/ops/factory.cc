// The only backend #ifdef of the project: which backends this build has.
#include "ops/factory.h"

#include <string>

#include "base/error.h"
#include "ops/limits.h"
#include "ops/ref/ref_backend.h"
#ifndef VLCACHE_REF_ONLY
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/cpu_features.h"
#include "ops/cpu/limits/limits.h"
#endif

namespace vlcache {
namespace {

struct NamedBackend {
  std::string_view name;
  std::unique_ptr<Backend> (*make)(DType compute_dtype, const BackendOptions& options);
};

std::unique_ptr<Backend> make_ref(DType compute_dtype, const BackendOptions& options) {
  return make_ref_backend(compute_dtype, options.activation_bits);
}

#ifndef VLCACHE_REF_ONLY
std::unique_ptr<Backend> make_cpu(DType compute_dtype, const BackendOptions& options) {
  std::string known;
  for (const auto& [name, isa, byte_dots] : cpu::kInstructionSets) {
    if (options.max_isa == name || options.max_isa == "auto")
      return make_cpu_backend(compute_dtype,
                              {.max_isa = isa, .byte_dots = byte_dots, .activation_bits = options.activation_bits});
    known += ", " + std::string(name);
  }
  throw Error(ErrorCode::kUnsupported,
              "instruction set '" + std::string(options.max_isa) + "' is unknown; expected one of auto" + known);
}
#endif

// Fastest first: "auto" takes the first.
constexpr NamedBackend kBackends[] = {
#ifndef VLCACHE_REF_ONLY
    {"cpu", make_cpu},
#endif
    {"ref", make_ref},
};

}  // namespace

std::unique_ptr<Backend> make_backend(std::string_view name, DType compute_dtype, const BackendOptions& options) {
  if (compute_dtype != DType::kF32 && compute_dtype != DType::kBF16) {
    throw Error(ErrorCode::kUnsupported,
                "compute dtype must be f32 or bf16, found " + std::string(dtype_name(compute_dtype)));
  }
  std::string known;
  for (const NamedBackend& backend : kBackends) {
    if (name == backend.name || name == "auto") return backend.make(compute_dtype, options);
    known += ", " + std::string(backend.name);
  }
  throw Error(ErrorCode::kUnsupported,
              "backend '" + std::string(name) + "' is unknown or not in this build; expected one of auto" + known);
}

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names;
  for (const NamedBackend& backend : kBackends) names.push_back(backend.name);
  return names;
}

std::vector<std::string_view> lower_instruction_sets(std::string_view name, const BackendOptions& options) {
  std::vector<std::string_view> lower;
#ifndef VLCACHE_REF_ONLY
  if (name == "ref") return lower;
  cpu::Isa cap = cpu::Isa::kAmxBf16;
  for (const cpu::InstructionSet& named : cpu::kInstructionSets) {
    if (options.max_isa == named.name) cap = named.isa;
  }
  const cpu::Isa used = cpu::fastest_isa(cap);
  for (const auto& [level, isa, byte_dots] : cpu::kInstructionSets) {
    // Products of bytes give the same sums as others do.
    if (level == cpu::isa_name(isa) && isa < used && cpu::fastest_isa(isa) == isa) lower.push_back(level);
  }
#else
  static_cast<void>(name), static_cast<void>(options);
#endif
  return lower;
}

#ifndef VLCACHE_REF_ONLY
LimitsProbe::LimitsProbe() : memory_(cpu::probe_memory()) {}
MachineLimits LimitsProbe::measure(double seconds) const { return cpu::measure_limits(seconds, memory_); }
#else
LimitsProbe::LimitsProbe() {
  throw Error(ErrorCode::kUnsupported, "this build has no fast backend, and no probes of the machine's limits");
}
MachineLimits LimitsProbe::measure(double) const { return {}; }
#endif

}  // namespace vlcache
