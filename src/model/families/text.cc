// The table of language models: a decoder that text_decoder.cc can run is an entry here. Each is a model of its own and
// the language model of every vision family.
#include <algorithm>

#include "model/families/families.h"

namespace vlcache {
namespace {

// Llama 1 to 3, and the many models with its architecture (TinyLlama, SmolLM, Yi, Vicuna). arXiv:2302.13971.
constexpr TextFamily kLlama = {.model_type = "llama",
                               .vocab_size = 32000,
                               .ffn_size = 11008,
                               .max_positions = 2048,
                               .read_switches = [](const JsonObject& config, TextConfig& text) {
                                 text.qkv_bias = text.o_bias = config.boolean("attention_bias", false);
                                 text.mlp_bias = config.boolean("mlp_bias", false);
                               }};

// Llama with grouped queries, and a sliding window in every layer. arXiv:2310.06825.
constexpr TextFamily kMistral = {.model_type = "mistral",
                                 .vocab_size = 32000,
                                 .ffn_size = 14336,
                                 .max_positions = 131072,
                                 .n_kv_heads = 8,
                                 .read_switches = [](const JsonObject& config, TextConfig& text) {
                                   const int32_t window = read_window(config, 4096);
                                   for (TextLayer& layer : text.layers) layer.window = window;
                                 }};

// Qwen2 and 2.5: Llama with biases on q, k and v, and sliding windows in some layers. arXiv:2407.10671.
constexpr TextFamily kQwen2 = {.model_type = "qwen2",
                               .vocab_size = 151936,
                               .ffn_size = 22016,
                               .max_positions = 32768,
                               .n_kv_heads = 32,
                               .read_switches = [](const JsonObject& config, TextConfig& text) {
                                 text.qkv_bias = true;
                                 read_qwen_windows(config, text);
                               }};

// Norms on each head's q and k, a head size of its own. arXiv:2505.09388.
constexpr TextFamily kQwen3 = {.model_type = "qwen3",
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

// The language models of Qwen2-VL and Qwen2.5-VL: Qwen2 with M-RoPE, sections one after the other. arXiv:2409.12191.
constexpr TextFamily qwen2_vl_text(std::string_view model_type) {
  return {.model_type = model_type,
          .vocab_size = 152064,
          .ffn_size = 29568,
          .max_positions = 32768,
          .n_kv_heads = 8,
          .hidden_size = 8192,
          .n_layers = 80,
          .n_heads = 64,
          .eps = 1e-5,
          .theta = 1e6,
          .sections = {16, 24, 24},
          .read_switches = kQwen2.read_switches};
}
constexpr TextFamily kQwen2VlText = qwen2_vl_text("qwen2_vl_text"), kQwen2_5VlText = qwen2_vl_text("qwen2_5_vl_text");

// The language model of Qwen3-VL: Qwen3 with interleaved M-RoPE. arXiv:2511.21631.
constexpr TextFamily kQwen3VlText = {.model_type = "qwen3_vl_text",
                                     .vocab_size = 151936,
                                     .ffn_size = 22016,
                                     .max_positions = 128000,
                                     .n_kv_heads = 32,
                                     .head_dim = 128,
                                     .theta = 500000.0,
                                     .sections = {24, 20, 20},
                                     .interleaved = true,
                                     .read_switches = [](const JsonObject& config, TextConfig& text) {
                                       text.qk_norm = true;
                                       text.qkv_bias = text.o_bias = config.boolean("attention_bias", false);
                                     }};

}  // namespace

std::span<const TextFamily> text_families() {
  static constexpr TextFamily kFamilies[] = {kLlama,       kMistral,       kQwen2,      kQwen3,
                                             kQwen2VlText, kQwen2_5VlText, kQwen3VlText};
  return kFamilies;
}

}  // namespace vlcache
