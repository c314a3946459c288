// StandardImageProcessor: the pipeline of most image processors: resize, centre crop, rescale, normalise, pad. One
// image, one tile.
#pragma once

#include <string>

#include "model/processors/image_processor.h"
#include "model/processors/steps.h"

namespace vlcache {

class StandardImageProcessor : public ImageProcessor {
 public:
  // `type` only names the processor in settings_key().
  StandardImageProcessor(std::string type, const ProcessorSettings& settings);
  std::string settings_key() const override { return type_ + ": " + settings_.key(); }
  int64_t longer_side(double width, double height) const override;
  std::array<float, 3> value_range() const override { return range_of(tables_); }

 protected:
  // The tile of an image that another step has produced from `original`.
  ImageTiles process_placed(const Image& image, const PixelRect& shown, const Image& original,
                            PixelAllowance& allowance) const;
  ImageTiles make_tiles(const Image& image, PixelAllowance& allowance) const override;

  const std::string type_;
  const ProcessorSettings settings_;
  const ChannelTables tables_;
};

// CLIP's defaults, used by LLaVA's processors too: the shorter side to 224, the middle square.
ProcessorSettings clip_settings();

}  // namespace vlcache
