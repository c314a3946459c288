// Qwen2-VL, Qwen2.5-VL and Qwen3-VL: an image of any size is one grid of patches, four of which become one token.
// arXiv:2409.12191, 2502.13923, 2511.21631.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

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

// An int, or that number for each of two sides.
int64_t small_size(const JsonObject& config, std::string_view key, int64_t fallback, int64_t most) {
  const int64_t x = config.integer(key, fallback);
  if (x < 1 || x > most) config.fail(key, "a number from 1 to " + std::to_string(most));
  return x;
}

// The part of the configuration that a text_config holds; older files have it at the root, where model_type is that of
// the whole.
Json text_part(const JsonObject& root, const std::string& model_type) {
  if (const Json* text = root.find("text_config"); text != nullptr) return *text;
  Json text = root.raw();
  text.erase("vision_config");
  text["model_type"] = model_type + "_text";
  return text;
}

int32_t token_id(const JsonObject& root, std::string_view key, int64_t fallback, int64_t vocab_size) {
  const int64_t id = root.integer(key, fallback);
  if (id < 0 || id >= vocab_size) {
    throw Error(ErrorCode::kInput, root.where() + ": " + std::string(key) + " " + std::to_string(id) +
                                       " is outside the vocabulary of " + std::to_string(vocab_size));
  }
  return static_cast<int32_t>(id);
}

void read_vision(const JsonObject& config, const VisionFamily& family, const ProjectorConfig& merger,
                 ModelConfig& out) {
  out.vision = parse_vision_config(config, family);
  VisionConfig& v = *out.vision;
  v.n_frames = small_size(config, "temporal_patch_size", 2, 16);
  v.merge = small_size(config, "spatial_merge_size", 2, 16);
  v.feature_layers = {static_cast<int32_t>(v.n_layers)};
  out.projector = merger;
  out.projector.kind = &kMergerProjector;
  out.projector.scale = v.merge;
}

void check_output(const JsonObject& config, std::string_view key, int64_t fallback, const ModelConfig& out) {
  const int64_t size = config.integer(key, fallback);
  if (size != out.text.hidden_size) {
    config.fail(key, "the language model's hidden_size (" + std::to_string(out.text.hidden_size) + ")");
  }
}

void read_text(const JsonObject& root, ModelConfig& out) {
  const Json text = text_part(root, out.model_type);
  out.text = parse_text_config(JsonObject(text, root.where() + ": text_config"), out.model_type + "_text");
  out.text.tied_embeddings = out.text.tied_embeddings || root.boolean("tie_word_embeddings", false);
  const auto id = [&](std::string_view key, int64_t fallback) {
    return token_id(root, key, fallback, out.text.vocab_size);
  };
  out.image_token_id = id("image_token_id", 151655);
  out.video_token_id = id("video_token_id", 151656);
  out.vision_start_token_id = id("vision_start_token_id", 151652);
  out.vision_end_token_id = id("vision_end_token_id", 151653);
}

JsonObject vision_part(const JsonObject& root) {
  static const Json kNoVision = Json::object();
  const Json* vision = root.find("vision_config");
  return JsonObject(vision != nullptr ? *vision : kNoVision, root.where() + ": vision_config");
}

void read_qwen2_vl(const JsonObject& root, ModelConfig& out) {
  read_text(root, out);
  // Its hidden_size is that of the output.
  const JsonObject config = vision_part(root);
  Json own = config.raw();
  own["hidden_size"] = config.integer("embed_dim", 1280);
  const double ratio = config.number("mlp_ratio", 4.0);
  if (!(ratio > 0.0 && ratio <= 64.0)) config.fail("mlp_ratio", "a number above 0, 64 at most");
  own["intermediate_size"] = static_cast<int64_t>(static_cast<double>(config.integer("embed_dim", 1280)) * ratio);
  read_vision(JsonObject(own, config.where()), kQwen2Vision, {.names = &kQwen2Merger}, out);
  check_output(config, "hidden_size", 3584, out);
}

void read_qwen2_5_vl(const JsonObject& root, ModelConfig& out) {
  read_text(root, out);
  const JsonObject config = vision_part(root);
  read_vision(config, kQwen2_5Vision, {.names = &kQwen2Merger, .rms_norm = true}, out);
  VisionConfig& v = *out.vision;
  v.full_layers = layer_list(config, "fullatt_block_indexes", {7, 15, 23, 31}, v.n_layers);
  v.window = small_size(config, "window_size", 112, 1 << 16);
  if (v.window < v.cell()) {
    config.fail("window_size", "at least patch_size times spatial_merge_size (" + std::to_string(v.cell()) + ")");
  }
  check_output(config, "out_hidden_size", 3584, out);
}

void read_qwen3_vl(const JsonObject& root, ModelConfig& out) {
  read_text(root, out);
  const JsonObject config = vision_part(root);
  const bool experts = out.model_type == "qwen3_vl_moe";
  read_vision(config, experts ? kQwen3MoeVision : kQwen3Vision, {.names = &kQwen3Merger}, out);
  VisionConfig& v = *out.vision;
  const int64_t n_positions = small_size(config, "num_position_embeddings", 2304, 1 << 20);
  int64_t side = 1;
  while ((side + 1) * (side + 1) <= n_positions) ++side;
  if (side * side != n_positions) config.fail("num_position_embeddings", "a square number");
  v.image_size = side * v.patch_size;
  v.tap_layers = layer_list(config, "deepstack_visual_indexes", {8, 16, 24}, v.n_layers);
  if (std::ssize(v.tap_layers) > out.text.n_layers) {
    config.fail("deepstack_visual_indexes",
                "at most one for each of the language model's " + std::to_string(out.text.n_layers) + " layers");
  }
  check_output(config, "out_hidden_size", 3584, out);
}

// One row a token, in raster order.
std::vector<int32_t> qwen_token_rows(const ModelConfig& config, const ImageTiles& image) {
  const int64_t cell = config.vision->cell();
  std::vector<int32_t> rows(static_cast<size_t>(image.n_tiles * (image.height / cell) * (image.width / cell)));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// All at one time, a row and a column for each (Qwen2VLModel.get_vision_position_ids in transformers).
std::vector<Position> qwen_positions(const ModelConfig& config, const ImageTiles& image) {
  const int64_t cell = config.vision->cell();
  std::vector<Position> positions;
  for (int32_t t = 0; t < image.n_tiles; ++t) {
    for (int32_t h = 0; h < image.height / cell; ++h) {
      for (int32_t w = 0; w < image.width / cell; ++w) positions.push_back({t, h, w});
    }
  }
  return positions;
}

Family qwen_family(std::string_view model_type, void (*read_config)(const JsonObject&, ModelConfig&)) {
  return {.model_type = model_type,
          .prefixes = {.text = {"model.language_model.", "language_model.model.", "model.", "language_model."},
                       .lm_head = {"", "language_model."},
                       .vision = {"model.visual.", "visual."},
                       .projector = {"model.visual.", "visual."}},
          .read_config = read_config,
          .image_placeholder = "<|image_pad|>",
          .token_rows = qwen_token_rows,
          .image_positions = qwen_positions};
}

}  // namespace

const Family kQwen2Vl = qwen_family("qwen2_vl", read_qwen2_vl), kQwen2_5Vl = qwen_family("qwen2_5_vl", read_qwen2_5_vl),
             kQwen3Vl = qwen_family("qwen3_vl", read_qwen3_vl),
             kQwen3VlMoe = qwen_family("qwen3_vl_moe", read_qwen3_vl);

}  // namespace vlcache
