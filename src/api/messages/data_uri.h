// Decodes images, PDFs and videos that are part of a request: data:image/png;base64,...
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

enum class FileKind : uint8_t { kImage, kPdf, kVideo };

// The bytes of a base64 data URI of such a media type, or of none. Throws Error(kInput), beginning with `where`, for
// anything else: URLs of files and other hosts are not followed.
std::vector<std::byte> decode_data_uri(std::string_view uri, const std::string& where,
                                       FileKind kind = FileKind::kImage);
// The bytes of a PDF as `file_data` has them: a data URI, or base64 alone. Throws as decode_data_uri does.
std::vector<std::byte> decode_file_data(const std::string& data, const std::string& where);
// Whether the scheme is data:, in any case, white space before it left aside.
bool is_data_uri(std::string_view uri);

}  // namespace vlcache
