// Decodes images that are part of a request: data:image/png;base64,...
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

// The bytes of a base64 data URI of an image's media type. Throws Error(kInput), beginning with `where`, for anything
// else: URLs of files and other hosts are not followed.
std::vector<std::byte> decode_data_uri(std::string_view uri, const std::string& where);
// Whether the scheme is data:, in any case, white space before it left aside.
bool is_data_uri(std::string_view uri);

}  // namespace vlcache
