// PromptMedia reads what a prompt has besides text: images, videos and the pages of documents, as far as the model
// takes them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prompt/document_reader.h"
#include "engine/prompt/image_reader.h"
#include "engine/prompt/input_media.h"
#include "engine/prompt/prompt.h"
#include "engine/prompt/video_reader.h"
#include "model/model.h"

namespace vlcache {

// May be used by any thread.
class PromptMedia {
 public:
  // Of a model that takes text alone. The model outlives this.
  explicit PromptMedia(const Model& model) : model_(model) {}
  // `videos` is null where the model takes no video.
  PromptMedia(const Model& model, ImageReader::ProcessorPtr images, ImageReader::MakeProcessor make,
              std::shared_ptr<const VideoProcessor> videos);

  bool takes_images() const { return image_reader_ != nullptr; }
  bool takes_videos() const { return video_reader_ != nullptr; }
  // Throws Error(kInput) for images or videos that the model cannot take.
  void check_takes(const InputMedia& media) const;
  // The same for videos alone, before one is decoded.
  void check_takes_videos() const;

  // Sets the images of a prompt, among them the units of its videos, in the order of the text's placeholders. Throws
  // what reading them throws; `media` passes check_takes.
  void read(std::string_view text, InputMedia media, Prompt& prompt) const;
  // The pages of a document as images. Throws Error(kInput) if the model cannot take images, else what
  // DocumentReader::read throws. Takes as long as drawing takes: not for the inference thread.
  std::vector<EncodedImage> read_document(const DocumentRequest& request) const;
  void forget_documents() const;  // pages that were drawn

 private:
  void check_sees(const std::string& given) const;

  const Model& model_;
  std::unique_ptr<ImageReader> image_reader_;        // null: the model takes text alone
  std::unique_ptr<VideoReader> video_reader_;        // null: the model takes no video
  std::unique_ptr<DocumentReader> document_reader_;  // where there is an image_reader_
};

}  // namespace vlcache
