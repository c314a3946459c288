// Makes a backend by name. The factory alone knows which backends were built.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ops/backend.h"

namespace vlcache {

struct BackendOptions {
  std::string_view max_isa = "auto";  // highest instruction set to use: scalar, avx2, avx_vnni, avx512, avx512_vnni,
                                      // avx512_bf16, amx_bf16; "ref" has none
  ActivationBits activation_bits = ActivationBits::k15;
};

// name: "auto" (the fastest here), "cpu" or "ref". compute_dtype: bf16 or f32 ("ref" computes in f32 and rounds to it).
// Throws Error(kUnsupported) for a backend that is unknown or was not built, or an unknown instruction set.
std::unique_ptr<Backend> make_backend(std::string_view name, DType compute_dtype, const BackendOptions& options = {});
std::vector<std::string_view> backend_names();
// Values of BackendOptions::max_isa with which backend `name` computes otherwise on this machine than with `options`,
// fastest first.
std::vector<std::string_view> lower_instruction_sets(std::string_view name, const BackendOptions& options = {});

}  // namespace vlcache
