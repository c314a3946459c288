#include "api/messages/image_parts.h"

#include <algorithm>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/data_uri.h"
#include "api/request_builder.h"
#include "io/document/page_selection.h"

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

// The part's own object "vlcache": which pages, and whether with their texts.
void read_page_choice(const OrderedJson& part, const std::string& where, DocumentRequest& request) {
  const OrderedJson* choice = find_field(part, "vlcache");
  if (choice == nullptr) return;
  if (!choice->is_object()) bad_field(where + ": expected an object");
  for (const auto& [key, value] : choice->items()) {
    if (value.is_null()) continue;
    if (key == "pages" && (value.is_string() || value.is_number_unsigned())) {
      request.pages = value.is_string() ? value.get<std::string>() : value.dump();
      parse_page_selection(request.pages, where + ".pages");
    } else if (key == "pages") {
      bad_field(where + ".pages: expected a text such as \"3-7\" or \"1,4-6\"");
    } else if (key == "pdf_text") {
      request.text = bool_field(*choice, "pdf_text", request.text);
    } else {
      bad_field(where + "." + key + ": expected pages or pdf_text");
    }
  }
}

}  // namespace

ImageParts::ImageParts(const ChatLimits& limits, MediaOptions options, ChatRequest& request)
    : limits_(limits),
      options_(std::move(options)),
      owner_(limits.caller + '\n' + request.fields.cache_salt.value_or("")),
      request_(request) {}

// How many images the request may still have. Throws Error(kInput) if there are none.
size_t ImageParts::n_more() const {
  const size_t n = request_.images.size() + request_.videos.size();
  if (n < limits_.max_images) return limits_.max_images - n;
  bad_field("messages: expected at most " + std::to_string(limits_.max_images) + " pictures");
}

void ImageParts::add(EncodedImage image, OrderedJson& parts) {
  add_image_parts(image, parts);
  request_.images.push_back(std::move(image));
}

void ImageParts::add_image(const OrderedJson& part, const std::string& where, OrderedJson& parts) {
  n_more();
  add(read(part, where), parts);
}

void ImageParts::add_file(const OrderedJson& part, const std::string& where, OrderedJson& parts) {
  const std::string at = where + ".file";
  const OrderedJson* file = find_field(part, "file");
  if (file == nullptr || !file->is_object()) bad_field(at + ": expected an object with file_data");
  if (!limits_.read_document) bad_field(at + ": PDFs are not read by this server");
  if (find_field(*file, "file_id") != nullptr) {
    bad_field(at + ".file_id: this server keeps no uploaded files; send the PDF itself as file_data");
  }
  const size_t n_left = n_more();
  DocumentRequest request{.document = {.bytes = nullptr,
                                       .where = at,
                                       .limits = limits_.image,
                                       .options = options_.images,
                                       .owner = owner_,
                                       .text = ""},
                          .name = find_field(*file, "filename") != nullptr ? string_field(*file, "filename", at) : "",
                          .pages = "",
                          .max_pages = static_cast<int32_t>(std::min<size_t>(n_left, PdfRequest::kMaxPages)),
                          .advice = "select pages with \"vlcache\": {\"pages\": \"1-3\"} in its part",
                          .text = request_.fields.pdf_text.value_or(false),
                          .numbered = false};
  if (n_left < static_cast<size_t>(PdfRequest::kMaxPages)) request.advice += " (a request's images: --max-images)";
  read_page_choice(part, where + ".vlcache", request);
  std::vector<std::byte> bytes;
  if (find_field(*file, "file_url") != nullptr) {
    const std::string url = string_field(*file, "file_url", at);
    bytes = read_url(url, at + ".file_url", FileKind::kPdf);
  } else {
    bytes = decode_file_data(string_field(*file, "file_data", at), at + ".file_data");
  }
  request.document.bytes = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  for (EncodedImage& page : limits_.read_document(std::move(request))) add(std::move(page), parts);
}

void ImageParts::add_video(const OrderedJson& part, const std::string& where, OrderedJson& parts) {
  n_more();
  if (!limits_.read_video) bad_field(where + ": videos are not read by this server");
  const auto read = [this](const std::string& url, const std::string& at, FileKind kind) {
    return read_url(url, at, kind);
  };
  VideoRequest request = read_video_part(part, where, options_.videos, read);
  request.options = options_.images;
  request.limits.image = limits_.image;
  request_.videos.push_back(limits_.read_video(std::move(request)));
  parts.push_back({{"type", "video"}});
}

std::vector<std::byte> ImageParts::read_url(const std::string& url, const std::string& where, FileKind kind) const {
  return limits_.read_url ? limits_.read_url(url, where, kind, limits_.cancelled) : decode_data_uri(url, where, kind);
}

EncodedImage ImageParts::read(const OrderedJson& part, const std::string& where) {
  const std::string at = where + ".image_url", id_at = where + ".uuid";
  EncodedImage image{
      .bytes = nullptr, .where = at, .limits = limits_.image, .options = options_.images, .owner = owner_, .text = ""};
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
  image.bytes = std::make_shared<const std::vector<std::byte>>(read_url(url, at, FileKind::kImage));
  if (!id.empty()) request_.named.push_back({{owner_, id}, image.bytes, id_at});
  return image;
}

// Named by this request or an earlier one.
NamedImages::Bytes ImageParts::find(const NamedImages::Name& name, const std::string& where) const {
  const auto here = std::ranges::find(request_.named, name, &NamedImage::name);
  return here == request_.named.end() ? limits_.named_images->find(name, where) : here->bytes;
}

}  // namespace vlcache
