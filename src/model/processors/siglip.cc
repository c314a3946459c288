// SiglipImageProcessor: 224 x 224 whatever the shape of the picture.
#include "model/processors/registry.h"
#include "model/processors/standard.h"

namespace vlcache {

std::unique_ptr<ImageProcessor> make_siglip_processor(const JsonObject& config) {
  ProcessorSettings settings{
      .size = {.height = 224, .width = 224}, .default_to_square = false, .resample = Resample::kBicubic};
  settings.read(config);
  return std::make_unique<StandardImageProcessor>("SigLIP", settings);
}

}  // namespace vlcache
