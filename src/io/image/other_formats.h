// Names files that are not read as images, by their first bytes, and the commands that convert them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace vlcache {

inline constexpr const char* kImageFormats = "JPEG, PNG, WebP, BMP, GIF or TIFF";

// Whether the bytes are AVIF, HEIC or HEIF: images in the container of MP4.
bool is_heif(std::span<const std::byte> bytes);
// The end of an error's line for bytes that are none of kImageFormats: "found AVIF; expected JPEG, ... or TIFF
// (ffmpeg -i x.avif x.png)", or "unknown format; expected ..." for bytes that begin like no format that is known here.
// Files of text say so. Reads the first 4 KiB at most.
std::string describe_other_format(std::span<const uint8_t> bytes);
// Of bytes that are no PDF: "an image", "JSON", "text", or "another kind of file" where they begin like nothing that is
// known here.
std::string name_other_format(std::span<const std::byte> bytes);

}  // namespace vlcache
