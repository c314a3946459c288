// Qwen3: norms on each head's q and k, a head size of its own. arXiv:2505.09388.
#include "model/families/families.h"

namespace vlcache {

const TextFamily kQwen3Text = {.model_type = "qwen3",
                               .vocab_size = 151936,
                               .ffn_size = 22016,
                               .max_positions = 32768,
                               .n_kv_heads = 32,
                               .head_dim = 128,
                               .read_switches = [](const JsonObject& config, TextConfig& text) {
                                 text.qk_norm = true;
                                 text.qkv_bias = text.o_bias = config.boolean("attention_bias", false);
                                 read_qwen_windows(config, text);
                               }};

const Family kQwen3 = text_model("qwen3");

}  // namespace vlcache
