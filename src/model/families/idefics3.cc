// Idefics3 and SmolVLM: images split into tiles that the prompt names by row and column, pixel shuffle.
// arXiv:2408.12637, 2504.05299.
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "base/error.h"
#include "model/families/families.h"
#include "model/projector.h"

namespace vlcache {
namespace {

constexpr std::string_view kAround = "<fake_token_around_image>";
constexpr std::string_view kOverview = "<global-img>";

void read_idefics3_config(const JsonObject& root, ModelConfig& out) {
  // The text model's own default; a text_config in the file has LlamaConfig's.
  static const Json kNoText = {{"rms_norm_eps", 1e-5}}, kNoVision = Json::object();
  read_parts(root, {kNoText, kNoVision}, kSiglipVision, out);
  const int64_t scale = root.integer("scale_factor", 2);
  if (scale < 1 || scale > 64) root.fail("scale_factor", "a number from 1 to 64");
  out.projector = {.kind = &kPixelShuffleProjector, .bias = false, .scale = scale};
  out.image_token_id = static_cast<int32_t>(std::min<int64_t>(root.integer("image_token_id", 128257), INT32_MAX));
}

int64_t tokens_per_tile(const ModelConfig& config) {
  const int64_t side = config.vision->side() / config.projector.scale;
  return side * side;
}

void check_tiles(const ImageTiles& image) {
  const int64_t expected = image.tile_rows * image.tile_cols + 1;
  if (image.tile_rows < 0 || image.tile_cols < 0 || (image.tile_rows == 0) != (image.tile_cols == 0) ||
      image.n_tiles != expected) {
    throw Error(ErrorCode::kInput, "expected " + std::to_string(expected) + " tiles of an image split " +
                                       std::to_string(image.tile_rows) + " x " + std::to_string(image.tile_cols) +
                                       ", the image processor made " + std::to_string(image.n_tiles));
  }
}

// Tile after tile, the overview last.
std::vector<int32_t> idefics3_token_rows(const ModelConfig& config, const ImageTiles& image) {
  check_tiles(image);
  std::vector<int32_t> rows(static_cast<size_t>(image.n_tiles * tokens_per_tile(config)));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// In the wording of processing_idefics3.py and processing_smolvlm.py.
std::string image_text(const ModelConfig& config, const ImageTiles& image, const ImageNumber&) {
  check_tiles(image);
  const std::string tile = repeat(config.family->image_placeholder, tokens_per_tile(config));
  std::string text;
  for (int64_t row = 0; row < image.tile_rows; ++row) {
    for (int64_t col = 0; col < image.tile_cols; ++col) {
      text.append(kAround);
      text += "<row_" + std::to_string(row + 1) + "_col_" + std::to_string(col + 1) + ">";
      text += tile;
    }
    text += "\n";
  }
  if (image.tile_rows > 0) text += "\n";
  text.append(kAround).append(kOverview).append(tile).append(kAround);
  return text;
}

WeightPrefixes prefixes() {
  return {.text = {"model.text_model.", "text_model."},
          .lm_head = {""},
          .vision = {"model.vision_model.", "vision_model."},
          .projector = {"model.connector.modality_projection.", "connector.modality_projection."}};
}

// Both are the same model; SmolVLM has a small language model and a larger pixel shuffle.
Family tiled_family(std::string_view model_type) {
  return {.model_type = model_type,
          .prefixes = prefixes(),
          .read_config = read_idefics3_config,
          .image_placeholder = "<image>",
          .token_rows = idefics3_token_rows,
          .image_text = image_text,
          .answer_tokens = {"<doctag>", "<otsl>", "<loc_0>"}};  // docling's models answer in DocTags
}

}  // namespace

const Family kIdefics3 = tiled_family("idefics3"), kSmolVlm = tiled_family("smolvlm");

}  // namespace vlcache
