#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/families/families.h"

namespace vlcache {
namespace {

int64_t vision_size_of(const JsonObject& config, std::string_view key, int64_t fallback) {
  const int64_t x = config.integer(key, fallback);
  if (x < 1 || x > (int64_t{1} << 20)) config.fail(key, "a size from 1 to 1048576");
  return x;
}

// An int, or [height, width] of a square.
int64_t side_of(const JsonObject& config, std::string_view key, int64_t fallback) {
  const Json* value = config.find(key);
  if (value != nullptr && value->is_array()) {
    if (value->size() != 2 || (*value)[0] != (*value)[1] || !(*value)[0].is_number_integer())
      config.fail(key, "one size, or twice the same");
    fallback = (*value)[0].get<int64_t>();
    if (fallback < 1 || fallback > (int64_t{1} << 16)) config.fail(key, "a size from 1 to 65536");
    return fallback;
  }
  const int64_t x = vision_size_of(config, key, fallback);
  if (x > (int64_t{1} << 16)) config.fail(key, "a size from 1 to 65536");
  return x;
}

// The spelling that is present, else the first.
std::string_view spelling(const JsonObject& config, std::string_view key, std::string_view other) {
  return config.has(key) || !config.has(other) ? key : other;
}

}  // namespace

VisionConfig parse_vision_config(const JsonObject& config, const VisionFamily& d) {
  // Older files name the whole model where the class of the encoder belongs.
  const std::string type = config.string("model_type", d.model_type);
  if (!d.model_type.empty() && type != d.model_type && type + "_vision" != d.model_type) {
    throw Error(ErrorCode::kUnsupported, config.where() + ": model_type " + shown_json(Json(type)) +
                                             " is not supported here; supported: " + std::string(d.model_type));
  }
  VisionConfig v;
  v.name = d.name;
  v.traits = d.traits;
  v.names = d.names;
  v.hidden_size = vision_size_of(config, "hidden_size", d.hidden_size);
  v.ffn_size = vision_size_of(config, "intermediate_size", d.ffn_size);
  const std::string_view layers = spelling(config, "num_hidden_layers", "depth"),
                         heads = spelling(config, "num_attention_heads", "num_heads");
  v.n_layers = vision_size_of(config, layers, d.n_layers);
  if (v.n_layers > 4096) config.fail(layers, "at most 4096 layers");
  v.n_heads = vision_size_of(config, heads, d.n_heads);
  if (v.hidden_size % v.n_heads != 0) {
    config.fail(heads, "a divisor of hidden_size (" + std::to_string(v.hidden_size) + ")");
  }
  if (v.head_dim() % 2 != 0 || v.head_dim() > kMaxHeadDim) {
    config.fail(heads, "heads of an even size of at most " + std::to_string(kMaxHeadDim) + " (hidden_size " +
                           std::to_string(v.hidden_size) + " gives " + std::to_string(v.head_dim()) + ")");
  }
  if (v.traits.rope && v.head_dim() % 4 != 0) {
    config.fail(heads, "heads of a multiple of 4 channels, half of them for rows and half for columns (hidden_size " +
                           std::to_string(v.hidden_size) + " gives " + std::to_string(v.head_dim()) + ")");
  }
  const std::string_view channels = spelling(config, "num_channels", spelling(config, "in_channels", "in_chans"));
  v.n_channels = vision_size_of(config, channels, 3);
  if (v.n_channels != 3) config.fail(channels, "3");
  v.patch_size = side_of(config, "patch_size", d.patch_size);
  if (d.image_size > 0) {
    v.image_size = side_of(config, "image_size", d.image_size);
    if (v.patch_size > v.image_size)
      config.fail("patch_size", "at most image_size (" + std::to_string(v.image_size) + ")");
  }
  if (v.traits.rope && config.find("rope_parameters") != nullptr) {
    const JsonObject rope = config.object("rope_parameters");
    if (rope.string("rope_type", "axial") != "axial") rope.fail("rope_type", "axial");
    v.rope_theta = rope.number("rope_theta", v.rope_theta);
    if (!(v.rope_theta > 0.0 && v.rope_theta < 1e30)) rope.fail("rope_theta", "a number above 0");
  }
  v.layer_norm_eps = read_eps(config, spelling(config, "layer_norm_eps", "rms_norm_eps"), d.eps);
  v.activation = read_activation(config, "hidden_act", d.activation);
  if (v.traits.post_norm) v.feature_layers = {static_cast<int32_t>(v.n_layers)};
  return v;
}

void read_parts(const JsonObject& root, const PartDefaults& absent, const VisionFamily& vision, ModelConfig& out) {
  const auto part = [&root](const char* key, const Json& fallback) {
    const Json* found = root.find(key);
    return JsonObject(found != nullptr ? *found : fallback, root.where() + ": " + key);
  };
  out.text = parse_text_config(part("text_config", absent.text), "llama");
  out.text.tied_embeddings = out.text.tied_embeddings || root.boolean("tie_word_embeddings", false);
  out.vision = parse_vision_config(part("vision_config", absent.vision), vision);
}

}  // namespace vlcache
