#include "api/messages/image_parts.h"

#include <algorithm>
#include <utility>

#include "api/json_fields.h"
#include "io/document/page_selection.h"
#include "io/document/tiff_document.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxIdBytes = 256;
constexpr const char* kExpectedUrl = ": expected {\"url\": \"data:image/...;base64,...\"}";

// The part's own object "vlcache": which pages, and whether with their texts.
void read_page_choice(const OrderedJson& choice, const std::string& where, DocumentRequest& request) {
  if (!choice.is_object()) bad_field(where + ": expected an object");
  for (const auto& [key, value] : choice.items()) {
    if (value.is_null()) continue;
    if (key == "pages" && (value.is_string() || value.is_number_unsigned())) {
      request.pages = value.is_string() ? value.get<std::string>() : value.dump();
      parse_page_selection(request.pages, where + ".pages");
    } else if (key == "pages") {
      bad_field(where + ".pages: expected a text such as \"3-7\" or \"1,4-6\"");
    } else if (key == "pdf_text") {
      request.text = bool_field(choice, "pdf_text", request.text);
    } else {
      bad_field(where + "." + key + ": expected pages or pdf_text");
    }
  }
}

// A uuid never names an upload.
bool may_be_upload(const GivenImage& source) { return source.id_where.ends_with("file_id"); }

}  // namespace

bool wants_least_detail(const OrderedJson& source, const std::string& where) {
  const OrderedJson* detail = find_field(source, "detail");
  if (detail == nullptr || *detail == "auto" || *detail == "high" || *detail == "original") return false;
  if (*detail != "low") bad_field(where + ".detail: expected low, high, auto or original");
  return true;
}

ImageParts::ImageParts(const ChatLimits& limits, MediaOptions options, const RequestFields& fields,
                       const char* messages)
    : limits_(limits),
      options_(std::move(options)),
      messages_(messages),
      owner_(limits.caller + '\n' + fields.cache_salt.value_or("")),
      pdf_text_(fields.pdf_text.value_or(false)) {}

// How many images the request may still have. Throws Error(kInput) if there are none.
size_t ImageParts::n_more() const {
  if (n_media_ < limits_.max_images) return limits_.max_images - n_media_;
  bad_field(messages_ + std::string(": expected at most ") + std::to_string(limits_.max_images) + " images");
}

void ImageParts::add_image(const GivenImage& source, std::vector<Part>& parts) {
  n_more();
  EncodedImage image{.bytes = nullptr,
                     .where = source.where,
                     .limits = limits_.image,
                     .options = options_.images,
                     .owner = owner_,
                     .text = ""};
  image.options.least_detail = source.least_detail;
  std::string id;
  const bool has_names = limits_.named_images != nullptr || (may_be_upload(source) && limits_.uploads != nullptr);
  if (has_names && source.id != nullptr) {
    if (!source.id->is_string()) bad_field(source.id_where + ": expected a string");
    id = source.id->get<std::string>();
  }
  if (id.size() > kMaxIdBytes)
    bad_field(source.id_where + ": expected at most " + std::to_string(kMaxIdBytes) + " bytes");
  if (source.data) {
    image.bytes = shared_bytes(read(*source.data, source.where, FileKind::kImage));
    if (!id.empty()) named_.push_back({{owner_, id}, image.bytes, source.id_where});
  } else if (!id.empty() || (has_names && may_be_upload(source))) {
    image.bytes = find(source, id);
    image.where = source.id_where;
  } else {
    bad_field(source.where + kExpectedUrl);
  }
  if (limits_.read_document && has_more_pages(*image.bytes, image.where)) {
    add_pages({.document = std::move(image),
               .advice = "send it as a file with \"vlcache\": {\"pages\": \"1-3\"} in its part"},
              parts);
    return;
  }
  parts.emplace_back(ImagePart{std::move(image)});
  ++n_media_;
}

// Each selected page as an image, within what the request may still have.
void ImageParts::add_pages(DocumentRequest request, std::vector<Part>& parts) {
  const size_t n_left = n_more();
  request.max_pages = static_cast<int32_t>(std::min<size_t>(n_left, PdfRequest::kMaxPages));
  if (n_left < static_cast<size_t>(PdfRequest::kMaxPages)) request.advice += " (a request's images: --max-images)";
  for (EncodedImage& page : limits_.read_document(std::move(request))) {
    parts.emplace_back(ImagePart{std::move(page)});
    ++n_media_;
  }
}

void ImageParts::add_image_url(const OrderedJson& part, const std::string& where, std::vector<Part>& parts) {
  n_more();
  const std::string key = find_field(part, "image_url") == nullptr && find_field(part, "image_file") != nullptr
                              ? "image_file"  // as OpenAI's assistants name an upload
                              : "image_url";
  GivenImage source{.where = where + "." + key, .id_where = where + ".uuid", .id = find_field(part, "uuid")};
  const OrderedJson* url = find_field(part, key.c_str());
  const OrderedJson* file_id = find_field(part, "file_id");
  std::string file_where = where;
  if (url != nullptr && url->is_object()) {
    source.least_detail = wants_least_detail(*url, source.where);
    if (const OrderedJson* inner = find_field(*url, "file_id")) {
      file_id = inner;
      file_where = source.where;
    }
    url = find_field(*url, "url");
  }
  if (url == nullptr && file_id != nullptr) {
    source.id = file_id;
    source.id_where = file_where + ".file_id";
  }
  if (url != nullptr && !url->is_string()) bad_field(source.where + kExpectedUrl);
  if (url != nullptr) source.data = EncodedText{url->get_ref<const std::string&>()};
  add_image(source, parts);
}

void ImageParts::add_file(const GivenFile& source, std::vector<Part>& parts) {
  if (!limits_.read_document) bad_field(source.where + ": PDFs are not read by this server");
  if (source.id != nullptr) return add_upload(source, parts);
  n_more();
  add_document(source,
               shared_bytes(source.may_be_url ? read(source.data, source.data_where, FileKind::kPdf)
                                              : decode_data(source.data, source.data_where, FileKind::kPdf)),
               parts);
}

// A document, an image or a clip, as the file's first bytes tell.
void ImageParts::add_upload(const GivenFile& source, std::vector<Part>& parts) {
  const std::string where = source.where + ".file_id";
  if (limits_.uploads == nullptr) {
    bad_field(where + ": this server keeps no uploaded files; send the PDF itself as file_data");
  }
  const UploadPtr found = upload(*source.id, where);
  const bool has_pages = found != nullptr && !found->is_clip() && (!found->is_image() || found->has_pages());
  if (found != nullptr && !has_pages && source.choice != nullptr && source.choice->is_object() &&
      find_field(*source.choice, "pages") != nullptr) {
    bad_field(source.choice_where + ".pages: the file has none, its type is " + found->type);
  }
  if (found == nullptr || (found->is_image() && !has_pages)) {
    add_image({.where = where, .id_where = where, .id = source.id}, parts);
  } else if (found->is_clip()) {
    if (!limits_.read_video) bad_field(where + ": videos are not read by this server");
    VideoRequest clip{
        .video = {.clip = found->bytes, .where = where}, .choice = options_.videos, .options = {}, .limits = {}};
    if (source.part != nullptr) read_video_choice(*source.part, source.part_where, clip.choice);
    add_clip(std::move(clip), parts);
  } else {
    GivenFile document = source;
    if (document.name.empty()) document.name = found->name;
    add_document(document, found->bytes, parts);
  }
}

void ImageParts::add_document(const GivenFile& source, std::shared_ptr<const std::vector<std::byte>> bytes,
                              std::vector<Part>& parts) {
  n_more();
  DocumentRequest request;
  request.document.where = source.where;
  request.document.limits = limits_.image;
  request.document.options = options_.images;
  request.document.owner = owner_;
  request.name = source.name;
  request.advice = "select pages with \"vlcache\": {\"pages\": \"1-3\"} in its part";
  request.text = pdf_text_;
  if (source.choice != nullptr) read_page_choice(*source.choice, source.choice_where, request);
  request.document.bytes = std::move(bytes);
  add_pages(std::move(request), parts);
}

void ImageParts::add_openai_file(const OrderedJson& file, const std::string& file_where, const OrderedJson& part,
                                 const std::string& where, std::vector<Part>& parts) {
  const bool is_url = find_field(file, "file_url") != nullptr;
  GivenFile source{.where = file_where,
                   .data_where = file_where + (is_url ? ".file_url" : ".file_data"),
                   .choice_where = where + ".vlcache",
                   .may_be_url = is_url,
                   .id = find_field(file, "file_id"),
                   .choice = find_field(part, "vlcache"),
                   .part = &part,
                   .part_where = where};
  if (source.id != nullptr && (is_url || find_field(file, "file_data") != nullptr)) {
    bad_field(file_where + ".file_id: not together with " + (is_url ? "file_url" : "file_data"));
  }
  if (find_field(file, "filename") != nullptr) source.name = string_field(file, "filename", file_where);
  if (limits_.read_document && source.id == nullptr) {
    const std::string& text = text_field(file, is_url ? "file_url" : "file_data", file_where);
    source.data = is_url || text.empty() ? EncodedText{text} : uri_or_base64(text);
  }
  add_file(source, parts);
}

void ImageParts::add_video(const OrderedJson& part, const std::string& where, std::vector<Part>& parts) {
  n_more();
  if (!limits_.read_video) bad_field(where + ": videos are not read by this server");
  const auto read_data = [this](const EncodedText& data, const std::string& at, FileKind kind) {
    return read(data, at, kind);
  };
  const auto find = [this](const OrderedJson& id, const std::string& at) { return find_clip(id, at); };
  add_clip(read_video_part(part, where, options_.videos, {.read = read_data, .find = find}), parts);
}

void ImageParts::add_clip(VideoRequest request, std::vector<Part>& parts) {
  n_more();
  request.options = options_.images;
  request.limits.image = limits_.image;
  parts.emplace_back(VideoPart{limits_.read_video(std::move(request))});
  ++n_media_;
}

std::vector<std::byte> ImageParts::read(const EncodedText& data, const std::string& where, FileKind kind) const {
  if (data.is_base64 || is_data_uri(data.text) || !limits_.read_url) return decode_data(data, where, kind);
  return limits_.read_url(std::string(data.text), where, kind, limits_.cancelled);
}

// Uploaded, or named by this request or an earlier one.
NamedImages::Bytes ImageParts::find(const GivenImage& source, const std::string& id) const {
  if (const UploadPtr found = may_be_upload(source) ? upload(*source.id, source.id_where) : nullptr) {
    if (!found->is_clip() && !found->is_pdf()) return found->bytes;
    bad_field(source.id_where + ": expected an image, found a file of type " + found->type +
              "; name it in a part for files");
  }
  const NamedImages::Name name(owner_, id);
  const auto here = std::ranges::find(named_, name, &NamedImage::name);
  if (here != named_.end()) return here->bytes;
  const bool has_uploads = may_be_upload(source) && limits_.uploads != nullptr;
  try {
    if (limits_.named_images != nullptr) return limits_.named_images->find(name, source.id_where);
  } catch (const Error& e) {
    if (!has_uploads || e.code() != ErrorCode::kNotFound) throw;
  }
  throw Error(ErrorCode::kNotFound, limits_.uploads->unknown(id, source.id_where));
}

// Null: the caller has none of this id.
UploadPtr ImageParts::upload(const OrderedJson& id, const std::string& where) const {
  if (!id.is_string()) bad_field(where + ": expected a string");
  return limits_.uploads == nullptr ? nullptr : limits_.uploads->find(limits_.caller, id.get_ref<const std::string&>());
}

VideoBytes ImageParts::find_clip(const OrderedJson& id, const std::string& where) const {
  const UploadPtr found = upload(id, where);
  if (found == nullptr && limits_.uploads == nullptr) bad_field(where + ": this server keeps no uploaded files");
  if (found == nullptr) throw Error(ErrorCode::kNotFound, limits_.uploads->unknown(id.get<std::string>(), where));
  if (found->is_pdf() || (found->is_image() && found->type != "image/gif")) {
    bad_field(where + ": expected a video, found a file of type " + found->type);
  }
  return found->bytes;
}

std::optional<std::string> ImageParts::uploaded_text(const OrderedJson& id, const std::string& where) const {
  const UploadPtr found = upload(id, where);
  const std::optional<std::string_view> text = found == nullptr ? std::nullopt : found->text();
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

}  // namespace vlcache
