#include "model/processors/registry.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/checkpoint/checkpoint.h"

namespace vlcache {
namespace {

struct Entry {
  std::string_view type;        // image_processor_type; empty: that of the entry before
  std::string_view model_type;  // of config.json, for checkpoints whose processor settings name no type
  std::unique_ptr<ImageProcessor> (*make)(const JsonObject& config);
};

constexpr Entry kProcessors[] = {
    {"CLIPImageProcessor", "clip", make_clip_processor},
    {"LlavaImageProcessor", "llava", make_llava_processor},
    {"LlavaNextImageProcessor", "llava_next", make_llava_next_processor},
    {"Idefics3ImageProcessor", "idefics3", make_idefics3_processor},
    {"SmolVLMImageProcessor", "smolvlm", make_idefics3_processor},
    {"SiglipImageProcessor", "siglip", make_siglip_processor},
    {"ViTImageProcessor", "vit", make_vit_processor},
    {"Qwen2VLImageProcessor", "qwen2_vl", make_qwen2_vl_processor},
    {"", "qwen2_5_vl", make_qwen2_vl_processor},
    {"", "qwen3_vl", make_qwen2_vl_processor},
    {"", "qwen3_vl_moe", make_qwen2_vl_processor},
    {"PaddleOCRVLImageProcessor", "paddleocr_vl", make_paddleocr_vl_processor},
    {"Glm46VImageProcessor", "glm_ocr", make_glm46v_processor},
    {"NanoVLMImageProcessor", "nanovlm", make_nanovlm_processor},
};

std::string known_types() {
  std::string names;
  for (const Entry& entry : kProcessors) {
    if (!entry.type.empty()) names += (names.empty() ? "" : ", ") + std::string(entry.type);
  }
  return names;
}

// Fast and Pil only choose between implementations; old feature extractors became the image processors.
std::string canonical_type(std::string type) {
  const size_t old = type.rfind("FeatureExtractor");
  if (old != std::string::npos) type.replace(old, std::string::npos, "ImageProcessor");
  for (const std::string_view suffix : {"Fast", "Pil"}) {
    if (type.ends_with(suffix)) type.resize(type.size() - suffix.size());
  }
  return type;
}

// Keys that change how much of an image is shown, but nothing that an encoder depends on.
constexpr std::string_view kChangeable[] = {"size", "min_pixels", "max_pixels", "do_image_splitting",
                                            "image_grid_pinpoints"};
constexpr const char* kChanged = "mm_processor_kwargs";  // in errors; the name vLLM uses in requests

void change(Json& settings, std::string_view changed) {
  const Json changes = parse_json(changed, kChanged);
  if (!changes.is_object()) throw Error(ErrorCode::kInput, std::string(kChanged) + ": expected an object of settings");
  if (changes.contains("size")) {  // it would not count beside these
    settings.erase("min_pixels");
    settings.erase("max_pixels");
  }
  for (const auto& [key, value] : changes.items()) {
    if (std::ranges::find(kChangeable, key) == std::end(kChangeable)) {
      std::string names;
      for (const std::string_view name : kChangeable) names += (names.empty() ? "" : ", ") + std::string(name);
      throw Error(ErrorCode::kInput, std::string(kChanged) + ": " + key + " cannot be changed; " + names + " can");
    }
    settings[key] = value;
  }
}

}  // namespace

std::unique_ptr<ImageProcessor> make_image_processor(const JsonObject& settings, std::string_view model_type) {
  const std::string named = settings.has("image_processor_type") ? settings.string("image_processor_type")
                                                                 : settings.string("feature_extractor_type", "");
  const std::string type = canonical_type(named);
  for (const Entry& entry : kProcessors) {
    if (type.empty() ? entry.model_type == model_type : entry.type == type) return entry.make(settings);
  }
  throw Error(ErrorCode::kUnsupported, settings.where() + ": image_processor_type: found " +
                                           (type.empty() ? "none, and model_type \"" + std::string(model_type) + "\""
                                                         : shown_json(Json(named))) +
                                           "; supported are " + known_types());
}

std::unique_ptr<ImageProcessor> load_image_processor(const Checkpoint& checkpoint, std::string_view model_type,
                                                     std::string_view changed) {
  const JsonObject own = checkpoint.image_settings();
  if (changed.empty()) return make_image_processor(own, model_type);
  Json settings = own.raw();
  change(settings, changed);
  return make_image_processor(JsonObject(settings, kChanged), model_type);  // the checkpoint's own were valid
}

}  // namespace vlcache
