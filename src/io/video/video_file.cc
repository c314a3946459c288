#include "io/video/video_file.h"

#include <algorithm>
#include <cctype>
#include <fstream>

#include "base/error.h"
#include "io/image/other_formats.h"

namespace vlcache {
namespace {

constexpr std::string_view kSuffixes[] = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"};

struct ClipMark {
  size_t at;
  std::string_view bytes, media_type;
};
constexpr ClipMark kClipMarks[] = {{4, "ftyp", "video/mp4"},
                                   {4, "moov", "video/quicktime"},
                                   {4, "mdat", "video/quicktime"},
                                   {0, "\x1a\x45\xdf\xa3", "video/webm"},
                                   {8, "AVI ", "video/x-msvideo"},
                                   {0, "FLV\x01", "video/x-flv"},
                                   {0, "OggS", "video/ogg"},
                                   {0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11", "video/x-ms-asf"},
                                   {0, std::string_view("\x00\x00\x01\xba", 4), "video/mpeg"},
                                   {0, std::string_view("\x00\x00\x01\xb3", 4), "video/mpeg"}};
constexpr size_t kTransportPacket = 188;  // of MPEG-TS, each with 'G' first

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Removes the digits from the beginning of `text`, without leading zeros.
std::string_view take_digits(std::string_view& text) {
  const auto end = std::ranges::find_if_not(text, is_digit);
  std::string_view digits(text.begin(), end);
  text.remove_prefix(digits.size());
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

bool is_frame(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  std::string suffix = entry.path().extension().string();
  std::ranges::transform(suffix, suffix.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::find(kSuffixes, suffix) != std::end(kSuffixes) && entry.is_regular_file(error) &&
         !entry.path().filename().string().starts_with('.');
}

VideoBytes read_bytes(const std::filesystem::path& path, int64_t max_bytes) {
  return std::make_shared<const std::vector<std::byte>>(read_image_file(path, {.max_bytes = max_bytes}));
}

EncodedVideo load_folder(const std::filesystem::path& path, int64_t max_bytes) {
  EncodedVideo video{.clip = nullptr, .where = path.string()};
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (is_frame(entry)) files.push_back(entry.path());
    if (std::ssize(files) > VideoLimits{}.max_listed) {
      throw Error(ErrorCode::kMemory,
                  path.string() + ": the folder has more than " + std::to_string(VideoLimits{}.max_listed) + " frames");
    }
  }
  if (error) throw Error(ErrorCode::kIo, path.string() + ": " + error.message());
  if (files.empty()) {
    throw Error(ErrorCode::kInput,
                path.string() + ": expected a folder of frames (JPEG, PNG, WebP, BMP, GIF or TIFF files), found none");
  }
  std::ranges::sort(
      files, [](const auto& a, const auto& b) { return natural_less(a.filename().string(), b.filename().string()); });
  for (const std::filesystem::path& file : files) {
    video.frames.push_back(read_bytes(file, max_bytes));
    max_bytes -= std::ssize(*video.frames.back());
  }
  return video;
}

}  // namespace

std::string_view clip_media_type(std::span<const std::byte> bytes) {
  if (is_heif(bytes)) return "";
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const ClipMark& mark : kClipMarks) {
    if (text.size() > mark.at && text.substr(mark.at).starts_with(mark.bytes)) return mark.media_type;
  }
  const bool transport = text.size() > 2 * kTransportPacket && text[0] == 'G' && text[kTransportPacket] == 'G' &&
                         text[2 * kTransportPacket] == 'G';
  return transport ? "video/mp2t" : "";
}

bool is_clip_file(const std::filesystem::path& path) {
  std::vector<std::byte> head(2 * kTransportPacket + 1);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(head.data()), std::ssize(head));
  return !clip_media_type(std::span(head).first(static_cast<size_t>(file.gcount()))).empty();
}

bool natural_less(std::string_view a, std::string_view b) {
  std::string_view left = a, right = b;
  while (!left.empty() && !right.empty()) {
    if (is_digit(left.front()) && is_digit(right.front())) {
      const std::string_view first = take_digits(left), second = take_digits(right);
      if (first.size() != second.size()) return first.size() < second.size();
      if (first != second) return first < second;
      continue;
    }
    if (left.front() != right.front()) return left.front() < right.front();
    left.remove_prefix(1);
    right.remove_prefix(1);
  }
  if (left.empty() != right.empty()) return left.empty();
  return a < b;  // 01 and 1
}

EncodedVideo load_video(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return load_folder(path, max_bytes);
  const VideoBytes bytes = read_bytes(path, max_bytes);
  const std::string_view type = media_type(*bytes);
  if (!type.empty() && type != "image/gif") {
    throw Error(ErrorCode::kInput, path.string() + ": expected a video, found an image (" + std::string(type) +
                                       "); give it with -i, or a folder of frames");
  }
  return {.clip = bytes, .where = path.string()};
}

}  // namespace vlcache
