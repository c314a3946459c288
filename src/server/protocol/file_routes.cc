#include "server/protocol/file_routes.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "api/json_fields.h"
#include "base/coded_error.h"
#include "base/error.h"
#include "base/file_url.h"
#include "base/utf8.h"
#include "server/http/form.h"
#include "server/http/json_reply.h"
#include "server/http/random_id.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kRoot = "/v1/files", kContent = "/content";
constexpr size_t kMaxTextBytes = 1024;  // a field that is no file
constexpr size_t kMaxNameBytes = 255, kMaxPurposeBytes = 64, kMaxIds = 100;
constexpr int64_t kMaxSeconds = 7'776'000;  // 90 days: Anthropic's; OpenAI's are 30

// The fields of the form.
struct UploadForm {
  const FormPart* file = nullptr;
  std::string purpose;
  int64_t seconds = 0;  // 0: the server's
};

int64_t whole_number(std::string_view text, const std::string& where, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    bad_field(where + ": expected an integer from " + std::to_string(low) + " to " + std::to_string(high) +
              ", found '" + to_valid_utf8(text.substr(0, 40)) + "'");
  }
  return value;
}

std::string field_text(const FormPart& part) {
  if (part.data.size() > kMaxTextBytes || !is_valid_utf8(part.data)) {
    bad_field(part.name + ": expected a text of at most " + std::to_string(kMaxTextBytes) + " bytes");
  }
  return std::string(part.data);
}

void check_anchor(const std::string& anchor) {
  if (anchor != "created_at") bad_field("expires_after[anchor]: expected created_at, found '" + anchor + "'");
}

// {"anchor": "created_at", "seconds": 3600} as one field.
int64_t read_expiry(const std::string& text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  const OrderedJson* seconds = json.is_object() ? find_field(json, "seconds") : nullptr;
  if (seconds == nullptr) bad_field(R"(expires_after: expected {"anchor": "created_at", "seconds": 3600})");
  if (const OrderedJson* anchor = find_field(json, "anchor")) check_anchor(anchor->is_string() ? *anchor : "");
  return whole_number(seconds->dump(), "expires_after.seconds", 1, kMaxSeconds);
}

void read_part(const FormPart& part, UploadForm& form) {
  if (part.name == "file" || part.name == "file[]") {
    if (form.file != nullptr) bad_field("file: expected one file, found several; upload each with a request");
    if (!part.filename && part.type.empty()) {
      bad_field("file: expected a file, found a text (with curl: -F file=@PATH)");
    }
    form.file = &part;
  } else if (part.name == "purpose") {
    form.purpose = field_text(part);
    const auto plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
             c == '.';
    };
    if (form.purpose.size() > kMaxPurposeBytes || !std::ranges::all_of(form.purpose, plain)) {
      bad_field("purpose: expected a name such as user_data, vision or assistants");
    }
  } else if (part.name == "expires_after[anchor]") {
    check_anchor(field_text(part));
  } else if (part.name == "expires_after[seconds]" || part.name == "expires_in_seconds") {
    form.seconds = whole_number(field_text(part), part.name, 1, kMaxSeconds);
  } else if (part.name == "expires_after") {
    form.seconds = read_expiry(field_text(part));
  }
}

UploadForm read_form(std::span<const FormPart> parts, bool needs_purpose) {
  UploadForm form;
  for (const FormPart& part : parts) read_part(part, form);
  if (form.file == nullptr) bad_field("file: expected a file in the form");
  if (form.file->data.empty()) bad_field("file: expected bytes, found an empty file");
  if (form.purpose.empty() && needs_purpose) {
    bad_field("purpose: expected a name such as user_data, vision or assistants");
  }
  if (form.purpose.empty()) form.purpose = "user_data";
  return form;
}

// The parameters of a query by name, decoded; some may be there several times.
std::vector<std::pair<std::string, std::string>> parameters_of(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), one.size() + 1));
    std::string text(one);
    std::ranges::replace(text, '+', ' ');
    const size_t equals = std::min(text.find('='), text.size());
    std::optional<std::string> name = decode_percent(std::string_view(text).substr(0, equals));
    std::optional<std::string> value = decode_percent(std::string_view(text).substr(std::min(text.size(), equals + 1)));
    if (!name || !value || !is_valid_utf8(*value))
      bad_field("the query: expected escapes of UTF-8, found '" + text.substr(0, 40) + "'");
    if (!value->empty()) parameters.emplace_back(*std::move(name), *std::move(value));
  }
  return parameters;
}

struct ListQuery {
  size_t limit = 0;
  bool newest_first = true;
  std::string purpose;                  // "": any
  std::string after, before;            // ids, in the order of the list
  std::string after_name, before_name;  // the names of their parameters
  std::vector<std::string> ids;
  bool has_ids = false;
};

ListQuery read_list_query(std::string_view query, bool anthropic) {
  const size_t most = anthropic ? 1000 : 10'000;
  ListQuery asked{.limit = anthropic ? size_t{20} : most};
  for (auto& [name, value] : parameters_of(query)) {
    if (name == "limit") {
      asked.limit = static_cast<size_t>(whole_number(value, name, 1, static_cast<int64_t>(most)));
    } else if (name == "order") {
      if (value != "asc" && value != "desc")
        bad_field("order: expected asc or desc, found '" + value.substr(0, 40) + "'");
      asked.newest_first = value == "desc";
    } else if (name == "purpose") {
      asked.purpose = value;
    } else if (name == "after" || name == "after_id" || name == "page") {
      constexpr std::string_view kPage = "page_";
      asked.after = name == "page" && value.starts_with(kPage) ? value.substr(kPage.size()) : value;
      asked.after_name = name;
    } else if (name == "before" || name == "before_id") {
      asked.before = value;
      asked.before_name = name;
    } else if (name == "ids" || name == "ids[]") {
      asked.ids.push_back(value);
      asked.has_ids = true;
      if (asked.ids.size() > kMaxIds) bad_field("ids: expected at most " + std::to_string(kMaxIds));
    }
  }
  return asked;
}

struct ListPage {
  std::span<const UploadPtr> files;
  bool has_more = false;
};

// The part of the list between `after` and `before`: its beginning, or its end if only `before` is set.
ListPage page_of(std::span<const UploadPtr> files, const ListQuery& asked) {
  const auto place = [&](const std::string& id, const std::string& name) {
    const auto found = std::ranges::find(files, id, [](const UploadPtr& f) { return f->id; });
    if (found == files.end()) bad_field(name + ": there is no file '" + to_valid_utf8(id.substr(0, 80)) + "'");
    return static_cast<size_t>(found - files.begin());
  };
  const size_t begin = asked.after.empty() ? 0 : place(asked.after, asked.after_name) + 1;
  const size_t end = asked.before.empty() ? files.size() : place(asked.before, asked.before_name);
  const size_t n = end - std::min(begin, end), n_shown = asked.has_ids ? n : std::min(n, asked.limit);
  const bool at_end = !asked.before.empty() && asked.after.empty();
  return {.files = files.subspan(at_end ? end - n_shown : std::min(begin, end), n_shown), .has_more = n_shown < n};
}

OrderedJson openai_json(const Upload& file) {
  return {{"id", file.id},
          {"object", "file"},
          {"bytes", file.bytes->size()},
          {"created_at", file.created},
          {"expires_at", file.expires},
          {"filename", file.name},
          {"purpose", file.purpose},
          {"status", "processed"},
          {"status_details", nullptr}};
}

OrderedJson anthropic_json(const Upload& file) {
  return {{"id", file.id},
          {"type", "file"},
          {"filename", file.name},
          {"mime_type", file.type},
          {"size_bytes", file.bytes->size()},
          {"created_at", utc_time(file.created)},
          {"expires_at", utc_time(file.expires)},
          {"downloadable", true}};
}

OrderedJson json_of(const Upload& file, bool anthropic) { return anthropic ? anthropic_json(file) : openai_json(file); }

// A browser saves the file, whatever it is, and shows none of it as a page of this server.
HttpResponse content_of(const Upload& file) {
  HttpResponse response{.status = 200, .content_type = "application/octet-stream", .headers = {}, .body = ""};
  response.headers = {{"content-disposition", "attachment; " + filename_parameter(file.name)},
                      {"x-content-type-options", "nosniff"}};
  response.body.assign(reinterpret_cast<const char*>(file.bytes->data()), file.bytes->size());
  return response;
}

CodedError unknown_file(const Uploads& uploads, const std::string& id) {
  return {ErrorCode::kNotFound, uploads.unknown(id, "id"), "file_not_found", "id"};
}

}  // namespace

bool is_file_route(std::string_view path) {
  return path.starts_with(kRoot) && (path.size() == kRoot.size() || path[kRoot.size()] == '/');
}

bool asks_anthropic_files(const HttpRequest& request) {
  return is_file_route(request.path) &&
         (!request.header("anthropic-version").empty() || !request.header("anthropic-beta").empty());
}

std::string upload_name(std::string_view given, std::string_view type) {
  std::string name = to_valid_utf8(given.substr(given.find_last_of("/\\") + 1));
  std::erase_if(name, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; });
  size_t end = std::min(name.size(), kMaxNameBytes);
  while (end < name.size() && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // a whole character
  name.resize(end);
  if (!name.empty() && name != "." && name != "..") return name;
  constexpr std::pair<std::string_view, const char*> kSuffixes[] = {
      {"application/pdf", ".pdf"}, {"image/png", ".png"},        {"image/jpeg", ".jpg"}, {"image/webp", ".webp"},
      {"image/gif", ".gif"},       {"image/tiff", ".tif"},       {"video/mp4", ".mp4"},  {"video/webm", ".webm"},
      {"text/plain", ".txt"},      {"application/json", ".json"}};
  const auto suffix = std::ranges::find(kSuffixes, type, &std::pair<std::string_view, const char*>::first);
  return std::string("unnamed") + (suffix == std::end(kSuffixes) ? "" : suffix->second);
}

void FileRoutes::check_enabled() const {
  if (!uploads_.enabled()) {
    throw Error(ErrorCode::kNotFound, "this server keeps no uploaded files (--files-memory 0); send their bytes");
  }
}

HttpResponse FileRoutes::answer(const HttpRequest& request, const std::string& owner) {
  if (request.method == "POST") return add(request, owner);
  if (request.method == "DELETE") return remove(request, owner);
  return request.path == kRoot ? list(request, owner) : read(request, owner);
}

HttpResponse FileRoutes::add(const HttpRequest& request, const std::string& owner) {
  check_enabled();
  const bool anthropic = asks_anthropic_files(request);
  const std::vector<FormPart> parts = parse_form(request.header("content-type"), request.body);
  const UploadForm form = read_form(parts, !anthropic);
  const auto bytes = std::as_bytes(std::span(form.file->data));
  Upload file{.id = random_id(anthropic ? "file_" : "file-"),
              .name = "",
              .purpose = form.purpose,
              .type = upload_type(bytes, form.file->type),
              .bytes = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end())};
  file.name = upload_name(form.file->filename.value_or(""), file.type);
  const UploadPtr added = uploads_.add(owner, std::move(file), form.seconds, "file");
  if (added != nullptr) return json_response(json_of(*added, anthropic));
  HttpResponse full =
      refusal(503, "running requests use all uploaded files that fill the memory (--files-memory); try again later",
              "server_error");
  full.headers.emplace_back("retry-after", "1");
  return full;
}

HttpResponse FileRoutes::list(const HttpRequest& request, const std::string& owner) {
  check_enabled();
  const bool anthropic = asks_anthropic_files(request);
  const ListQuery asked = read_list_query(request.query, anthropic);
  std::vector<UploadPtr> files = uploads_.list(owner);
  if (asked.newest_first) std::ranges::reverse(files);
  std::erase_if(files, [&](const UploadPtr& file) {
    const bool listed = !asked.has_ids || std::ranges::find(asked.ids, file->id) != asked.ids.end();
    return !listed || (!asked.purpose.empty() && file->purpose != asked.purpose);
  });
  const ListPage page = page_of(files, asked);
  OrderedJson data = OrderedJson::array();
  for (const UploadPtr& file : page.files) data.push_back(json_of(*file, anthropic));
  const auto id = [&](bool first) {
    return page.files.empty() ? OrderedJson() : OrderedJson(first ? page.files.front()->id : page.files.back()->id);
  };
  OrderedJson reply{{"object", "list"},
                    {"data", std::move(data)},
                    {"first_id", id(true)},
                    {"last_id", id(false)},
                    {"has_more", page.has_more}};
  if (anthropic) {
    reply.erase("object");
    const bool goes_on = page.has_more && asked.before.empty();
    reply["next_page"] = goes_on ? OrderedJson("page_" + page.files.back()->id) : OrderedJson();
  }
  return json_response(reply);
}

HttpResponse FileRoutes::read(const HttpRequest& request, const std::string& owner) {
  check_enabled();
  std::string id = request.path.substr(kRoot.size() + 1);
  const bool content = id.ends_with(kContent);
  if (content) id.resize(id.size() - kContent.size());
  const UploadPtr file = uploads_.find(owner, id);
  if (file == nullptr) throw unknown_file(uploads_, id);
  return content ? content_of(*file) : json_response(json_of(*file, asks_anthropic_files(request)));
}

HttpResponse FileRoutes::remove(const HttpRequest& request, const std::string& owner) {
  check_enabled();
  const std::string id = request.path.substr(kRoot.size() + 1);
  if (!uploads_.remove(owner, id)) throw unknown_file(uploads_, id);
  if (asks_anthropic_files(request)) return json_response({{"id", id}, {"type", "file_deleted"}});
  return json_response({{"id", id}, {"object", "file"}, {"deleted", true}});
}

}  // namespace vlcache
