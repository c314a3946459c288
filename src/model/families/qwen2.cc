// Qwen2 and 2.5: Llama with biases on q, k and v, and sliding windows in some layers. arXiv:2407.10671.
#include "model/families/families.h"

namespace vlcache {

const TextFamily kQwen2Text = {.model_type = "qwen2",
                               .vocab_size = 151936,
                               .ffn_size = 22016,
                               .max_positions = 32768,
                               .n_kv_heads = 32,
                               .read_switches = [](const JsonObject& config, TextConfig& text) {
                                 text.qkv_bias = true;
                                 read_qwen_windows(config, text);
                               }};

const Family kQwen2 = text_model("qwen2");

}  // namespace vlcache
