// GIF by giflib: the first frame on its canvas, transparent pixels white.
#include <gif_lib.h>

#include <array>
#include <cstring>
#include <vector>

#include "io/image/decoders.h"

namespace vlcache {
namespace {

struct Source {
  std::span<const uint8_t> bytes;
  size_t at = 0;
};

int on_read(GifFileType* gif, GifByteType* to, int n) {
  auto* source = static_cast<Source*>(gif->UserData);
  const size_t got = std::min(static_cast<size_t>(n), source->bytes.size() - source->at);
  std::memcpy(to, source->bytes.data() + source->at, got);
  source->at += got;
  return static_cast<int>(got);
}

class GifReader {
 public:
  explicit GifReader(const DecodeInput& in) : in_(in), source_{in.bytes} {
    int error = 0;
    gif_ = DGifOpen(&source_, on_read, &error);
    if (gif_ == nullptr) fail_library(error);
  }
  ~GifReader() { DGifCloseFile(gif_, nullptr); }
  GifReader(const GifReader&) = delete;
  GifReader& operator=(const GifReader&) = delete;

  Decoded read() {
    seek_frame();
    const GifImageDesc& frame = gif_->Image;
    if (frame.Width <= 0 || frame.Height <= 0) fail_image(in_, "GIF", "the first frame has no pixels");
    // A frame that reaches over the canvas enlarges it.
    const int64_t width = std::max<int64_t>(gif_->SWidth, int64_t{frame.Left} + frame.Width);
    const int64_t height = std::max<int64_t>(gif_->SHeight, int64_t{frame.Top} + frame.Height);
    check_dimensions(in_, "GIF", width, height);

    Palette colours = palette(frame.ColorMap != nullptr ? frame.ColorMap : gif_->SColorMap);
    Decoded out;
    out.image = Image(width, height);
    if (transparent_ >= 0) colours[static_cast<size_t>(transparent_)].fill(255);
    const auto& outside = colours[static_cast<size_t>(transparent_ >= 0 ? transparent_ : 0)];
    for (size_t i = 0; i < out.image.rgb.size(); i += 3) std::memcpy(&out.image.rgb[i], outside.data(), 3);
    read_lines(frame, colours, &out.image);
    return out;
  }

 private:
  using Palette = std::array<std::array<uint8_t, 3>, 256>;

  [[noreturn]] void fail_library(int error) const {
    const char* text = GifErrorString(error);
    fail_image(in_, "GIF", text != nullptr ? text : "the file is damaged");
  }

  // Past extensions up to the first frame's header. The last transparent index before it counts.
  void seek_frame() {
    while (true) {
      GifRecordType type = UNDEFINED_RECORD_TYPE;
      if (DGifGetRecordType(gif_, &type) == GIF_ERROR) fail_library(gif_->Error);
      if (type == IMAGE_DESC_RECORD_TYPE) break;
      if (type == TERMINATE_RECORD_TYPE) fail_image(in_, "GIF", "it holds no frame");
      if (type != EXTENSION_RECORD_TYPE) continue;
      int code = 0;
      GifByteType* block = nullptr;
      if (DGifGetExtension(gif_, &code, &block) == GIF_ERROR) fail_library(gif_->Error);
      if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr && block[0] >= 4 && (block[1] & 1) != 0)
        transparent_ = block[4];
      while (block != nullptr) {
        if (DGifGetExtensionNext(gif_, &block) == GIF_ERROR) fail_library(gif_->Error);
      }
    }
    if (DGifGetImageDesc(gif_) == GIF_ERROR) fail_library(gif_->Error);
  }

  // Without a palette, or with one that says the same, an index is a level of grey; entries a palette lacks are black.
  static Palette palette(const ColorMapObject* map) {
    Palette colours{};
    bool is_grey = true;
    const int n = map != nullptr ? std::min(map->ColorCount, 256) : 0;
    for (int i = 0; i < n; ++i) {
      const GifColorType& c = map->Colors[i];
      colours[static_cast<size_t>(i)] = {c.Red, c.Green, c.Blue};
      is_grey = is_grey && c.Red == i && c.Green == i && c.Blue == i;
    }
    for (size_t i = 0; is_grey && i < 256; ++i) colours[i].fill(static_cast<uint8_t>(i));
    return colours;
  }

  void read_lines(const GifImageDesc& frame, const Palette& colours, Image* image) {
    std::vector<GifPixelType> line(static_cast<size_t>(frame.Width));
    const auto read_line = [&](int64_t y) {
      if (DGifGetLine(gif_, line.data(), frame.Width) == GIF_ERROR) fail_library(gif_->Error);
      uint8_t* to = image->row(frame.Top + y) + 3 * int64_t{frame.Left};
      for (size_t x = 0; x < line.size(); ++x) std::memcpy(to + 3 * x, colours[line[x]].data(), 3);
    };
    if (!frame.Interlace) {
      for (int64_t y = 0; y < frame.Height; ++y) read_line(y);
      return;
    }
    constexpr int64_t kFirst[] = {0, 4, 2, 1}, kStep[] = {8, 8, 4, 2};
    for (int pass = 0; pass < 4; ++pass) {
      for (int64_t y = kFirst[pass]; y < frame.Height; y += kStep[pass]) read_line(y);
    }
  }

  const DecodeInput& in_;
  Source source_;
  GifFileType* gif_ = nullptr;
  int transparent_ = -1;
};

}  // namespace

Decoded decode_gif(const DecodeInput& in) { return GifReader(in).read(); }

}  // namespace vlcache
