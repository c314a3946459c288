// Which backends this build has: the only backend #ifdef of the project.
#include "ops/factory.h"

#include <string>

#include "base/error.h"
#include "ops/ref/ref_backend.h"
#if !defined(VLCACHE_REF_ONLY) && __has_include("ops/cpu/cpu_backend.h")
#define VLCACHE_HAS_CPU
#include "ops/cpu/cpu_backend.h"
#endif

namespace vlcache {
namespace {

struct NamedBackend {
  std::string_view name;
  std::unique_ptr<Backend> (*make)(DType compute_dtype);
};

// Fastest first: "auto" takes the first.
constexpr NamedBackend kBackends[] = {
#ifdef VLCACHE_HAS_CPU
    {"cpu", make_cpu_backend},
#endif
    {"ref", make_ref_backend},
};

}  // namespace

std::unique_ptr<Backend> make_backend(std::string_view name, DType compute_dtype) {
  if (compute_dtype != DType::kF32 && compute_dtype != DType::kBF16) {
    throw Error(ErrorCode::kUnsupported,
                "compute dtype must be f32 or bf16, found " + std::string(dtype_name(compute_dtype)));
  }
  std::string known;
  for (const NamedBackend& backend : kBackends) {
    if (name == backend.name || name == "auto") return backend.make(compute_dtype);
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

}  // namespace vlcache
