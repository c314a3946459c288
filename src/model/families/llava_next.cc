// LLaVA-NeXT (1.6): an overview tile and a grid of tiles whose padding is cut off, a learned newline after each row of
// patches.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/families/families.h"
#include "model/images/anyres.h"
#include "model/processors/image_processor.h"

namespace vlcache {
namespace {

constexpr size_t kMaxGridPinpoints = 256;

std::vector<std::pair<int64_t, int64_t>> grid_pinpoints(const JsonObject& root, int64_t tile) {
  static const Json kDefault = Json::array({{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}});
  const Json* value = root.find("image_grid_pinpoints");
  const Json& list = value != nullptr ? *value : kDefault;
  std::vector<std::pair<int64_t, int64_t>> out;
  bool good = list.is_array() && !list.empty() && list.size() <= kMaxGridPinpoints;
  for (size_t i = 0; good && i < list.size(); ++i) {
    good =
        list[i].is_array() && list[i].size() == 2 && list[i][0].is_number_integer() && list[i][1].is_number_integer();
    if (!good) break;
    const int64_t height = list[i][0].get<int64_t>(), width = list[i][1].get<int64_t>();
    good = height >= tile && width >= tile && height % tile == 0 && width % tile == 0 && height / tile <= 64 &&
           width / tile <= 64;
    out.emplace_back(height, width);
  }
  if (!good) {
    root.fail("image_grid_pinpoints",
              "a list of [height, width], multiples of the encoder's image_size (" + std::to_string(tile) + ")");
  }
  return out;
}

void read_llava_next_config(const JsonObject& root, ModelConfig& out) {
  read_llava_config(root, out);
  if (!out.vision->drop_class_token) {
    throw Error(
        ErrorCode::kUnsupported,
        root.where() +
            ": vision_feature_select_strategy \"full\" has no grid of patches to unpad; LLaVA-NeXT needs \"default\"");
  }
  out.projector.newline = true;
  out.grid_pinpoints = grid_pinpoints(root, out.vision->image_size);
}

std::vector<int32_t> llava_next_token_rows(const ModelConfig& config, const ImageTiles& image) {
  return anyres_order(anyres_layout(config, image), config.vision->side());
}

}  // namespace

const Family kLlavaNext = {.model_type = "llava_next",
                           .prefixes = llava_prefixes(),
                           .read_config = read_llava_next_config,
                           .image_placeholder = "<image>",
                           .token_rows = llava_next_token_rows};

}  // namespace vlcache
