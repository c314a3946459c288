// Documents and uploads without content, for fuzz targets of message readers.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "api/messages/uploads.h"
#include "engine/prompt/document_reader.h"

namespace vlcache {

// Two pages of a document at most, without pixels.
inline std::vector<EncodedImage> blank_pages(const DocumentRequest& request) {
  std::vector<EncodedImage> pages(static_cast<size_t>(std::min(2, request.max_pages)), request.document);
  if (request.text) pages[0].text = "text";
  return pages;
}

// Files of each kind, by their kinds as ids.
inline Uploads& uploads_of_each_kind() {
  static Uploads uploads({.max_bytes = 1 << 20});
  static const bool filled = [] {
    constexpr std::pair<const char*, std::string_view> kFiles[] = {
        {"image", "GIF89a"}, {"pdf", "%PDF-1.7"}, {"text", "hello"}, {"clip", "\x1a\x45\xdf\xa3"}};
    for (const auto& [id, text] : kFiles) {
      const auto bytes = std::as_bytes(std::span(text));
      Upload file{.id = id, .name = id, .purpose = "", .type = upload_type(bytes, "")};
      file.bytes = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
      uploads.add("", std::move(file), 0, id);
    }
    return true;
  }();
  static_cast<void>(filled);
  return uploads;
}

}  // namespace vlcache
