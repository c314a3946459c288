// The pipeline of most image processors: resize, centre crop, rescale, normalise, pad. One picture, one tile.
#pragma once

#include <string>

#include "model/processors/image_processor.h"
#include "model/processors/settings.h"

namespace vlcache {

class StandardImageProcessor : public ImageProcessor {
 public:
  // `type` only names the processor in settings_key().
  StandardImageProcessor(std::string type, const ProcessorSettings& settings);
  ProcessedImage process(const Image& image) const override;
  std::string settings_key() const override { return type_ + ": " + settings_.key(); }

 protected:
  const std::string type_;
  const ProcessorSettings settings_;
  const ChannelTables tables_;
};

// The steps on 8-bit pixels.
Image resize_and_crop(const Image& image, const ProcessorSettings& settings);
// Appends `tile` as [3, height, width] floats. Throws Error(kShape) if its size differs from that of the tiles before
// it.
void append_tile(const Image& tile, const ChannelTables& tables, ProcessedImage* out);

}  // namespace vlcache
