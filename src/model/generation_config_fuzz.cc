// Fuzzes generation_config.json: it sets what config.json left open, or is an Error; it never sets half of it.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vlcache;
  static const Json kConfig{{"eos_token_id", 2}, {"bos_token_id", 1}};
  try {
    const Json json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    ModelConfig config;
    parse_generation_config(&json, kConfig, "fuzz", config);
  } catch (const Error&) {
  }
  return 0;
}
