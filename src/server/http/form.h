// Parses the body of a form with files, multipart/form-data (RFC 7578, RFC 2046 5.1), which clients send to upload.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

// Of a form; real ones have a handful of parts, each with two or three short headers.
inline constexpr size_t kMaxFormParts = 64, kMaxPartHeaderBytes = 8 << 10;

struct FormPart {
  std::string name;
  std::optional<std::string> filename;  // as the client wrote it: any bytes, with folders perhaps
  std::string type;                     // the media type in lower case, without parameters; empty: none is given
  std::string_view data;                // within the body
};

// The parts in their order. The data is not copied: `body` must outlive it. Lines may end in LF alone if the first
// boundary's does. Throws Error(kInput) for another Content-Type, no boundary or a broken one, a body that ends before
// its last boundary, parts without a name, a part that is a form itself or is encoded, and beyond the bounds.
std::vector<FormPart> parse_form(std::string_view content_type, std::string_view body);

// `text` as the value of a filename parameter that all clients read: quoted, and in UTF-8 where it is not ASCII.
// `text`: valid UTF-8 without control characters.
std::string filename_parameter(std::string_view text);

}  // namespace vlcache
