// ImageReader turns images into the tiles of a prompt. It remembers the tiles of a file without their pixels, so that
// a history that grows by an image is not decoded again with each turn.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/sha256.h"
#include "engine/prompt/encoded_image.h"
#include "engine/prompt/prompt.h"
#include "model/images/image_tiles.h"
#include "model/model.h"
#include "model/processors/image_processor.h"

namespace vlcache {

// May be used by any thread.
class ImageReader {
 public:
  using ProcessorPtr = std::shared_ptr<const ImageProcessor>;
  // The checkpoint's image processor with some settings (a JSON object, or nothing) changed.
  using MakeProcessor = std::function<ProcessorPtr(const std::string& settings)>;

  // Uses the checkpoint's own processor, and others that `make` derives from it. The model outlives this.
  ImageReader(const Model& model, ProcessorPtr processor, MakeProcessor make);

  // Sets the images of a prompt. Pixels are left out of encoded images that were seen before, and of those beyond the
  // first kMaxHeldBytes of pixels (Prompt::with_pixels). Throws Error(kInput) for options that this model or image
  // cannot satisfy, else what decoding and processing throw.
  void read(InputImages images, Prompt& prompt) const;

  // As ImageProcessor::longer_side, under changed settings (ImageOptions::settings).
  int64_t longer_side(double width, double height, const std::string& settings) const {
    return processor(settings)->longer_side(width, height);
  }

  static constexpr int64_t kMaxHeldBytes = int64_t{256} << 20;

 private:
  // What is remembered of a file.
  struct Known {
    ImageTiles tiles;  // without pixels
    Sha256Digest content;
    ProcessorPtr processor;
  };
  using KnownPtr = std::shared_ptr<const Known>;
  struct Fitted {
    ProcessorPtr processor;
    ImageTiles tiles;
  };

  KnownPtr find(const Sha256Digest& file) const;
  void remember(const Sha256Digest& file, const KnownPtr& known) const;
  void read(EncodedImage image, Prompt& prompt, int64_t& held_bytes) const;
  ProcessorPtr processor(const std::string& settings) const;
  Fitted fit(const Image& image, const EncodedImage& encoded) const;

  const Model& model_;
  const MakeProcessor make_;
  const ProcessorPtr processor_;  // the checkpoint's own
  mutable std::mutex mutex_;      // of what follows
  mutable std::map<Sha256Digest, KnownPtr> known_;
  mutable int64_t known_bytes_ = 0;
  mutable std::map<std::string, ProcessorPtr> changed_;  // by settings
};

}  // namespace vlcache
