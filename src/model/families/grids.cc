// What the families have in common whose images are grids of any size.
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "model/families/families.h"
#include "model/projector.h"

namespace vlcache {
namespace {

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

}  // namespace

int64_t small_number(const JsonObject& config, std::string_view key, int64_t fallback, int64_t most) {
  const int64_t x = config.integer(key, fallback);
  if (x < 1 || x > most) config.fail(key, "a number from 1 to " + std::to_string(most));
  return x;
}

void read_grid_text(const JsonObject& root, const GridTokens& tokens, ModelConfig& out) {
  const Json text = text_part(root, out.model_type);
  out.text = parse_text_config(JsonObject(text, root.where() + ": text_config"), out.model_type + "_text");
  out.text.tied_embeddings = out.text.tied_embeddings || root.boolean("tie_word_embeddings", false);
  const auto id = [&](std::string_view key, int64_t fallback) {
    return token_id(root, key, fallback, out.text.vocab_size);
  };
  out.image_token_id = id("image_token_id", tokens.image);
  out.video_token_id = id("video_token_id", tokens.video);
  out.vision_start_token_id = id(tokens.start_key, tokens.start);
  out.vision_end_token_id = id(tokens.end_key, tokens.end);
}

JsonObject vision_part(const JsonObject& root) {
  static const Json kNoVision = Json::object();
  const Json* vision = root.find("vision_config");
  return JsonObject(vision != nullptr ? *vision : kNoVision, root.where() + ": vision_config");
}

void read_grid_vision(const JsonObject& config, const VisionFamily& family, const ProjectorConfig& merger,
                      ModelConfig& out) {
  out.vision = parse_vision_config(config, family);
  VisionConfig& v = *out.vision;
  if (family.n_frames > 1) v.n_frames = small_number(config, "temporal_patch_size", family.n_frames, 16);
  v.merge = small_number(config, "spatial_merge_size", 2, 16);
  v.feature_layers = {static_cast<int32_t>(v.n_layers)};
  out.projector = merger;
  if (merger.kind == nullptr) out.projector.kind = &kMergerProjector;
  out.projector.scale = v.merge;
}

void check_output_size(const JsonObject& config, std::string_view key, int64_t fallback, const ModelConfig& out) {
  const int64_t size = config.integer(key, fallback);
  if (size != out.text.hidden_size) {
    config.fail(key, "the language model's hidden_size (" + std::to_string(out.text.hidden_size) + ")");
  }
}

// One row a token, in raster order, of the cells that are encoded.
std::vector<int32_t> grid_token_rows(const ModelConfig& config, const ImageTiles& image) {
  const int64_t cell = config.vision->cell();
  const int64_t n = image.n_tiles * (image.height / cell) * (image.width / cell);
  std::vector<int32_t> rows(image.kept ? image.kept->cells.size() : static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// All at one time, a row and a column for each (Qwen2VLModel.get_vision_position_ids in transformers).
std::vector<Position> grid_positions(const ModelConfig& config, const ImageTiles& image) {
  const int64_t cell = config.vision->cell();
  std::vector<Position> positions;
  for (int32_t t = 0; t < image.n_tiles; ++t) {
    for (int32_t h = 0; h < image.height / cell; ++h) {
      for (int32_t w = 0; w < image.width / cell; ++w) positions.push_back({t, h, w});
    }
  }
  return positions;
}

}  // namespace vlcache
