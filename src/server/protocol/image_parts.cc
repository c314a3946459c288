#include "server/protocol/image_parts.h"

#include <algorithm>

#include "api/json_fields.h"
#include "server/http/data_uri.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxIdBytes = 256;

// True: as few tokens as possible.
bool wants_least_detail(const OrderedJson& source, const std::string& where) {
  const OrderedJson* detail = find_field(source, "detail");
  if (detail == nullptr || *detail == "auto" || *detail == "high" || *detail == "original") return false;
  if (*detail != "low") bad_field(where + ".detail: expected low, high, auto or original");
  return true;
}

}  // namespace

ImageParts::ImageParts(const ChatLimits& limits, ImageOptions options, ChatRequest& request)
    : limits_(limits),
      options_(std::move(options)),
      owner_(limits.caller + '\n' + request.fields.cache_salt.value_or("")),
      request_(request) {}

void ImageParts::take(OrderedJson& part, const std::string& where) {
  if (request_.images.size() == limits_.max_images) {
    bad_field("messages: expected at most " + std::to_string(limits_.max_images) + " pictures");
  }
  request_.images.push_back(read(part, where));
  part = {{"type", "image"}};
}

EncodedImage ImageParts::read(const OrderedJson& part, const std::string& where) {
  const std::string at = where + ".image_url", id_at = where + ".uuid";
  EncodedImage image{.bytes = nullptr, .where = at, .limits = limits_.image, .options = options_, .owner = owner_};
  const OrderedJson* source = find_field(part, "image_url");
  if (source != nullptr && source->is_object()) {
    image.options.least_detail = wants_least_detail(*source, at);
    source = find_field(*source, "url");
  }
  const bool has_id = limits_.named_images != nullptr && find_field(part, "uuid") != nullptr;
  const std::string id = has_id ? string_field(part, "uuid", where) : "";
  if (id.size() > kMaxIdBytes) bad_field(id_at + ": expected at most " + std::to_string(kMaxIdBytes) + " bytes");
  if (source == nullptr && !id.empty()) {
    image.bytes = find({owner_, id}, id_at);
    image.where = id_at;
    return image;
  }
  if (source == nullptr || !source->is_string()) bad_field(at + ": expected {\"url\": \"data:image/...;base64,...\"}");
  const auto& url = source->get_ref<const std::string&>();
  image.bytes = std::make_shared<const std::vector<std::byte>>(limits_.read_image ? limits_.read_image(url, at)
                                                                                  : decode_data_uri(url, at));
  if (!id.empty()) request_.named.push_back({{owner_, id}, image.bytes, id_at});
  return image;
}

// Named by this request or an earlier one.
NamedImages::Bytes ImageParts::find(const NamedImages::Name& name, const std::string& where) const {
  const auto here = std::ranges::find(request_.named, name, &NamedImage::name);
  return here == request_.named.end() ? limits_.named_images->find(name, where) : here->bytes;
}

}  // namespace vlcache
