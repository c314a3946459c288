// Telling image formats apart, limits, and reading image files.
#include "io/image/image.h"

#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "io/image/decoders.h"
#include "io/image/orientation.h"
#include "io/image/other_formats.h"
#include "io/image/tiff.h"

namespace vlcache {
namespace {

bool starts_with(std::span<const uint8_t> bytes, size_t at, std::string_view magic) {
  return bytes.size() >= at + magic.size() && std::memcmp(bytes.data() + at, magic.data(), magic.size()) == 0;
}

struct Format {
  std::string_view media_type;
  Decoded (*decode)(const DecodeInput& in);
};

// By the first bytes; nullopt: none of the formats below.
std::optional<Format> format_of(std::span<const uint8_t> bytes) {
  if (starts_with(bytes, 0, "\xff\xd8\xff")) return Format{"image/jpeg", decode_jpeg};
  if (starts_with(bytes, 0, std::string_view("\x89PNG\r\n\x1a\n", 8))) return Format{"image/png", decode_png};
  if (starts_with(bytes, 0, "RIFF") && starts_with(bytes, 8, "WEBP")) return Format{"image/webp", decode_webp};
  if (starts_with(bytes, 0, "GIF87a") || starts_with(bytes, 0, "GIF89a")) return Format{"image/gif", decode_gif};
  if (is_tiff(std::as_bytes(bytes))) return Format{"image/tiff", decode_tiff};
  if (starts_with(bytes, 0, "BM")) return Format{"image/bmp", decode_bmp};
  return std::nullopt;
}

std::span<const uint8_t> as_unsigned(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

Decoded decode_any(const DecodeInput& in) {
  if (in.bytes.empty()) fail_image(in, "image", "the file is empty");
  if (static_cast<int64_t>(in.bytes.size()) > in.limits.max_bytes) {
    fail_image(in, "image",
               std::to_string(in.bytes.size()) + " bytes; the limit is " + std::to_string(in.limits.max_bytes),
               ErrorCode::kMemory);
  }
  if (const std::optional<Format> format = format_of(in.bytes)) return format->decode(in);
  fail_image(in, "image", describe_other_format(in.bytes), ErrorCode::kUnsupported);
}

}  // namespace

Image::Image(int64_t width, int64_t height)
    : width(width), height(height), rgb(static_cast<size_t>(width) * static_cast<size_t>(height) * 3) {}

void fail_image(const DecodeInput& in, std::string_view format, std::string_view what, ErrorCode code) {
  std::string message(in.where);
  message.append(": ").append(format).append(": ").append(what);
  throw Error(code, message);
}

void check_dimensions(const DecodeInput& in, std::string_view format, int64_t width, int64_t height) {
  const std::string found = std::to_string(width) + " x " + std::to_string(height) + " pixels";
  if (width <= 0 || height <= 0) fail_image(in, format, found + "; expected at least 1 x 1");
  if (width > in.limits.max_side || height > in.limits.max_side) {
    fail_image(in, format, found + "; the limit is " + std::to_string(in.limits.max_side) + " a side",
               ErrorCode::kMemory);
  }
  if (width > in.limits.max_pixels / height) {
    fail_image(in, format, found + "; the limit is " + std::to_string(in.limits.max_pixels) + " pixels",
               ErrorCode::kMemory);
  }
}

std::string_view media_type(std::span<const std::byte> bytes) {
  const std::optional<Format> format = format_of(as_unsigned(bytes));
  return format ? format->media_type : "";
}

Image decode_image(std::span<const std::byte> bytes, std::string_view where, const ImageLimits& limits) {
  const DecodeInput in{as_unsigned(bytes), where, limits};
  Decoded decoded = decode_any(in);
  return apply_orientation(std::move(decoded.image), decoded.orientation);
}

std::vector<std::byte> read_image_file(const std::filesystem::path& path, const ImageLimits& limits) {
  const std::string where = path.string();
  std::error_code error;
  if (where.starts_with("http:/") || where.starts_with("https:/")) {
    throw Error(ErrorCode::kInput, where + ": expected a file, found a URL; download it first (curl -O URL)");
  }
  if (!std::filesystem::exists(path, error)) throw Error(ErrorCode::kNotFound, where + ": no such image file");
  if (!std::filesystem::is_regular_file(path, error)) {
    throw Error(ErrorCode::kIo, where + ": expected an image file, found a directory or device");
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) throw Error(ErrorCode::kIo, where + ": the image cannot be read");
  if (size > static_cast<uintmax_t>(limits.max_bytes)) {
    throw Error(ErrorCode::kMemory, where + ": image: " + std::to_string(size) + " bytes; the limit is " +
                                        std::to_string(limits.max_bytes));
  }
  std::vector<std::byte> bytes(size);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size))) {
    throw Error(ErrorCode::kIo, where + ": reading the image failed");
  }
  return bytes;
}

Image load_image(const std::filesystem::path& path, const ImageLimits& limits) {
  return decode_image(read_image_file(path, limits), path.string(), limits);
}

}  // namespace vlcache
