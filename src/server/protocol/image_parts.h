// ImageParts takes images, and the pages of PDFs, out of the parts of messages.
#pragma once

#include <string>

#include "engine/prompt/encoded_image.h"
#include "server/protocol/chat_request.h"

namespace vlcache {

class ImageParts {
 public:
  // The request's salt must have been read; the limits must outlive this object. The options apply to all images whose
  // parts set none.
  ImageParts(const ChatLimits& limits, ImageOptions options, ChatRequest& request);

  // Adds the image of an `image_url` part to the request, and {"type": "image"} to `parts`. Throws Error(kInput), or
  // kNotFound for an unknown name; the message begins with `where`, the part's.
  void add_image(const nlohmann::ordered_json& part, const std::string& where, nlohmann::ordered_json& parts);
  // Adds the pages of the PDF of a `file` part, each as an image, and their texts where these are asked for. Throws
  // Error likewise, and what reading documents throws. May take as long as fetching and drawing take.
  void add_file(const nlohmann::ordered_json& part, const std::string& where, nlohmann::ordered_json& parts);

 private:
  size_t n_more() const;
  void add(EncodedImage image, nlohmann::ordered_json& parts);
  EncodedImage read(const nlohmann::ordered_json& part, const std::string& where);
  NamedImages::Bytes find(const NamedImages::Name& name, const std::string& where) const;

  const ChatLimits& limits_;
  const ImageOptions options_;
  const std::string owner_;
  ChatRequest& request_;
};

}  // namespace vlcache
