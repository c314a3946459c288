// Makes a backend by name. The only place that knows which ones were built.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ops/backend.h"

namespace vlcache {

// name: "auto" (the fastest here), "cpu" or "ref". compute_dtype: bf16 or f32 ("ref" computes in f32 and rounds to it).
// Throws Error(kUnsupported) for a backend that is unknown or was not built.
std::unique_ptr<Backend> make_backend(std::string_view name, DType compute_dtype);
std::vector<std::string_view> backend_names();

}  // namespace vlcache
