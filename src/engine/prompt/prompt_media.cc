#include "engine/prompt/prompt_media.h"

#include "base/error.h"

namespace vlcache {

PromptMedia::PromptMedia(const Model& model, ImageReader::ProcessorPtr images, ImageReader::MakeProcessor make,
                         std::shared_ptr<const VideoProcessor> videos)
    : model_(model),
      image_reader_(std::make_unique<ImageReader>(model, std::move(images), std::move(make))),
      video_reader_(videos != nullptr ? std::make_unique<VideoReader>(model, std::move(videos)) : nullptr),
      document_reader_(std::make_unique<DocumentReader>(*image_reader_)) {}

void PromptMedia::check_takes(const InputMedia& media) const {
  const size_t n_images = std::visit([](const auto& list) { return list.size(); }, media.images);
  if (n_images > 0) check_sees(std::to_string(n_images) + " image(s)");
  if (!media.videos.empty()) check_takes_videos();
}

void PromptMedia::check_takes_videos() const {
  check_sees("videos");
  if (video_reader_ != nullptr) return;
  throw Error(ErrorCode::kInput,
              "the model (" + model_.config().model_type + ") takes no video; pass frames as images");
}

void PromptMedia::check_sees(const std::string& given) const {
  if (image_reader_ != nullptr) return;
  throw Error(ErrorCode::kInput,
              "the model (" + model_.config().model_type + ") takes text only; " + given + " were given");
}

void PromptMedia::read(std::string_view text, InputMedia media, Prompt& prompt) const {
  const size_t n_images = std::visit([](const auto& list) { return list.size(); }, media.images);
  const std::vector<PlaceholderKind> order = media_order(model_.config(), text, n_images, media.videos.size());
  if (media.videos.empty()) {
    if (image_reader_ != nullptr) image_reader_->read(std::move(media.images), prompt);
    return;
  }
  Prompt images;
  image_reader_->read(std::move(media.images), images);
  size_t next_image = 0, next_video = 0;
  for (const PlaceholderKind kind : order) {
    if (kind == PlaceholderKind::kVideo) {
      video_reader_->read(media.videos[next_video++], prompt);
    } else {
      images.move_image(next_image++, prompt);
    }
  }
}

std::vector<EncodedImage> PromptMedia::read_document(const DocumentRequest& request) const {
  check_sees("pages of a PDF");
  return document_reader_->read(request);
}

void PromptMedia::forget_documents() const {
  if (document_reader_ != nullptr) document_reader_->clear();
}

}  // namespace vlcache
