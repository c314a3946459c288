// ModelConfig: the contents of a checkpoint's config.json, in one vocabulary for all families. Shapes and switches
// only; no weights.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "ops/backend.h"

namespace vlcache {

struct Family;

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kNone };

// Rotary embedding: everything that goes into the cos / sin table. arXiv:2104.09864; yarn: arXiv:2309.00071. kNone
// turns nothing: a key is the same at every position.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;             // linear, llama3, yarn
  double low_freq_factor = 1.0;    // llama3
  double high_freq_factor = 4.0;   // llama3
  int64_t original_positions = 0;  // llama3, yarn: the context before it was stretched
  double beta_fast = 32.0;         // yarn
  double beta_slow = 1.0;          // yarn
  bool truncate = true;            // yarn: round the ramp's ends to whole channels
  double attention_factor = 1.0;   // yarn: multiplies cos and sin
  // M-RoPE: how many frequencies turn by t, h and w; zeros: all by t. One section after the other, or interleaved.
  std::array<int64_t, 3> sections{};
  bool interleaved = false;

  bool multimodal() const { return sections != std::array<int64_t, 3>{}; }
};

// What a decoder layer mixes tokens with. Layers of other kinds (recurrent, convolution) are refused by name.
enum class LayerKind : uint8_t { kAttention };

struct TextLayer {
  LayerKind kind = LayerKind::kAttention;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn_size = 0;        // of the MLP, or of one expert
  int64_t n_experts = 0;       // 0: one MLP for all tokens
  int64_t n_experts_used = 0;  // per token
  int32_t window = 0;          // sliding window in tokens, 0: none
  int32_t rope = 0;            // index into TextConfig::ropes
  int32_t shares_kv = -1;      // >= 0: it attends to the K and V of that earlier layer

  int64_t q_size() const { return n_heads * head_dim; }
  int64_t kv_size() const { return n_kv_heads * head_dim; }
  // Experts, or MLPs, that compute a token; the elements between their two products.
  int64_t n_mlps() const { return std::max<int64_t>(1, n_experts_used); }
  int64_t mlp_width() const { return n_mlps() * ffn_size; }
};

struct TextNames;  // family.h

// size: one switch for each way in which decoders differ.
struct TextConfig {
  std::string model_type;  // "llama", "mistral", "qwen2", "qwen3"
  const TextNames* names = nullptr;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t n_layers = 0;
  int64_t max_positions = 0;  // the longest context the model was made for
  float norm_eps = 1e-6f;
  Activation activation = Activation::kSilu;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;       // RMS norm of each head's q and k before rotation (Qwen3)
  float attention_scale = 0;  // on the logits of attention; 0: 1 / sqrt(head_dim)
  float embedding_scale = 1;  // factor of the embedding table's rows
  float logit_scale = 1;      // factor of the output's logits
  // What attention and MLP add is multiplied by this (Granite). The decoder keeps the residual stream h divided by it:
  // h / r + f(norm(h)), where a norm of h is one of h / r with an epsilon of eps / r^2, which norm_eps is.
  float residual_scale = 1;
  bool attention_sinks = false;  // each query head has a logit that joins the denominator (gpt-oss, Granite SWA)
  bool post_norms = false;       // RMS norms of what attention and MLP add (GLM)
  bool layer_norm = false;       // norms are layer norms with biases instead of RMS norms (GPT-2)
  bool gated_mlp = true;         // act(gate) * up, else act(up) (GPT-2)
  // A learned row of each position is added to the embeddings, and nothing is rotated (GPT-2).
  bool learned_positions = false;
  bool pair_rope = false;  // the checkpoint's heads rotate channels (2c, 2c + 1); loading makes halves of them (GLM)
  bool unit_head = false;  // each row of the output projection is divided by its length (Baichuan2)
  bool tied_embeddings = false;   // the output projection is the embedding table
  std::vector<TextLayer> layers;  // [n_layers]
  std::vector<RopeConfig> ropes;  // of the kinds of layers that differ in it

  const TextLayer& layer(int64_t i) const { return layers[static_cast<size_t>(i)]; }
  // The largest of each size among the layers: what buffers must hold.
  TextLayer widest() const;
  // Weights of the matrices of all layers that a step of n_rows is likely to read (of its experts those that some row
  // chooses, if each choice is as likely), and of the output projection.
  double layers_weights(double n_rows) const;
  double output_weights() const { return static_cast<double>(hidden_size * vocab_size); }
  // FLOPs of one token through all layers with `cached` tokens to attend to (the mechanism document's formulas, for
  // grouped heads): 2 per weight, and 4 a cached token and channel for scores and weighted values.
  double layers_flops(double cached) const;
  // Elements of K and V of one token in all layers.
  int64_t kv_elements() const;
};

// Where the learned position of a patch of a rows x cols grid comes from.
enum class VisionPositions : uint8_t {
  kTrainedGrid,     // only the trained grid is used, and a patch has its own position
  kIds,             // VisionTraits::position_ids names one of the table's
  kAlignedCorners,  // interpolated (bilinear): the corners of grid and table coincide
  kAlignedEdges,    // interpolated, the patches' centres spread over the edges of the table
  kNone,
};

// Traits that tell one vision transformer from another, read by the forward pass and the loader.
struct VisionTraits {
  bool class_token = false;  // a learned row before the patches of every tile
  bool patch_bias = false;   // the patch embedding has a bias
  bool pre_norm = false;     // a norm before the first layer
  bool post_norm = false;    // features are the last layer's output after a norm
  bool rms_norm = false;     // norms are RMS norms, without biases
  bool gated_mlp = false;    // act(gate) * up instead of act(fc1)
  bool qk_norm = false;      // RMS norm of each head's q and k before rotation
  bool layer_bias = true;    // the matrices of the layers have biases
  bool rope = false;      // q and k are rotated: the first half of the frequencies by the row, the second by the column
  bool any_grid = false;  // an image is one tile of any height and width, multiples of VisionConfig::cell()
  VisionPositions positions = VisionPositions::kTrainedGrid;
  std::vector<int32_t> (*position_ids)(int64_t side, int64_t rows, int64_t cols) = nullptr;  // of side * side
};

struct VisionNames;  // family.h

struct VisionConfig {
  std::string name;  // "CLIP"
  VisionTraits traits;
  const VisionNames* names = nullptr;
  int64_t hidden_size = 0;
  int64_t ffn_size = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t n_channels = 3;
  int64_t image_size = 0;  // pixels on a side of one tile, or of the grid that the learned positions are for; 0: none
  int64_t patch_size = 0;
  int64_t n_frames = 1;  // that a patch covers in time; a still image is the same frame each time
  // Patches on a side of the square that becomes one token. Above 1, the patches of a square are consecutive rows of
  // the features, and the squares are in raster order.
  int64_t merge = 1;
  int64_t window = 0;                // pixels on a side within which patches attend to each other; 0: the whole tile
  std::vector<int32_t> full_layers;  // layers without that window
  // Layers whose output is projected for the language model's first layers, too (DeepStack, arXiv:2406.04334).
  std::vector<int32_t> tap_layers;
  double rope_theta = 10000.0;
  float layer_norm_eps = 1e-5f;  // of RMS norms too
  Activation activation = Activation::kQuickGelu;
  // Hidden states that form the features, concatenated: 0 = input of the first layer, n_layers = output of the last.
  std::vector<int32_t> feature_layers;
  bool drop_class_token = false;  // "default" select strategy: the class token's row is left out

  int64_t head_dim() const { return hidden_size / n_heads; }
  int64_t side() const { return image_size / patch_size; }
  int64_t cell() const { return patch_size * merge; }                  // pixels on a side of one token
  int64_t n_class_rows() const { return traits.class_token ? 1 : 0; }  // computed per tile
  int64_t n_class_features() const { return traits.class_token && !drop_class_token ? 1 : 0; }  // and left in features
  int64_t n_positions() const { return side() * side() + n_class_rows(); }
  bool windowed(int32_t layer) const;
  int64_t feature_size() const { return hidden_size * static_cast<int64_t>(feature_layers.size()); }
  int64_t n_used_layers() const;  // layers that must be computed
};

// What a prompt names the tiles of an image by (nanoVLM): nothing, row and column, or these after the whole image.
enum class TileText : uint8_t { kNone, kRows, kRowsAndGlobal };

struct Projector;  // projector.h

struct MergerNames;  // projector.h

struct ProjectorConfig {
  const Projector* kind = nullptr;
  const MergerNames* names = nullptr;  // of a merger
  Activation activation = Activation::kGelu;
  bool bias = true;
  bool rms_norm = false;  // of a merger's norm; else it is a layer norm
  float norm_eps = 1e-6f;
  int64_t scale = 1;     // patches on a side of the square that becomes one token
  bool newline = false;  // a learned row that ends each line of an unpadded image (LLaVA-NeXT)
};

// generation_config.json, where the checkpoint has one; ids also from config.json. Absent values have transformers'
// neutral value, except for sampling top_k, which is then filled in.
struct GenerationDefaults {
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
  bool do_sample = false;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  // Rules for the answer's tokens. Ids are in the vocabulary.
  std::vector<std::string> stop_strings;
  std::vector<int32_t> suppress_tokens, begin_suppress_tokens;
  std::vector<std::vector<int32_t>> bad_words_ids;
  std::optional<int32_t> no_repeat_ngram_size;
  std::vector<std::string> not_applied;  // keys that would change answers but are not applied, with a reason or none
};

struct ModelConfig {
  const Family* family = nullptr;
  std::string model_type;     // as config.json has it
  DType dtype = DType::kF32;  // of the checkpoint
  bool states_dtype = false;  // config.json names it; otherwise it is that of the weights
  TextConfig text;
  std::optional<VisionConfig> vision;
  ProjectorConfig projector;
  int32_t image_token_id = -1;      // below vocab_size, unless ...
  bool image_token_beyond = false;  // ... it is vocab_size: no token of the vocabulary stands for images
  TileText tile_text = TileText::kNone;
  // Of families that mark images and videos with them; -1: none.
  // Where the family reads videos (Family::video_placeholder), video_token_id stands for a row of one.
  int32_t video_token_id = -1, vision_start_token_id = -1, vision_end_token_id = -1;
  double tokens_per_second = 0;  // positions in time of a second of video, where M-RoPE counts seconds
  std::vector<std::pair<int64_t, int64_t>>
      grid_pinpoints;  // {height, width} in pixels that tiles may cover (LLaVA-NeXT)
  GenerationDefaults generation;

  // Whether a prompt's token stands for a row of an image or a video.
  bool is_vision_token(int32_t token) const;
  int64_t kv_bytes_per_token(int64_t element_bytes) const { return text.kv_elements() * element_bytes; }
};

// `where` names the file in errors. Keys of transformers 4 and 5 are understood; an absent key has the default of
// transformers' configuration classes. Throws Error(kUnsupported) for an unknown model_type (listing the known ones) or
// an unknown variant, Error(kInput) for missing keys, wrong types and contradictions. `generation`:
// generation_config.json; null if the checkpoint has none.
ModelConfig parse_model_config(const Json& config, std::string_view where, const Json* generation = nullptr);

// `defaults`: its theta, and M-RoPE's sections, which other models must not have. Throws as parse_model_config.
RopeConfig parse_rope_config(const JsonObject& text_config, int64_t max_positions, const RopeConfig& defaults = {});

}  // namespace vlcache
