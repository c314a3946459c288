// Declares the parts of a family. A new family is a file in this folder and a line in registry.cc; a new language model
// is an entry in text.cc.
#pragma once

#include <array>
#include <span>

#include "model/family.h"

namespace vlcache {

// The keys of a language model's configuration.
struct TextKeys {
  std::string_view vocab_size = "vocab_size";
  std::string_view hidden_size = "hidden_size", n_layers = "num_hidden_layers", n_heads = "num_attention_heads";
  std::string_view n_kv_heads = "num_key_value_heads", ffn_size = "intermediate_size";
  std::string_view max_positions = "max_position_embeddings", eps = "rms_norm_eps", activation = "hidden_act";
  std::string_view tied = "tie_word_embeddings";
};

// A decoder that text_decoder.cc can run: the defaults of its configuration class's absent keys, and the switches it
// sets. Also the language model of vision families.
struct TextFamily {
  std::string_view model_type;
  TextKeys keys = {};
  const TextNames* names = &kLlamaNames;
  int64_t vocab_size = 0, ffn_size = 0, max_positions = 0;  // defaults; ffn_size 0: 4 hidden_size
  int64_t n_kv_heads = 0;                                   // default; 0: as many as heads
  int64_t head_dim = 0;                                     // default; 0: hidden / heads
  int64_t hidden_size = 4096, n_layers = 32, n_heads = 32;  // defaults
  double eps = 1e-6, theta = 10000.0;                       // defaults
  std::string_view activation = "silu";                     // default
  bool tied = false;                                        // default
  bool learned_positions = false;                           // as TextConfig's
  // M-RoPE: the default of mrope_section, and how sections are dealt. Zeros: the model knows no M-RoPE.
  std::array<int64_t, 3> sections{};
  bool interleaved = false;
  // Reads biases, norms and windows; everything else is already read, no layer has a window.
  void (*read_switches)(const JsonObject& config, TextConfig& out) = nullptr;
};
std::span<const TextFamily> text_families();
TextConfig parse_text_config(const JsonObject& config, std::string_view default_model_type);
// The same of one family, whatever model_type the configuration names.
TextConfig read_text_config(const JsonObject& config, const TextFamily& family);

// The epsilon of a norm. Throws Error(kInput) unless it is from 0 to 1.
float read_eps(const JsonObject& config, std::string_view key, double fallback);
Activation read_activation(const JsonObject& config, std::string_view key, std::string_view fallback);
// sliding_window; `fallback` if the key is absent, 0 if it is null.
int32_t read_window(const JsonObject& config, int32_t fallback);
// The layers' windows by their layer_types.
void read_layer_types(const JsonObject& config, const Json& types, int32_t window, TextConfig& text);
// use_sliding_window with layer_types or max_window_layers, of Qwen2 and Qwen3.
void read_qwen_windows(const JsonObject& config, TextConfig& text);

// A transformer that vision_encoder.cc can run, and the defaults of its configuration class's absent keys.
struct VisionFamily {
  std::string_view name;
  std::string_view model_type;  // that a vision_config may name; empty: any
  VisionTraits traits;
  const VisionNames* names = &kSiglipNames;
  int64_t n_frames = 1;
  int64_t hidden_size = 0, ffn_size = 0, n_layers = 0, n_heads = 0, image_size = 0, patch_size = 0;  // defaults
  double eps = 0;
  std::string_view activation;
};
// ---- families whose images are grids of any size (grids.cc) ----

// Default ids, and the keys that the ids around an image have.
struct GridTokens {
  int64_t image = 0, video = 0;
  std::string_view start_key;
  int64_t start = 0;
  std::string_view end_key;
  int64_t end = 0;
};
// The language model, which older files describe at the root, and the ids of tokens, which must be in its vocabulary.
void read_grid_text(const JsonObject& root, const GridTokens& tokens, ModelConfig& out);
// vision_config, empty if absent.
JsonObject vision_part(const JsonObject& root);
// The encoder, and a projector that joins its patches; kMergerProjector unless `merger` names another kind.
void read_grid_vision(const JsonObject& config, const VisionFamily& family, const ProjectorConfig& merger,
                      ModelConfig& out);
// Throws Error(kInput) unless the projector's output is as wide as the language model.
void check_output_size(const JsonObject& config, std::string_view key, int64_t fallback, const ModelConfig& out);
// A number from 1 to `most`.
int64_t small_number(const JsonObject& config, std::string_view key, int64_t fallback, int64_t most);
std::vector<int32_t> grid_token_rows(const ModelConfig& config, const ImageTiles& image);
std::vector<Position> grid_positions(const ModelConfig& config, const ImageTiles& image);

extern const VisionFamily kClipVision, kSiglipVision;
VisionConfig parse_vision_config(const JsonObject& config, const VisionFamily& family);

// text_config and vision_config of a vision model; if one is absent, the object given instead.
struct PartDefaults {
  const Json& text;
  const Json& vision;
};
void read_parts(const JsonObject& root, const PartDefaults& absent, const VisionFamily& vision, ModelConfig& out);

extern const Family kLlava, kLlavaNext, kIdefics3, kSmolVlm, kQwen2Vl, kQwen2_5Vl, kQwen3Vl, kQwen3VlMoe, kPaddleOcrVl,
    kGlmOcr, kNanoVlm;

// LLaVA and LLaVA-NeXT: CLIP with chosen feature layers, a two-layer projector, a language model of any text family.
void read_llava_config(const JsonObject& root, ModelConfig& out);
WeightPrefixes llava_prefixes();

// SigLIP's positions: the learned one at the same relative position. In f32 throughout, as in transformers'
// Idefics3VisionEmbeddings.
std::vector<int32_t> siglip_position_ids(int64_t side, int64_t grid_rows, int64_t grid_cols);

// `text` n times.
std::string repeat(std::string_view text, int64_t n);

}  // namespace vlcache
