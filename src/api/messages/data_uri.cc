#include "api/messages/data_uri.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/coded_error.h"
#include "io/document/tiff_document.h"
#include "io/image/image.h"
#include "io/video/video_file.h"

namespace vlcache {

namespace {

bool equal_caseless(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

int hex_digit(char c) {
  if ('0' <= c && c <= '9') return c - '0';
  if ('a' <= c && c <= 'f') return c - 'a' + 10;
  return 'A' <= c && c <= 'F' ? c - 'A' + 10 : -1;
}

int base64_digit(char c) {
  if ('A' <= c && c <= 'Z') return c - 'A';
  if ('a' <= c && c <= 'z') return c - 'a' + 26;
  if ('0' <= c && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;  // the second of each: RFC 4648's alphabet for URLs
  return c == '/' || c == '_' ? 63 : -1;
}

// Base64 in either alphabet, padded or not, with white space and %-escapes; nullopt where it is something else.
std::optional<std::vector<std::byte>> decode_base64(std::string_view text) {
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  size_t n_digits = 0, n_padding = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size() || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0) return std::nullopt;
      c = static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    }
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') continue;
    if (c == '=') {
      ++n_padding;
      continue;
    }
    const int digit = base64_digit(c);
    if (digit < 0 || n_padding > 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (++n_digits % 4 != 0) continue;
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<std::byte>(bits >> shift & 0xFF));
    bits = 0;
  }
  const size_t n_last = n_digits % 4;
  if (n_last == 1 || (n_padding > 0 && n_last + n_padding != 4)) return std::nullopt;
  if (n_last >= 2) bytes.push_back(static_cast<std::byte>(bits >> (n_last == 2 ? 4 : 10) & 0xFF));
  if (n_last == 3) bytes.push_back(static_cast<std::byte>(bits >> 2 & 0xFF));
  return bytes;
}

std::string_view without_space(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

thread_local int64_t t_decoded = 0;

constexpr std::string_view kScheme = "data:";

// How errors speak of a kind of file, and their codes, which are OpenAI's for images.
struct KindWords {
  const char *noun, *example;
  std::array<std::string_view, 3> types;  // the beginnings of media types
  const char *invalid_url, *unsupported, *empty, *invalid_base64;
};

const KindWords& words_of(FileKind kind) {
  static constexpr KindWords kImage{
      "an image",         "image/png",           {"image/"}, "invalid_image_url", "unsupported_image_media_type",
      "empty_image_file", "invalid_base64_image"};
  static constexpr KindWords kPdf{"a PDF",
                                  "application/pdf",
                                  {"application/pdf", "application/x-pdf", "image/tif"},
                                  "invalid_file_url",
                                  "unsupported_file_media_type",
                                  "empty_file",
                                  "invalid_base64_file"};
  static constexpr KindWords kVideo{"a video",
                                    "video/mp4",
                                    {"video/", "image/gif"},
                                    "invalid_video_url",
                                    "unsupported_video_media_type",
                                    "empty_video_file",
                                    "invalid_base64_video"};
  return kind == FileKind::kImage ? kImage : kind == FileKind::kPdf ? kPdf : kVideo;
}

// What lets the server read such a URL.
std::string flag_for(std::string_view url) {
  const std::string_view scheme = url.substr(0, url.find(':'));
  if (equal_caseless(scheme, "http") || equal_caseless(scheme, "https"))
    return "; serve --image-url-prefix allows such URLs";
  return equal_caseless(scheme, "file") ? "; serve --image-path-prefix allows such URLs" : "";
}

// Types of clients that do not know one: the first bytes say what the data is.
bool says_nothing(std::string_view type) {
  constexpr std::array<std::string_view, 13> kTypes{"",
                                                    "application/octet-stream",
                                                    "binary/octet-stream",
                                                    "application/binary",
                                                    "application/x-binary",
                                                    "application/unknown",
                                                    "application/download",
                                                    "application/force-download",
                                                    "none",
                                                    "null",
                                                    "undefined",
                                                    "unknown",
                                                    "*/*"};
  return std::ranges::any_of(kTypes, [&](std::string_view known) { return equal_caseless(type, known); });
}

// Whether base64 begins as files of this kind do.
bool begins_as(FileKind kind, std::string_view base64) {
  constexpr size_t kHead = 1408;  // holds the KiB within which a PDF may begin
  std::optional<std::vector<std::byte>> head;
  for (size_t n = kHead; !head && n > kHead - 4; --n) head = decode_base64(base64.substr(0, n));  // whole groups
  if (!head) return false;
  switch (kind) {
    case FileKind::kImage:
      return !media_type(*head).empty();
    case FileKind::kPdf:
      return is_document(*head);
    case FileKind::kVideo:
      return !clip_media_type(*head).empty() || media_type(*head) == "image/gif";
  }
  return false;
}

// "image/png;charset=utf-8;base64" has the parameter "base64".
bool has_parameter(std::string_view media, std::string_view name) {
  while (true) {
    const size_t next = media.find(';');
    if (next == media.npos) return false;
    media.remove_prefix(next + 1);
    if (equal_caseless(without_space(media.substr(0, media.find(';'))), name)) return true;
  }
}

}  // namespace

bool may_be(FileKind kind, std::string_view type, std::string_view base64) {
  type = without_space(type.substr(0, type.find(';')));
  if (says_nothing(type)) return true;
  const bool right = std::ranges::any_of(words_of(kind).types, [&](std::string_view beginning) {
    return !beginning.empty() && equal_caseless(type.substr(0, beginning.size()), beginning);
  });
  return right || begins_as(kind, base64);
}

bool is_data_uri(std::string_view uri) { return equal_caseless(without_space(uri).substr(0, kScheme.size()), kScheme); }

std::vector<std::byte> decode_data_uri(std::string_view uri, const std::string& where, FileKind kind) {
  return decode_data({.text = uri}, where, kind);
}

std::vector<std::byte> decode_data(const EncodedText& given, const std::string& where, FileKind kind) {
  const KindWords& words = words_of(kind);
  const auto fail = [&](const std::string& expected, const char* name, const std::string& advice = "") {
    const std::string scheme = given.is_base64 ? "data:" + std::string(given.type.substr(0, 40)) + ";base64," : "";
    const std::string found = (scheme + std::string(given.text.substr(0, 40))).substr(0, 40);
    throw CodedError(ErrorCode::kInput, where + ": expected " + expected + ", found '" + found + "'" + advice, name,
                     where);
  };
  std::string_view type = without_space(given.type), text = without_space(given.text);
  if (!given.is_base64) {
    if (!is_data_uri(text))
      fail("a data URI (data:" + std::string(words.example) + ";base64,...), the only kind that is taken",
           words.invalid_url, flag_for(text));
    const std::string_view uri = text.substr(kScheme.size());
    const size_t comma = uri.find(',');
    const std::string_view media = without_space(uri.substr(0, comma == uri.npos ? 0 : comma));
    if (comma == uri.npos || !has_parameter(media, "base64")) fail("a data URI in base64", words.invalid_url);
    type = media;
    text = uri.substr(comma + 1);
  }
  if (!may_be(kind, type, text)) fail("a data URI of " + std::string(words.noun), words.unsupported);
  if (text.empty() || text.size() > INT32_MAX / 2) fail(std::string(words.noun), words.empty);
  ++t_decoded;
  std::optional<std::vector<std::byte>> bytes = decode_base64(text);
  if (!bytes) fail("base64 after the comma", words.invalid_base64);
  return *std::move(bytes);
}

EncodedText uri_or_base64(std::string_view text) { return {.text = text, .is_base64 = text.find(':') == text.npos}; }

int64_t n_decoded() { return t_decoded; }

}  // namespace vlcache
