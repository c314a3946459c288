// Mistral: Llama with grouped queries, and a sliding window in every layer. arXiv:2310.06825.
#include <algorithm>

#include "model/families/families.h"

namespace vlcache {

const TextFamily kMistralText = {.model_type = "mistral",
                                 .vocab_size = 32000,
                                 .ffn_size = 14336,
                                 .max_positions = 131072,
                                 .n_kv_heads = 8,
                                 .read_switches = [](const JsonObject& config, TextConfig& text) {
                                   std::fill(text.windows.begin(), text.windows.end(), read_window(config, 4096));
                                 }};

const Family kMistral = text_model("mistral");

}  // namespace vlcache
