// Qwen2-VL, Qwen2.5-VL and Qwen3-VL: an image of any size is one grid of patches, four of which become one token.
// arXiv:2409.12191, 2502.13923, 2511.21631.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/families/families.h"
#include "model/projector.h"

namespace vlcache {
namespace {

const VisionNames kQwen2Names = {.patch = "patch_embed.proj.",
                                 .layers = "blocks.",
                                 .norm1 = "norm1.",
                                 .norm2 = "norm2.",
                                 .qkv = {"attn.qkv."},
                                 .out = "attn.proj.",
                                 .fc1 = {"mlp.fc1."},
                                 .fc2 = "mlp.fc2."};
const VisionNames kQwen2_5Names = {.patch = "patch_embed.proj.",
                                   .layers = "blocks.",
                                   .norm1 = "norm1.",
                                   .norm2 = "norm2.",
                                   .qkv = {"attn.qkv."},
                                   .out = "attn.proj.",
                                   .fc1 = {"mlp.gate_proj.", "mlp.up_proj."},
                                   .fc2 = "mlp.down_proj."};
const VisionNames kQwen3Names = {.patch = "patch_embed.proj.",
                                 .positions = "pos_embed.weight",
                                 .layers = "blocks.",
                                 .norm1 = "norm1.",
                                 .norm2 = "norm2.",
                                 .qkv = {"attn.qkv."},
                                 .out = "attn.proj.",
                                 .fc1 = {"mlp.linear_fc1."},
                                 .fc2 = "mlp.linear_fc2."};

constexpr MergerNames kQwen2Merger = {.norm = "merger.ln_q.", .fc1 = "merger.mlp.0.", .fc2 = "merger.mlp.2."};
constexpr MergerNames kQwen3Merger = {.norm = "merger.norm.",
                                      .fc1 = "merger.linear_fc1.",
                                      .fc2 = "merger.linear_fc2.",
                                      .taps = "deepstack_merger_list.",
                                      .tap_norm = "norm.",
                                      .tap_fc1 = "linear_fc1.",
                                      .tap_fc2 = "linear_fc2."};

// Defaults of the classes Qwen2VLVisionConfig, Qwen2_5_VLVisionConfig and Qwen3VLVisionConfig (transformers 5.23).
const VisionFamily kQwen2Vision = {.name = "Qwen2-ViT",
                                   .model_type = "qwen2_vl_vision",
                                   .traits = {.rope = true, .any_grid = true, .positions = VisionPositions::kNone},
                                   .names = &kQwen2Names,
                                   .n_frames = 2,
                                   .hidden_size = 1280,
                                   .ffn_size = 5120,
                                   .n_layers = 32,
                                   .n_heads = 16,
                                   .patch_size = 14,
                                   .eps = 1e-6,
                                   .activation = "quick_gelu"};
const VisionFamily kQwen2_5Vision = {.name = "Qwen2.5-ViT",
                                     .model_type = "qwen2_5_vl_vision",
                                     .traits = {.rms_norm = true,
                                                .gated_mlp = true,
                                                .rope = true,
                                                .any_grid = true,
                                                .positions = VisionPositions::kNone},
                                     .names = &kQwen2_5Names,
                                     .n_frames = 2,
                                     .hidden_size = 3584,
                                     .ffn_size = 3420,
                                     .n_layers = 32,
                                     .n_heads = 16,
                                     .patch_size = 14,
                                     .eps = 1e-6,
                                     .activation = "silu"};
VisionFamily qwen3_vision(std::string_view model_type) {
  return {.name = "Qwen3-ViT",
          .model_type = model_type,
          .traits = {.patch_bias = true, .rope = true, .any_grid = true, .positions = VisionPositions::kAlignedCorners},
          .names = &kQwen3Names,
          .n_frames = 2,
          .hidden_size = 1152,
          .ffn_size = 4304,
          .n_layers = 27,
          .n_heads = 16,
          .patch_size = 16,
          .eps = 1e-6,
          .activation = "gelu_pytorch_tanh"};
}
const VisionFamily kQwen3Vision = qwen3_vision("qwen3_vl_vision"),
                   kQwen3MoeVision = qwen3_vision("qwen3_vl_moe_vision");

constexpr GridTokens kQwenTokens = {.image = 151655,
                                    .video = 151656,
                                    .start_key = "vision_start_token_id",
                                    .start = 151652,
                                    .end_key = "vision_end_token_id",
                                    .end = 151653};

// Numbers of layers, ascending; `fallback` if the key is absent.
std::vector<int32_t> layer_list(const JsonObject& config, std::string_view key, std::vector<int32_t> fallback,
                                int64_t n_layers) {
  if (const Json* list = config.find(key); list != nullptr) {
    fallback.clear();
    const bool fits = list->is_array() && std::ssize(*list) <= n_layers;
    for (const Json& item : fits ? *list : Json::array({Json()})) {
      const int64_t layer = item.is_number_integer() ? item.get<int64_t>() : -1;
      if (layer < 0 || layer >= n_layers || (!fallback.empty() && layer <= fallback.back()))
        config.fail(key, "ascending numbers of layers, each from 0 to " + std::to_string(n_layers - 1));
      fallback.push_back(static_cast<int32_t>(layer));
    }
  }
  std::erase_if(fallback, [&](int32_t layer) { return layer >= n_layers; });
  return fallback;
}

void read_qwen2_vl(const JsonObject& root, ModelConfig& out) {
  read_grid_text(root, kQwenTokens, out);
  // Its hidden_size is that of the output.
  const JsonObject config = vision_part(root);
  Json own = config.raw();
  own["hidden_size"] = config.integer("embed_dim", 1280);
  const double ratio = config.number("mlp_ratio", 4.0);
  if (!(ratio > 0.0 && ratio <= 64.0)) config.fail("mlp_ratio", "a number above 0, 64 at most");
  own["intermediate_size"] = static_cast<int64_t>(static_cast<double>(config.integer("embed_dim", 1280)) * ratio);
  read_grid_vision(JsonObject(own, config.where()), kQwen2Vision, {.names = &kQwen2Merger}, out);
  check_output_size(config, "hidden_size", 3584, out);
}

void read_qwen2_5_vl(const JsonObject& root, ModelConfig& out) {
  read_grid_text(root, kQwenTokens, out);
  const JsonObject config = vision_part(root);
  read_grid_vision(config, kQwen2_5Vision, {.names = &kQwen2Merger, .rms_norm = true}, out);
  VisionConfig& v = *out.vision;
  v.full_layers = layer_list(config, "fullatt_block_indexes", {7, 15, 23, 31}, v.n_layers);
  v.window = small_number(config, "window_size", 112, 1 << 16);
  out.tokens_per_second = config.number("tokens_per_second", 4);
  if (!(out.tokens_per_second > 0 && out.tokens_per_second <= 1e6))
    config.fail("tokens_per_second", "a number above 0, 1000000 at most");
  if (v.window < v.cell()) {
    config.fail("window_size", "at least patch_size times spatial_merge_size (" + std::to_string(v.cell()) + ")");
  }
  check_output_size(config, "out_hidden_size", 3584, out);
}

void read_qwen3_vl(const JsonObject& root, ModelConfig& out) {
  read_grid_text(root, kQwenTokens, out);
  const JsonObject config = vision_part(root);
  const bool experts = out.model_type == "qwen3_vl_moe";
  read_grid_vision(config, experts ? kQwen3MoeVision : kQwen3Vision, {.names = &kQwen3Merger}, out);
  VisionConfig& v = *out.vision;
  const int64_t n_positions = small_number(config, "num_position_embeddings", 2304, 1 << 20);
  int64_t side = 1;
  while ((side + 1) * (side + 1) <= n_positions) ++side;
  if (side * side != n_positions) config.fail("num_position_embeddings", "a square number");
  v.image_size = side * v.patch_size;
  v.tap_layers = layer_list(config, "deepstack_visual_indexes", {8, 16, 24}, v.n_layers);
  if (std::ssize(v.tap_layers) > out.text.n_layers) {
    config.fail("deepstack_visual_indexes",
                "at most one for each of the language model's " + std::to_string(out.text.n_layers) + " layers");
  }
  check_output_size(config, "out_hidden_size", 3584, out);
}

constexpr std::string_view kVideoToken = "<|video_pad|>", kStart = "<|vision_start|>", kEnd = "<|vision_end|>";

int32_t qwen2_unit_time(const ModelConfig&, int64_t k, double) { return static_cast<int32_t>(k); }

// In the order and precision in which transformers multiplies.
int32_t qwen2_5_unit_time(const ModelConfig& config, int64_t k, double seconds_per_unit) {
  const auto per_unit = static_cast<float>(config.tokens_per_second) * static_cast<float>(seconds_per_unit);
  const float t = static_cast<float>(k) * per_unit;
  return t < static_cast<float>(INT32_MAX / 2) ? static_cast<int32_t>(t) : INT32_MAX / 2;
}

// A time before each unit, and the unit between its markers. The markers that templates write around the placeholder
// are left out, as in the processor with which the model was released (transformers 4.57) and in vLLM; transformers
// 5.23 leaves them around the whole.
std::string qwen3_video_text(const ModelConfig& config, std::span<const ImageTiles> units) {
  std::string text;
  for (const ImageTiles& image : units) {
    char time[64];
    std::snprintf(time, sizeof(time), "<%.1f seconds>", image.unit->seconds);
    const auto n_tokens = std::ssize(grid_token_rows(config, image));
    text.append(time).append(kStart).append(repeat(kVideoToken, n_tokens)).append(kEnd);
  }
  return text;
}

Family qwen_family(std::string_view model_type, void (*read_config)(const JsonObject&, ModelConfig&)) {
  return {.model_type = model_type,
          .prefixes = {.text = {"model.language_model.", "language_model.model.", "model.", "language_model."},
                       .lm_head = {"", "language_model."},
                       .vision = {"model.visual.", "visual."},
                       .projector = {"model.visual.", "visual."}},
          .read_config = read_config,
          .image_placeholder = "<|image_pad|>",
          .token_rows = grid_token_rows,
          .image_positions = grid_positions,
          .video_placeholder = kVideoToken};
}

// Units of a video follow each other without a token between them.
Family qwen2_family(std::string_view model_type, void (*read_config)(const JsonObject&, ModelConfig&),
                    int32_t (*unit_time)(const ModelConfig&, int64_t, double)) {
  Family family = qwen_family(model_type, read_config);
  family.unit_time = unit_time;
  return family;
}

Family qwen3_family(std::string_view model_type) {
  Family family = qwen_family(model_type, read_qwen3_vl);
  family.video_text = qwen3_video_text;
  family.before_video = kStart;
  family.after_video = kEnd;
  return family;
}

}  // namespace

const Family kQwen2Vl = qwen2_family("qwen2_vl", read_qwen2_vl, qwen2_unit_time),
             kQwen2_5Vl = qwen2_family("qwen2_5_vl", read_qwen2_5_vl, qwen2_5_unit_time),
             kQwen3Vl = qwen3_family("qwen3_vl"), kQwen3VlMoe = qwen3_family("qwen3_vl_moe");

}  // namespace vlcache
