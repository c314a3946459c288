// ImageParts takes images, the pages of PDFs and videos out of the parts of messages.
#pragma once

#include <string>

#include "api/messages/chat_request.h"
#include "api/messages/video_parts.h"
#include "engine/prompt/encoded_image.h"

namespace vlcache {

// Of all images and videos whose parts set none.
struct MediaOptions {
  ImageOptions images;
  VideoChoice videos;
};

class ImageParts {
 public:
  // The request's salt must have been read; the limits must outlive this object.
  ImageParts(const ChatLimits& limits, MediaOptions options, ChatRequest& request);

  // Adds the image of an `image_url` part to the request, and {"type": "image"} to `parts`. Throws Error(kInput), or
  // kNotFound for an unknown name; the message begins with `where`, the part's.
  void add_image(const nlohmann::ordered_json& part, const std::string& where, nlohmann::ordered_json& parts);
  // Adds the pages of the PDF of a `file` part, each as an image, and their texts where these are asked for. Throws
  // Error likewise, and what reading documents throws. May take as long as fetching and drawing take.
  void add_file(const nlohmann::ordered_json& part, const std::string& where, nlohmann::ordered_json& parts);
  // Adds the video of a `video_url`, `video` or `input_video` part, and {"type": "video"}. Throws Error likewise, and
  // what probing videos throws. May take as long as fetching and demuxing take; its frames are decoded later.
  void add_video(const nlohmann::ordered_json& part, const std::string& where, nlohmann::ordered_json& parts);

 private:
  size_t n_more() const;
  void add(EncodedImage image, nlohmann::ordered_json& parts);
  EncodedImage read(const nlohmann::ordered_json& part, const std::string& where);
  std::vector<std::byte> read_url(const std::string& url, const std::string& where, FileKind kind) const;
  NamedImages::Bytes find(const NamedImages::Name& name, const std::string& where) const;

  const ChatLimits& limits_;
  const MediaOptions options_;
  const std::string owner_;
  ChatRequest& request_;
};

}  // namespace vlcache
