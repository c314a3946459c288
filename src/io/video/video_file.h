// A video as users name it: a clip's file, or a folder of numbered frames.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "io/video/video.h"

namespace vlcache {

constexpr int64_t kMaxClipBytes = int64_t{2} << 30;

// Reads a clip, or all images of a folder in the natural order of their names (frame2.png before frame10.png). Throws
// Error: kNotFound, kIo, kMemory (larger than max_bytes), kInput (a folder without images, an image that is no video).
EncodedVideo load_video(const std::filesystem::path& path, int64_t max_bytes = kMaxClipBytes);

// Of a clip, by its first bytes, such as video/mp4; "": unknown (GIF is not: most show one image).
std::string_view clip_media_type(std::span<const std::byte> bytes);

// The same of a file; false where it cannot be read.
bool is_clip_file(const std::filesystem::path& path);

// Whether a name comes before another where digits count as numbers.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace vlcache
