// Decodes images, PDFs and videos that are part of a request: data:image/png;base64,...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlcache {

enum class FileKind : uint8_t { kImage, kPdf, kVideo };

// What a client wrote: a URL, or base64 beside its media type. It belongs to the client's body.
struct EncodedText {
  std::string_view text;
  std::string_view type = {};  // of base64; may be empty
  bool is_base64 = false;
};

// Whether base64 of this media type, which may have parameters, can be such a file: the type is one of the kind's, or
// says nothing (octet-stream, None), or its first bytes say so.
bool may_be(FileKind kind, std::string_view type, std::string_view base64);
// The bytes of a data URI in base64, or of base64, that may_be such a file. Throws Error(kInput), beginning with
// `where`, for anything else: URLs of files and other hosts are not followed.
std::vector<std::byte> decode_data(const EncodedText& given, const std::string& where, FileKind kind);
std::vector<std::byte> decode_data_uri(std::string_view uri, const std::string& where,
                                       FileKind kind = FileKind::kImage);
// Decoded bytes as requests hold them.
inline std::shared_ptr<const std::vector<std::byte>> shared_bytes(std::vector<std::byte> bytes) {
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}
// A text that has no scheme is base64.
EncodedText uri_or_base64(std::string_view text);
// Whether the scheme is data:, in any case, white space before it left aside.
bool is_data_uri(std::string_view uri);
// How many texts this thread has decoded: for tests.
int64_t n_decoded();

}  // namespace vlcache
