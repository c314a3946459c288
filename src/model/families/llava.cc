// LLaVA-1.5: one tile per image, its patches in place of the placeholder. arXiv:2310.03744.
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "model/families/families.h"
#include "model/projector.h"

namespace vlcache {
namespace {

// LlavaConfig's own vision encoder, for a config.json that names none: CLIP-L at 336 pixels.
Json default_clip() {
  return {{"intermediate_size", 4096}, {"hidden_size", 1024},     {"patch_size", 14},
          {"image_size", 336},         {"num_hidden_layers", 24}, {"num_attention_heads", 16}};
}

// Indices into the hidden states, from the end if negative: -1 is the last layer's output.
std::vector<int32_t> feature_layers(const JsonObject& root, int64_t n_layers) {
  const Json* value = root.find("vision_feature_layer");
  const Json list = value == nullptr ? Json::array({-2}) : value->is_array() ? *value : Json::array({*value});
  std::vector<int32_t> layers;
  for (const Json& item : list) {
    const int64_t i = item.is_number_integer() ? item.get<int64_t>() : INT32_MAX;
    if (i < -n_layers - 1 || i > n_layers) {
      root.fail("vision_feature_layer", "a layer or a list of them, each from " + std::to_string(-n_layers - 1) +
                                            " to " + std::to_string(n_layers));
    }
    layers.push_back(static_cast<int32_t>(i < 0 ? i + n_layers + 1 : i));
  }
  if (layers.empty() || layers.size() > 64) root.fail("vision_feature_layer", "1 to 64 layers");
  return layers;
}

// The rows of the one tile, in order.
std::vector<int32_t> llava_token_rows(const ModelConfig& config, const ImageTiles&) {
  const VisionConfig& vision = *config.vision;
  std::vector<int32_t> rows(static_cast<size_t>(vision.side() * vision.side() + vision.n_class_features()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

}  // namespace

void read_llava_config(const JsonObject& root, ModelConfig& out) {
  static const Json kNoText = Json::object(), kClip = default_clip();
  read_parts(root, {kNoText, kClip}, kClipVision, out);
  out.vision->feature_layers = feature_layers(root, out.vision->n_layers);
  const std::string strategy = root.string("vision_feature_select_strategy", "default");
  if (strategy != "default" && strategy != "full") root.fail("vision_feature_select_strategy", "default or full");
  out.vision->drop_class_token = strategy == "default";
  out.projector = {.kind = &kMlpProjector,
                   .activation = read_activation(root, "projector_hidden_act", "gelu"),
                   .bias = root.boolean("multimodal_projector_bias", true)};
  const std::string_view key = root.has("image_token_id") ? "image_token_id" : "image_token_index";
  out.image_token_id = static_cast<int32_t>(std::min<int64_t>(root.integer(key, 32000), INT32_MAX));
}

WeightPrefixes llava_prefixes() {
  return {.text = {"language_model.model.", "model.language_model.", "language_model."},
          .lm_head = {"language_model.", ""},
          .vision = {"vision_tower.vision_model.", "model.vision_tower.vision_model.", "model.vision_tower.",
                     "vision_tower."},
          .projector = {"multi_modal_projector.", "model.multi_modal_projector."}};
}

const Family kLlava = {.model_type = "llava",
                       .prefixes = llava_prefixes(),
                       .read_config = read_llava_config,
                       .image_placeholder = "<image>",
                       .token_rows = llava_token_rows};

}  // namespace vlcache
