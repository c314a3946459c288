// Finds the pages of a TIFF, and decodes one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "io/image/image.h"

namespace vlcache {

// Whether the bytes begin as TIFF or BigTIFF does.
bool is_tiff(std::span<const std::byte> bytes);

// The offsets of the directories that are pages, in the file's order; smaller copies of a page and masks are none.
// Their contents are not read yet. Throws Error(kInput) that begins with `where` for a chain of directories that leaves
// the file (it is truncated), forms a loop, or has more than 65,536 of them.
std::vector<uint64_t> tiff_pages(std::span<const std::byte> tiff, std::string_view where);

// The page whose directory is at such an offset, upright, as decode_image returns images. Throws Error likewise.
Image decode_tiff_page(std::span<const std::byte> tiff, uint64_t directory, std::string_view where,
                       const ImageLimits& limits = {});

}  // namespace vlcache
