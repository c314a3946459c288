// PNG by libpng: every colour type and depth to 8-bit RGB. Of 16 bits the high byte is used, and a transparent colour
// is compared at the file's depth; Pillow shows grey of 16 bits as white from level 256 on, and compares low bytes.
#include <png.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "io/image/alpha.h"
#include "io/image/decoders.h"
#include "io/image/orientation.h"

namespace vlcache {
namespace {

constexpr int64_t kDeflateMaxRatio = 1032;  // of zlib: no stream expands further
// Pillow's limits (1 MiB a text chunk, 64 MiB in all) as libpng can express them. It skips chunks beyond them; its own
// defaults let a file of a few kilobytes take gigabytes.
constexpr png_alloc_size_t kMaxChunkBytes = 1 << 20;
constexpr png_uint_32 kMaxTextChunks = 64;
// libpng allocates as much memory as a chunk declares, whatever the limit above. Valid data never needs more than the
// file's size, a line of 16-bit RGBA twice, and text and zlib's state.
constexpr png_alloc_size_t kBytesBesides = 4 << 20;

// libpng reports errors by longjmp: every owner of memory lives in this class or outside the functions that call
// setjmp.
class PngReader {
 public:
  explicit PngReader(const DecodeInput& in) : in_(in) {
    largest_ = in.bytes.size() + static_cast<size_t>(in.limits.max_side) * 16 + kBytesBesides;
    png_ = png_create_read_struct_2(
        PNG_LIBPNG_VER_STRING, this, on_error, [](png_structp, png_const_charp) {}, this, on_malloc,
        [](png_structp, png_voidp memory) { std::free(memory); });
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      fail_image(in_, "PNG", "out of memory", ErrorCode::kMemory);
    }
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  Decoded read() {
    if (!read_header()) fail_image(in_, "PNG", message_);
    const int64_t width = png_get_image_width(png_, info_), height = png_get_image_height(png_, info_);
    check_dimensions(in_, "PNG", width, height);
    const int64_t raw_bytes = static_cast<int64_t>(png_get_rowbytes(png_, info_)) * height;
    if (raw_bytes / kDeflateMaxRatio > static_cast<int64_t>(in_.bytes.size())) {
      fail_image(in_, "PNG",
                 "the file is too short for its " + std::to_string(width) + " x " + std::to_string(height) + " pixels");
    }
    const bool has_alpha =
        (png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
    Decoded out;
    out.image.width = width;
    out.image.height = height;
    const int64_t row_bytes = width * (has_alpha ? 4 : 3);
    out.image.rgb.resize(static_cast<size_t>(row_bytes * height));
    rows_.resize(static_cast<size_t>(height));
    for (int64_t y = 0; y < height; ++y) rows_[static_cast<size_t>(y)] = out.image.rgb.data() + y * row_bytes;
    if (!read_pixels(has_alpha)) fail_image(in_, "PNG", message_);
    if (has_alpha) blend_with_white(&out.image);
    read_trailer();
    out.orientation = orientation();
    return out;
  }

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self->message_, sizeof(self->message_), "%s", message);
    png_longjmp(png, 1);
  }

  static png_voidp on_malloc(png_structp png, png_alloc_size_t n) {
    return n <= static_cast<PngReader*>(png_get_mem_ptr(png))->largest_ ? std::malloc(n) : nullptr;
  }

  static void on_read(png_structp png, png_bytep to, size_t n) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (n > self->in_.bytes.size() - self->at_) png_error(png, "the file is truncated");
    std::memcpy(to, self->in_.bytes.data() + self->at_, n);
    self->at_ += n;
  }

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, on_read);
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // check_dimensions follows
    png_set_chunk_malloc_max(png_, kMaxChunkBytes);
    png_set_chunk_cache_max(png_, kMaxTextChunks);
    png_read_info(png_, info_);
    return true;
  }

  // Converts to 3 bytes a pixel, or 4 with alpha.
  bool read_pixels(bool has_alpha) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_expand(png_);  // palettes, fewer than 8 bits, and transparent colours; the last before 16 bits become 8
    png_set_strip_16(png_);
    png_set_gray_to_rgb(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != png_get_image_width(png_, info_) * size_t{has_alpha ? 4u : 3u}) {
      png_error(png_, "unexpected row size");
    }
    png_read_image(png_, rows_.data());
    return true;
  }

  // Reads chunks after the pixels; damage there does not make the image unusable.
  void read_trailer() {
    if (setjmp(png_jmpbuf(png_)) != 0) return;
    png_read_end(png_, info_);
  }

  int orientation() const {
    png_textp text = nullptr;
    int n_text = 0;
    png_get_text(png_, info_, &text, &n_text);
    std::string_view xmp, profile;
    for (int i = 0; i < n_text; ++i) {
      const std::string_view key(text[i].key != nullptr ? text[i].key : "");
      const size_t length = text[i].itxt_length != 0 ? text[i].itxt_length : text[i].text_length;
      if (key == "XML:com.adobe.xmp") xmp = {text[i].text, length};
      if (key == "Raw profile type exif") profile = {text[i].text, length};
    }
    png_bytep exif = nullptr;
    png_uint_32 exif_bytes = 0;
    if (png_get_eXIf_1(png_, info_, &exif_bytes, &exif) != 0) return choose_orientation({exif, exif_bytes}, xmp);
    return choose_orientation(unhex_profile(profile), xmp);
  }

  // ImageMagick's text form: "\nexif\n<length>\n" and hexadecimal lines.
  static std::vector<uint8_t> unhex_profile(std::string_view text) {
    for (int line = 0; line < 3; ++line) {
      const size_t end = text.find('\n');
      if (end == std::string_view::npos) return {};
      text.remove_prefix(end + 1);
    }
    std::vector<uint8_t> bytes;
    int high = -1;
    for (const char c : text) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) continue;
      if (high >= 0) bytes.push_back(static_cast<uint8_t>(high << 4 | digit));
      high = high >= 0 ? -1 : digit;
    }
    return bytes;
  }

  const DecodeInput& in_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  size_t at_ = 0;
  size_t largest_ = 0;  // bytes of one allocation
  char message_[256] = "";
  std::vector<png_bytep> rows_;
};

}  // namespace

Decoded decode_png(const DecodeInput& in) { return PngReader(in).read(); }

}  // namespace vlcache
