// Llama 1 to 3, and the many models of its shape (TinyLlama, SmolLM, Yi, Vicuna). arXiv:2302.13971.
#include "model/families/families.h"

namespace vlcache {

const TextFamily kLlamaText = {.model_type = "llama",
                               .vocab_size = 32000,
                               .ffn_size = 11008,
                               .max_positions = 2048,
                               .read_switches = [](const JsonObject& config, TextConfig& text) {
                                 text.qkv_bias = text.o_bias = config.boolean("attention_bias", false);
                                 text.mlp_bias = config.boolean("mlp_bias", false);
                               }};

const Family kLlama = text_model("llama");

}  // namespace vlcache
