// Test helpers for what images are to caches: engines of fixture models, and pages that never were files.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "io/image/encode.h"

namespace vlcache {

// In f32, with little memory.
inline std::unique_ptr<Engine> load_fixture_engine(std::string_view name, int32_t prefill_chunk = 512) {
  EngineOptions options;
  options.dtype = DType::kF32;
  options.kv_memory_bytes = 64 << 20;
  options.cache_bytes = 16 << 20;
  options.prefill_chunk = prefill_chunk;
  return Engine::load(Checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/" + std::string(name)),
                      options);
}

inline EncodedImage encoded_page(const Image& page, ImageOptions options) {
  return {.bytes = std::make_shared<const std::vector<std::byte>>(encode_png(page)),
          .where = "here",
          .limits = {},
          .options = std::move(options),
          .owner = "",
          .text = ""};
}

}  // namespace vlcache
