// Fuzzes generation_config.json: it sets what config.json left open, or is an Error; it never sets half of it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/config_json.h"
#include "base/error.h"
#include "base/fuzz_target.h"
#include "model/config.h"

FUZZ_TARGET(generation_config) {
  using namespace vlcache;
  static const Json kConfig{{"model_type", "llama"}, {"eos_token_id", 2}, {"bos_token_id", 1}};
  try {
    const Json json = parse_config_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const ModelConfig config = parse_model_config(kConfig, "fuzz", &json);
    const GenerationDefaults& g = config.generation;
    std::vector<std::vector<int32_t>> lists = g.bad_words_ids;
    lists.insert(lists.end(), {g.eos_token_ids, g.suppress_tokens, g.begin_suppress_tokens});
    for (const std::vector<int32_t>& ids : lists) {
      for (const int32_t id : ids) {
        if (id < 0 || id >= config.text.vocab_size) std::abort();
      }
    }
    if (g.no_repeat_ngram_size.value_or(0) < 0) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
