// libpng; averaging; base64 of RFC 4648.
#include "io/image/encode.h"

#include <png.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "io/image/resize.h"

namespace vlcache {
namespace {

// libpng reports errors by longjmp: every owner of memory lives in this class.
class PageWriter {
 public:
  explicit PageWriter(const Image& image) : image_(image) {
    png_ = png_create_write_struct(PNG_LIBPNG_VER_STRING, this, on_failure, [](png_structp, png_const_charp) {});
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    for (size_t i = 0; i < image.rgb.size() && !has_colour_; i += 3) {
      const uint8_t level = image.rgb[i];
      has_colour_ = level != image.rgb[i + 1] || level != image.rgb[i + 2];
      is_bilevel_ = is_bilevel_ && (level == 0 || level == 255);
    }
    row_.resize(static_cast<size_t>(image.width));
  }
  ~PageWriter() { png_destroy_write_struct(&png_, &info_); }
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  std::vector<std::byte> write() {
    if (info_ == nullptr || !write_all()) throw Error(ErrorCode::kMemory, "a PNG cannot be made: out of memory");
    return std::move(bytes_);
  }

 private:
  static void on_failure(png_structp png, png_const_charp) { png_longjmp(png, 1); }

  static void on_bytes(png_structp png, png_bytep data, size_t n) {
    auto* self = static_cast<PageWriter*>(png_get_io_ptr(png));
    bool has_room = true;
    try {
      const auto* from = reinterpret_cast<const std::byte*>(data);
      self->bytes_.insert(self->bytes_.end(), from, from + n);
    } catch (const std::bad_alloc&) {
      has_room = false;
    }
    if (!has_room) png_error(png, "out of memory");
  }

  bool write_all() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_write_fn(png_, this, on_bytes, [](png_structp) {});
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);
    const int bits = has_colour_ || !is_bilevel_ ? 8 : 1;
    png_set_IHDR(png_, info_, static_cast<png_uint_32>(image_.width), static_cast<png_uint_32>(image_.height), bits,
                 has_colour_ ? PNG_COLOR_TYPE_RGB : PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_compression_level(png_, 1);
    png_set_filter(png_, 0, bits == 8 ? PNG_FILTER_SUB : PNG_FILTER_NONE);
    png_write_info(png_, info_);
    png_set_packing(png_);  // 1 bit: the rows have a byte for each pixel
    for (int64_t y = 0; y < image_.height; ++y) {
      const uint8_t* rgb = image_.row(y);
      if (!has_colour_) {
        for (size_t x = 0; x < row_.size(); ++x) row_[x] = bits == 1 ? rgb[3 * x] & 1 : rgb[3 * x];
      }
      png_write_row(png_, has_colour_ ? rgb : row_.data());
    }
    png_write_end(png_, info_);
    return true;
  }

  const Image& image_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  bool has_colour_ = false, is_bilevel_ = true;
  std::vector<uint8_t> row_;
  std::vector<std::byte> bytes_;
};

}  // namespace

std::vector<std::byte> encode_page(const Image& image) { return PageWriter(image).write(); }

std::vector<std::byte> encode_png(const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  std::vector<std::byte> bytes;
  for (const bool sized : {false, true}) {
    if (sized) bytes.resize(size);
    if (png_image_write_to_memory(&png, sized ? bytes.data() : nullptr, &size, 0, image.rgb.data(), 0, nullptr) == 0) {
      throw Error(ErrorCode::kMemory, std::string("a PNG cannot be made: ") + png.message);
    }
  }
  bytes.resize(size);
  return bytes;
}

Image shrink(const Image& image, int64_t max_side) {
  const int64_t longer = std::max(image.width, image.height);
  if (longer <= max_side) return image;
  return resize(image, std::max<int64_t>(1, image.width * max_side / longer),
                std::max<int64_t>(1, image.height * max_side / longer), Resample::kBox);
}

std::string base64(const std::vector<std::byte>& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t j = 0; j < 3; ++j)
      three = three << 8 | (i + j < bytes.size() ? static_cast<uint32_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kDigits[three >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

}  // namespace vlcache
