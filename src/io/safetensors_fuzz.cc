// Fuzzes the safetensors header: whatever it accepts must lie within the file, without overlap.
#include <cstdlib>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/safetensors.h"

FUZZ_TARGET(safetensors) {
  using namespace vlcache;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    int64_t end = 0;
    for (const SafetensorsEntry& e : parse_safetensors_header(file, static_cast<int64_t>(size), "fuzz")) {
      if (e.begin < end || e.end < e.begin || e.end > static_cast<int64_t>(size)) std::abort();
      if (end == 0) end = e.begin;
      if (e.begin != end) std::abort();
      end = e.end;
    }
  } catch (const Error&) {
  }
  return 0;
}
