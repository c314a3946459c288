// ImageParts takes images out of the parts of messages.
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

  // Adds the image of an `image_url` part to the request; the part becomes a bare {"type": "image"}. Throws
  // Error(kInput), or kNotFound for an unknown name; the message begins with `where`, the part's.
  void take(nlohmann::ordered_json& part, const std::string& where);

 private:
  EncodedImage read(const nlohmann::ordered_json& part, const std::string& where);
  NamedImages::Bytes find(const NamedImages::Name& name, const std::string& where) const;

  const ChatLimits& limits_;
  const ImageOptions options_;
  const std::string owner_;
  ChatRequest& request_;
};

}  // namespace vlcache
