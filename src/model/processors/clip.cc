// CLIPImageProcessor: the shorter side to 224, the middle square.
#include "model/processors/registry.h"
#include "model/processors/standard.h"

namespace vlcache {

std::unique_ptr<ImageProcessor> make_clip_processor(const JsonObject& config) {
  ProcessorSettings settings{.do_center_crop = true,
                             .size = {.shortest_edge = 224},
                             .crop_size = {.height = 224, .width = 224},
                             .default_to_square = false,
                             .resample = Resample::kBicubic};
  settings.use_clip_statistics();
  // Kosmos-2's spelling of a square size; it overrides `size`.
  const bool square = config.boolean("use_square_size", false);
  settings.read(config);
  if (square) settings.size = {.height = 224, .width = 224};
  return std::make_unique<StandardImageProcessor>("CLIP", settings);
}

}  // namespace vlcache
