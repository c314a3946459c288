#include "api/messages/any_part.h"

#include <algorithm>
#include <array>
#include <utility>

#include "api/json_fields.h"
#include "base/file_url.h"
#include "base/json_text.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <size_t N>
using Names = std::array<const char*, N>;

constexpr Names<6> kTextTypes{"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"};
constexpr Names<5> kImageTypes{"image_url", "input_image", "image", "computer_screenshot", "image_file"};
constexpr Names<6> kFileTypes{"file", "input_file", "document", "file_url", "document_url", "pdf"};
constexpr Names<3> kVideoTypes{"video_url", "video", "input_video"};
// Keys that name an image or video wherever they stand.
constexpr Names<3> kImageKeys{"image_url", "image", "input_image"};
constexpr Names<4> kFileKeys{"file", "input_file", "file_data", "document_url"};
// Where the parts of images have their data, in the order in which they are looked for.
constexpr Names<8> kSources{"image_url", "image", "input_image", "source", "url", "path", "base64", "data"};

template <size_t N>
bool is_one_of(std::string_view text, const Names<N>& names) {
  return std::ranges::find(names, text) != names.end();
}

// Null, an empty text and an empty list are no value.
bool has_value(const OrderedJson& part, const char* key) {
  const OrderedJson* value = find_field(part, key);
  return value != nullptr && *value != "" && !(value->is_structured() && value->empty());
}

template <size_t N>
const char* key_of(const OrderedJson& part, const Names<N>& keys) {
  const auto found = std::ranges::find_if(keys, [&](const char* key) { return has_value(part, key); });
  return found == keys.end() ? nullptr : *found;
}

// An image's data as a part, or an object in it, has them.
struct Source {
  const std::string* text = nullptr;
  std::string key;                      // where the text stands: "image_url.url"
  std::string type;                     // the media type beside base64; may be empty
  const OrderedJson* detail = nullptr;  // the object that may have it
};

// Objects within objects are followed: {"image_url": {"url": ...}}, {"source": {"type": "base64", "data": ...}}.
Source source_in(const OrderedJson& part) {
  Source source{.detail = &part};
  const OrderedJson* object = &part;
  for (int depth = 0; depth < 3; ++depth) {
    const char* key = key_of(*object, kSources);
    if (key == nullptr) return source;
    const OrderedJson& value = *find_field(*object, key);
    source.key += (source.key.empty() ? "" : ".") + std::string(key);
    for (const char* type : {"media_type", "mime_type"}) {
      if (source.type.empty()) source.type = text_in(*object, type);
    }
    if (value.is_string()) source.text = &value.get_ref<const std::string&>();
    if (!value.is_object()) return source;
    if (find_field(value, "detail") != nullptr) source.detail = &value;
    object = &value;
  }
  return source;
}

bool ends_in(const std::string& text, std::string_view key) {
  return text == key || text.ends_with("." + std::string(key));
}

// No base64 has a dot; texts with a colon have a scheme.
bool is_path(const Source& source) {
  if (source.text->find(':') != std::string::npos) return false;
  return ends_in(source.key, "path") || (ends_in(source.key, "image") && source.text->find('.') != std::string::npos);
}

bool is_base64(const Source& source) {
  return ends_in(source.key, "base64") || ends_in(source.key, "data") || ends_in(source.key, "image");
}

void add_image(const OrderedJson& part, const std::string& where, ImageParts& images, std::vector<Part>& parts) {
  const Source source = source_in(part);
  GivenImage image{.where = where + "." + (source.key.empty() ? "image_url" : source.key),
                   .id_where = where + ".uuid",
                   .id = find_field(part, "uuid")};
  std::string url;
  if (source.text == nullptr) {
    const OrderedJson* own = find_field(part, "image_file");
    const OrderedJson& holder = own != nullptr && own->is_object() ? *own : part;
    if (source.key.empty() && find_field(holder, "file_id") != nullptr) {  // named by an earlier request
      image.id = find_field(holder, "file_id");
      image.id_where = where + (&holder == &part ? ".file_id" : ".image_file.file_id");
    }
  } else if (is_path(source)) {
    if (!source.text->starts_with('/')) bad_field(image.where + ": expected an absolute path, a URL or base64");
    url = file_url_of(*source.text);
    image.data = EncodedText{.text = url};
  } else if (is_base64(source) && source.text->find(':') == std::string::npos) {
    image.data = EncodedText{.text = *source.text, .type = source.type, .is_base64 = true};
  } else if (is_base64(source) && !ends_in(source.key, "image")) {
    image.data = base64_or_data_uri(*source.text, source.type);
  } else {
    image.data = EncodedText{.text = *source.text};
  }
  image.least_detail = wants_least_detail(*source.detail, image.where);
  images.add_image(image, parts);
}

// A PDF, or the text of Anthropic's documents.
bool add_file(const OrderedJson& part, const std::string& where, ImageParts& images, std::vector<Part>& parts) {
  for (const char* key : {"file", "input_file"}) {
    const OrderedJson* file = find_field(part, key);
    if (file == nullptr) continue;
    const std::string at = where + "." + key;
    if (!file->is_object() && !file->is_string()) return false;
    const OrderedJson data = file->is_string() ? OrderedJson{{"file_data", *file}} : OrderedJson();
    images.add_openai_file(file->is_string() ? data : *file, at, part, where, parts);
    return true;
  }
  const OrderedJson* source = find_field(part, "source");
  if (source != nullptr && source->is_object()) {
    if (text_in(*source, "type") == "text") {
      parts.emplace_back(TextPart{string_field(*source, "data", where + ".source")});
      return true;
    }
    OrderedJson file = OrderedJson::object();
    constexpr std::pair<const char*, const char*> kNames[] = {
        {"data", "file_data"}, {"url", "file_url"}, {"file_id", "file_id"}};
    for (const auto& [from, to] : kNames) {
      if (find_field(*source, from) != nullptr) file[to] = (*source)[from];
    }
    if (file.empty()) return false;
    images.add_openai_file(file, where + ".source", part, where, parts);
    return true;
  }
  for (const char* key : {"file_url", "document_url"}) {
    const OrderedJson* url = find_field(part, key);
    if (url != nullptr && url->is_object()) url = find_field(*url, "url");
    if (url == nullptr || !url->is_string()) continue;
    const OrderedJson file{{"file_url", *url}};
    images.add_openai_file(file, where, part, where, parts);
    return true;
  }
  if (key_of(part, Names<2>{"file_data", "file_id"}) == nullptr) return false;
  images.add_openai_file(part, where, part, where, parts);
  return true;
}

}  // namespace

PartKind kind_of_part(const OrderedJson& part) {
  if (part.is_string()) return PartKind::kText;
  if (!part.is_object()) return PartKind::kUnknown;
  if (find_field(part, "type") != nullptr) {
    const std::string type = text_in(part, "type");
    if (is_one_of(type, kTextTypes)) return PartKind::kText;
    if (is_one_of(type, kImageTypes)) return PartKind::kImage;
    if (is_one_of(type, kFileTypes)) return PartKind::kFile;
    return is_one_of(type, kVideoTypes) ? PartKind::kVideo : PartKind::kUnknown;
  }
  if (key_of(part, kImageKeys) != nullptr) return PartKind::kImage;
  if (key_of(part, kVideoTypes) != nullptr) return PartKind::kVideo;
  if (key_of(part, kFileKeys) != nullptr) return PartKind::kFile;
  if (const OrderedJson* source = find_field(part, "source"); source != nullptr && source->is_object()) {
    return text_in(*source, "media_type").starts_with("image/") ? PartKind::kImage : PartKind::kFile;
  }
  for (const char* key : {"text", "refusal", "input_text", "output_text"}) {
    if (const OrderedJson* text = find_field(part, key); text != nullptr && text->is_string()) return PartKind::kText;
  }
  return PartKind::kUnknown;
}

const std::string* text_of_part(const OrderedJson& part, const std::string& where) {
  if (part.is_string()) return &part.get_ref<const std::string&>();
  if (!part.is_object()) return nullptr;
  for (const char* key : {key_of(part, kImageKeys), key_of(part, kVideoTypes)}) {
    if (key == nullptr) continue;
    bad_field(where + "." + key + ": not within a part of text; send it as a part of its own");
  }
  const std::string type = text_in(part, "type");
  for (const char* key : {type.c_str(), "text", "refusal", "input_text", "output_text"}) {
    const OrderedJson* text = find_field(part, key);
    if (text != nullptr && text->is_string()) return &text->get_ref<const std::string&>();
  }
  return nullptr;
}

bool read_any_part(const OrderedJson& part, const std::string& where, ImageParts& images, std::vector<Part>& parts) {
  const PartKind kind = kind_of_part(part);
  const bool has_type = part.is_object() && find_field(part, "type") != nullptr;
  switch (kind) {
    case PartKind::kUnknown:
      return false;
    case PartKind::kText: {
      const std::string* text = text_of_part(part, where);
      if (text == nullptr) return false;
      parts.emplace_back(TextPart{*text});
      return true;
    }
    case PartKind::kImage:
      add_image(part, where, images, parts);
      break;
    case PartKind::kVideo:
      images.add_video(part, where, parts);
      break;
    case PartKind::kFile:
      if (!add_file(part, where, images, parts)) return false;
      break;
  }
  // A part without a type may hold a text as well: both are said.
  if (const std::string text = text_in(part, "text"); !has_type && !text.empty()) parts.emplace_back(TextPart{text});
  return true;
}

EncodedText base64_or_data_uri(const std::string& text, std::string_view type) {
  if (is_data_uri(text)) return {.text = text};
  return {.text = text, .type = type, .is_base64 = true};
}

const std::string* source_of_image(const OrderedJson& part, std::string& made) {
  const Source source = source_in(part);
  if (source.text == nullptr) return nullptr;
  const bool data = ends_in(source.key, "base64") || ends_in(source.key, "data");
  if (!data || is_data_uri(*source.text)) return source.text;
  made = "data:" + source.type + ";base64," + *source.text;
  return &made;
}

}  // namespace vlcache
