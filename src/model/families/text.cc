// The table of language models: a decoder that text_decoder.cc can run is an entry here. Each is a model of its own and
// the language model of every vision family.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "model/families/families.h"

namespace vlcache {

const TextNames kLlamaNames = {};

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

// Which layers have experts, and their sizes, as Qwen3-MoE's configuration states it.
void read_experts(const JsonObject& config, TextConfig& text) {
  const auto size = [&](std::string_view key, int64_t fallback, int64_t most) {
    const int64_t x = config.integer(key, fallback);
    if (x < 1 || x > most) config.fail(key, "a number from 1 to " + std::to_string(most));
    return x;
  };
  const int64_t n_experts = size(config.has("num_local_experts") ? "num_local_experts" : "num_experts", 60, 4096);
  const int64_t n_used = size("num_experts_per_tok", 4, n_experts),
                ffn_size = size("moe_intermediate_size", 1408, 1 << 20);
  const int64_t every = size("decoder_sparse_step", 1, 4096);
  const Json* dense = config.find("mlp_only_layers");
  if (dense != nullptr && !dense->is_array()) config.fail("mlp_only_layers", "a list of layers");
  for (int64_t i = 0; i < text.n_layers; ++i) {
    const bool only_mlp = dense != nullptr && std::ranges::find(*dense, Json(i)) != dense->end();
    if (only_mlp || (i + 1) % every != 0) continue;
    TextLayer& layer = text.layers[static_cast<size_t>(i)];
    layer.n_experts = n_experts;
    layer.n_experts_used = n_used;
    layer.ffn_size = ffn_size;
  }
}

// The same with experts: softmax over all, the chosen ones' shares add up to 1.
constexpr TextFamily kQwen3VlMoeText = {.model_type = "qwen3_vl_moe_text",
                                        .vocab_size = 151936,
                                        .ffn_size = 5632,
                                        .max_positions = 128000,
                                        .n_kv_heads = 16,
                                        .hidden_size = 2048,
                                        .n_layers = 24,
                                        .n_heads = 16,
                                        .sections = {24, 20, 20},
                                        .interleaved = true,
                                        .read_switches = [](const JsonObject& config, TextConfig& text) {
                                          kQwen3VlText.read_switches(config, text);
                                          read_experts(config, text);
                                        }};

// The language model of PaddleOCR-VL (ERNIE 4.5 0.3B): Llama with M-RoPE, one switch for all biases. arXiv:2510.14528.
constexpr TextFamily kPaddleOcrVlText = {.model_type = "paddleocr_vl_text",
                                         .vocab_size = 103424,
                                         .ffn_size = 3072,
                                         .max_positions = 131072,
                                         .n_kv_heads = 2,
                                         .head_dim = 128,
                                         .hidden_size = 1024,
                                         .n_layers = 18,
                                         .n_heads = 16,
                                         .eps = 1e-5,
                                         .theta = 500000.0,
                                         .sections = {16, 24, 24},
                                         .read_switches = [](const JsonObject& config, TextConfig& text) {
                                           text.qkv_bias = text.o_bias = text.mlp_bias =
                                               config.boolean("use_bias", false);
                                         }};

// The language model of GLM-OCR: norms before and after attention and MLP, neighbouring channels rotate together.
constexpr TextFamily kGlmOcrText = {
    .model_type = "glm_ocr_text",
    .vocab_size = 59392,
    .ffn_size = 4096,
    .max_positions = 131072,
    .n_kv_heads = 8,
    .hidden_size = 1024,
    .n_layers = 16,
    .n_heads = 16,
    .eps = 1e-5,
    .sections = {8, 12, 12},
    .read_switches = [](const JsonObject&, TextConfig& text) { text.post_norms = text.pair_rope = true; }};

// layer_rope_theta: a base for each layer, 0: the layer rotates nothing.
void read_layer_thetas(const JsonObject& config, TextConfig& text) {
  const Json* thetas = config.find("layer_rope_theta");
  if (thetas == nullptr) return;
  if (!thetas->is_array() || thetas->size() != text.layers.size()) {
    config.fail("layer_rope_theta", "one number for each of the " + std::to_string(text.n_layers) + " layers");
  }
  const RopeConfig all = std::exchange(text.ropes, {})[0];
  for (size_t i = 0; i < text.layers.size(); ++i) {
    const Json& theta = (*thetas)[i];
    if (!theta.is_number() || !(theta.get<double>() >= 0 && theta.get<double>() < 1e30)) {
      config.fail("layer_rope_theta", "numbers from 0");
    }
    RopeConfig own = all;
    own.theta = theta.get<double>();
    if (own.theta == 0) own = {.type = RopeType::kNone};
    const auto same = [&](const RopeConfig& r) { return r.type == own.type && r.theta == own.theta; };
    const auto known = std::ranges::find_if(text.ropes, same);
    text.layers[i].rope = static_cast<int32_t>(known - text.ropes.begin());
    if (known == text.ropes.end()) text.ropes.push_back(own);
  }
}

// Granite with sliding windows in three layers of four, sink logits in all, and layers that rotate nothing.
void read_granite_swa(const JsonObject& config, TextConfig& text) {
  const auto factor = [&](std::string_view key) {
    const double x = config.number(key, 1.0);
    if (!(x > 1e-6 && x < 1e6)) config.fail(key, "a number above 0");
    return static_cast<float>(x);
  };
  text.qkv_bias = text.o_bias = config.boolean("attention_bias", false);
  text.mlp_bias = config.boolean("mlp_bias", false);
  text.attention_sinks = true;
  text.attention_scale = factor("attention_multiplier");
  text.embedding_scale = factor("embedding_multiplier");
  text.residual_scale = factor("residual_multiplier");
  text.logit_scale = 1.0f / factor("logits_scaling");
  text.norm_eps /= text.residual_scale * text.residual_scale;
  const int32_t window = read_window(config, 128);
  if (const Json* types = config.find("layer_types"); types != nullptr) {
    read_layer_types(config, *types, window, text);
  } else {
    for (size_t i = 0; i < text.layers.size(); ++i) text.layers[i].window = i % 4 == 0 ? 0 : window;
  }
  read_layer_thetas(config, text);
}

constexpr TextFamily kGraniteSwa = {.model_type = "granite_swa",
                                    .vocab_size = 100352,
                                    .ffn_size = 8192,
                                    .max_positions = 8192,
                                    .n_kv_heads = 4,
                                    .hidden_size = 2560,
                                    .n_layers = 24,
                                    .n_heads = 20,
                                    .eps = 1e-5,
                                    .tied = true,
                                    .read_switches = read_granite_swa};

// GPT-2: learned positions, layer norms, biases everywhere, one matrix for q, k and v.
const TextNames kGpt2Names = {.embed = "wte.",
                              .positions = "wpe.",
                              .layers = "h.",
                              .norm1 = "ln_1.",
                              .norm2 = "ln_2.",
                              .qkv = {"attn.c_attn."},
                              .o = "attn.c_proj.",
                              .up = {"mlp.c_fc."},
                              .down = "mlp.c_proj.",
                              .final_norm = "ln_f.",
                              .transposed = true};

void read_gpt2(const JsonObject& config, TextConfig& text) {
  text.layer_norm = true;
  text.gated_mlp = false;
  text.qkv_bias = text.o_bias = text.mlp_bias = true;
  if (!config.boolean("scale_attn_weights", true)) config.fail("scale_attn_weights", "true");
  for (const std::string_view key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (config.boolean(key, false)) config.fail(key, "false");
  }
}

constexpr TextFamily kGpt2 = {.model_type = "gpt2",
                              .keys = {.hidden_size = "n_embd",
                                       .n_layers = "n_layer",
                                       .n_heads = "n_head",
                                       .ffn_size = "n_inner",
                                       .max_positions = "n_positions",
                                       .eps = "layer_norm_epsilon",
                                       .activation = "activation_function"},
                              .names = &kGpt2Names,
                              .vocab_size = 50257,
                              .max_positions = 1024,
                              .hidden_size = 768,
                              .n_layers = 12,
                              .n_heads = 12,
                              .eps = 1e-5,
                              .activation = "gelu_new",
                              .tied = true,
                              .learned_positions = true,
                              .read_switches = read_gpt2};

// Baichuan 7B and Baichuan2 7B: Llama with one matrix for q, k and v. arXiv:2309.10305.
const TextNames kBaichuanNames = {.qkv = {"self_attn.W_pack."}};

// Their public code tells the models apart by sizes alone. 13B, which biases attention by distance (ALiBi) instead of
// rotating, has a hidden size of 5120; its configuration class has no max_position_embeddings. Baichuan2, not its
// predecessor of 64000 tokens, divides the rows of the output matrix by their length.
void read_baichuan(const JsonObject& config, TextConfig& text) {
  if (text.hidden_size == 5120 || !config.has("max_position_embeddings")) {
    throw Error(ErrorCode::kUnsupported, config.where() +
                                             ": this is a Baichuan 13B (hidden_size 5120, no max_position_embeddings), "
                                             "whose attention has ALiBi; of this family only 7B, which rotates, is "
                                             "supported");
  }
  const Json* classes = config.find("architectures");
  const bool first =
      text.vocab_size == 64000 || (classes != nullptr && *classes == Json::array({"BaiChuanForCausalLM"}));
  text.unit_head = !first;
}

constexpr TextFamily kBaichuan = {.model_type = "baichuan",
                                  .names = &kBaichuanNames,
                                  .vocab_size = 125696,
                                  .ffn_size = 11008,
                                  .max_positions = 4096,
                                  .read_switches = read_baichuan};

}  // namespace

std::span<const TextFamily> text_families() {
  static constexpr TextFamily kFamilies[] = {
      kLlama,          kMistral,         kQwen2,      kQwen3,      kQwen2VlText, kQwen2_5VlText, kQwen3VlText,
      kQwen3VlMoeText, kPaddleOcrVlText, kGlmOcrText, kGraniteSwa, kGpt2,        kBaichuan};
  return kFamilies;
}

}  // namespace vlcache
