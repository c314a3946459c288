// Fuzzes config.json: any text is either a configuration whose sizes multiply without overflow, or an Error.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/config_json.h"
#include "base/error.h"
#include "base/fuzz_target.h"
#include "model/config.h"

FUZZ_TARGET(config) {
  using namespace vlcache;
  try {
    const Json json = parse_config_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const ModelConfig config = parse_model_config(json, "fuzz");
    const TextConfig& t = config.text;
    if (t.layers.size() != static_cast<size_t>(t.n_layers)) std::abort();
    for (const TextLayer& l : t.layers) {
      if (l.n_heads % l.n_kv_heads != 0 || l.head_dim % 2 != 0 || l.rope >= std::ssize(t.ropes)) std::abort();
    }
    int64_t bytes = 0;
    if (__builtin_mul_overflow(t.vocab_size * t.hidden_size, int64_t{4}, &bytes)) std::abort();
    if (__builtin_mul_overflow(config.kv_bytes_per_token(4), t.max_positions, &bytes)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
