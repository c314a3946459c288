// Family: the tensor names of its checkpoints, how its prompts name images, and which rows become image tokens. One
// value per family, in families/.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/contracts/position.h"
#include "model/config.h"
#include "model/images/image_tiles.h"

namespace vlcache {

// Prefixes under which a checkpoint may keep its tensors, most likely first; transformers 4 and 5 differ.
struct WeightPrefixes {
  std::vector<std::string_view> text;       // before TextNames
  std::vector<std::string_view> lm_head;    // before TextNames::lm_head
  std::vector<std::string_view> vision;     // before VisionNames
  std::vector<std::string_view> projector;  // before the projector's own names
};

// Names of a language model's tensors after its prefix, by default the names of Llama and its descendants. A module's
// name ends with a dot, before "weight" and "bias".
struct TextNames {
  std::string_view embed = "embed_tokens.";
  std::string_view positions = {};      // with learned positions
  std::string_view layers = "layers.";  // before a layer's number; the names below follow it, up to final_norm
  std::string_view norm1 = "input_layernorm.", norm2 = "post_attention_layernorm.";
  // q, k and v, in one module or in three.
  std::vector<std::string_view> qkv = {"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."};
  std::string_view q_norm = "self_attn.q_norm.", k_norm = "self_attn.k_norm.";
  std::string_view sinks = "self_attn.sinks";
  std::string_view o = "self_attn.o_proj.";
  std::string_view post_attn_norm = "post_self_attn_layernorm.", post_mlp_norm = "post_mlp_layernorm.";
  std::vector<std::string_view> up = {"mlp.gate_proj.", "mlp.up_proj."};  // gate and up, or up alone
  std::string_view down = "mlp.down_proj.";
  std::string_view experts = "mlp.";
  std::string_view final_norm = "norm.";
  std::string_view lm_head = "lm_head.";
  bool transposed = false;  // the layers' matrices are stored [in, out] (GPT-2's Conv1D)
};
extern const TextNames kLlamaNames;

// Names of a vision encoder's tensors after its prefix, by default SigLIP's and CLIP's. A module's name ends with a
// dot, before "weight" and "bias".
struct VisionNames {
  std::string_view patch = "embeddings.patch_embedding.";
  std::string_view positions = "embeddings.position_embedding.weight";
  bool one_batch_of_positions = false;  // stored as [1, n_positions, h]
  std::string_view class_embedding = "embeddings.class_embedding";
  std::string_view pre_norm = "pre_layrnorm.";  // as CLIP's checkpoints spell it
  std::string_view post_norm = "post_layernorm.";
  std::string_view layers = "encoder.layers.";  // before a layer's number; the names below follow it
  std::string_view norm1 = "layer_norm1.", norm2 = "layer_norm2.";
  // q, k and v, in one module or in three.
  std::vector<std::string_view> qkv = {"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."};
  std::string_view q_norm = {}, k_norm = {};
  std::string_view out = "self_attn.out_proj.";
  std::vector<std::string_view> fc1 = {"mlp.fc1."};  // or gate and up
  std::string_view fc2 = "mlp.fc2.";
};
extern const VisionNames kSiglipNames;

inline constexpr int32_t kNewlineRow = -1;  // the learned newline, in token_rows

// Which of a prompt's images one is.
struct ImageNumber {
  int64_t index = 0, count = 1;
};

struct Family {
  std::string_view model_type;  // of config.json
  WeightPrefixes prefixes;
  // Fills everything but dtype and generation.
  void (*read_config)(const JsonObject& config, ModelConfig& out);
  std::string_view image_placeholder = {};  // "<image>"; empty: a text model
  // The image's tokens in order, each as a row of its projected tiles (tile after tile) or kNewlineRow. Throws
  // Error(kInput) when the tiles do not fit the grid the model was configured for.
  std::vector<int32_t> (*token_rows)(const ModelConfig& config, const ImageTiles& image) = nullptr;
  // What one placeholder of a prompt becomes before it is tokenised. Null: the placeholder, once for each token.
  std::string (*image_text)(const ModelConfig& config, const ImageTiles& image, const ImageNumber& number) = nullptr;
  // Where M-RoPE places an image's tokens relative to where the image begins: those of all its cells, also of dropped
  // ones (KeptCells), in the order of token_rows. Null: one after the other, like text.
  std::vector<Position> (*image_positions)(const ModelConfig& config, const ImageTiles& image) = nullptr;

  // Special tokens that mark a checkpoint whose answers consist of them: where its vocabulary has one of these, answers
  // show special tokens by default.
  std::vector<std::string_view> answer_tokens = {};

  // ---- videos -------------------------------------------------------------------------------------------------------
  std::string_view video_placeholder = {};  // "<|video_pad|>"; empty: the family reads no video
  // What one placeholder of a prompt becomes, from the units of its video. Null: the placeholder, once for each token.
  std::string (*video_text)(const ModelConfig& config, std::span<const ImageTiles> units) = nullptr;
  // Where templates write these around the placeholder, video_text stands for them, too.
  std::string_view before_video = {}, after_video = {};
  // Positions from a video's first unit to unit k. Null: 0, since other tokens stand between units.
  int32_t (*unit_time)(const ModelConfig& config, int64_t k, double seconds_per_unit) = nullptr;
};

// Throws Error(kUnsupported) that lists the known model types.
const Family& find_family(std::string_view model_type, std::string_view where);

// What a placeholder of a prompt stands for.
enum class PlaceholderKind : uint8_t { kImage, kVideo };
// The placeholders of `text`, in their order. Throws Error(kInput) with both counts if they and the given media differ
// in number, also for an image given to a text model.
std::vector<PlaceholderKind> media_order(const ModelConfig& config, std::string_view text, size_t n_images,
                                         size_t n_videos);

// The text to tokenise: every placeholder of `text` replaced by the text of its image or video, their tokens repeated,
// as the family's processor in transformers does it. `images`: those of the prompt, and the units of its videos, in the
// order of the placeholders. Throws as media_order.
std::string expand_prompt(const ModelConfig& config, std::string_view text, std::span<const ImageTiles> images);

// Time, rows and columns of the patches of an image, where the model reads images of any size; else zeros.
std::array<int64_t, 3> image_grid(const ModelConfig& config, const ImageTiles& image);

// The tile, row and patches a token of an image was computed from.
struct TokenPlace {
  int32_t tile = -1;              // -1: a newline
  int32_t row = -1;               // of the tile's rows in the projector's output
  std::optional<PixelRect> rect;  // what its patches show, beyond the image in padding; none: newline, class token
};
// Of each token, in the order of token_rows. Throws as token_rows.
std::vector<TokenPlace> token_places(const ModelConfig& config, const ImageTiles& image);

// The rectangle of the original image that each token, in the order of token_rows, was computed from: what its patches
// show, clipped to the image. None for newlines, class tokens, the overview of a split image, and tokens that show
// padding only. Throws as token_rows.
std::vector<std::optional<PixelRect>> token_rects(const ModelConfig& config, const ImageTiles& image);

}  // namespace vlcache
