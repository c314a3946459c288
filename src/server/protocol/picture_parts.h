// PictureParts: takes pictures out of the parts of messages.
#pragma once

#include <string>

#include "engine/prompt/picture.h"
#include "server/protocol/chat_request.h"

namespace vlcache {

class PictureParts {
 public:
  // Of a request whose salt is read already; the limits outlive this. The options are those of every picture whose part
  // says no other.
  PictureParts(const ChatLimits& limits, PictureOptions options, ChatRequest& request);

  // Adds the picture of an `image_url` part to the request; the part becomes a bare {"type": "image"}. Throws
  // Error(kInput), kNotFound for a name that nothing has; each begins with `where`, the part's.
  void take(nlohmann::ordered_json& part, const std::string& where);

 private:
  EncodedPicture read(const nlohmann::ordered_json& part, const std::string& where);
  NamedImages::Bytes find(const NamedImages::Name& name, const std::string& where) const;

  const ChatLimits& limits_;
  const PictureOptions options_;
  const std::string owner_;
  ChatRequest& request_;
};

}  // namespace vlcache
