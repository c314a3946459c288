// ViTImageProcessor: as SigLIP's, with the bilinear filter.
#include "model/processors/registry.h"
#include "model/processors/standard.h"

namespace vlcache {

std::unique_ptr<ImageProcessor> make_vit_processor(const JsonObject& config) {
  ProcessorSettings settings{.size = {.height = 224, .width = 224}};
  settings.read(config);
  return std::make_unique<StandardImageProcessor>("ViT", settings);
}

}  // namespace vlcache
