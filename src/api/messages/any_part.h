// Parts of content in the spellings of all APIs and libraries whose examples people copy: OpenAI's two, Anthropic's,
// Qwen's, transformers', Mistral's. Each endpoint reads its own first, then these.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "api/messages/image_parts.h"
#include "api/messages/message.h"

namespace vlcache {

enum class PartKind : uint8_t { kUnknown, kText, kImage, kFile, kVideo };

// By the part's type or, where it has none, by its keys; a string is a text.
PartKind kind_of_part(const nlohmann::ordered_json& part);

// Adds what the part holds. False: it is of no known kind, or lacks what its kind needs. Throws Error(kInput) that
// begins with `where` for an image, file or video that cannot be read.
bool read_any_part(const nlohmann::ordered_json& part, const std::string& where, ImageParts& images,
                   std::vector<Part>& parts);

// The text of a text part in any spelling. Throws Error(kInput) if an image or a video stands beside it, which would be
// lost. nullptr: there is none.
const std::string* text_of_part(const nlohmann::ordered_json& part, const std::string& where);

// Base64, or a data URI, which clients put there as well: never a URL that is fetched.
EncodedText base64_or_data_uri(const std::string& text, std::string_view type);

// What an image's part names, for readers that find files by path: a URL, a path, or a data URI, which `made` holds
// where the part has base64; nullptr: nothing.
const std::string* source_of_image(const nlohmann::ordered_json& part, std::string& made);

}  // namespace vlcache
