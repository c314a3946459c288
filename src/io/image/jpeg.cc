// JPEG by libjpeg-turbo with its default accurate DCT and smooth chroma upsampling, as Pillow uses it.
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/request_limits.h"
#include "io/image/decoders.h"
#include "io/image/orientation.h"
// jpeglib.h needs size_t and FILE declared before it, jerror.h what jpeglib.h declares.
#include <jpeglib.h>
//
#include <jerror.h>

namespace vlcache {
namespace {

// A progressive file may repeat tiny scans, each of which costs a pass over the whole image.
int64_t max_scans(const DecodeInput& in, int64_t n_pixels) {
  const int64_t at_largest = std::max(in.limits.max_pixels, n_pixels) / std::max<int64_t>(1, n_pixels);
  return std::min(kMaxJpegScans, kMaxJpegScansAtLargest * at_largest);
}

// Scans of a file, found by its markers: 0xFF before another byte than 0, 1 and the restart markers.
int64_t count_scans(std::span<const uint8_t> bytes) {
  int64_t n = 0;
  for (size_t i = 2; i + 3 < bytes.size();) {
    const uint8_t marker = bytes[i + 1];
    const bool in_data = bytes[i] != 0xFF || marker <= 1 || marker == 0xFF || (marker >= 0xD0 && marker <= 0xD7);
    if (in_data) {
      const auto* next = static_cast<const uint8_t*>(std::memchr(&bytes[i + 1], 0xFF, bytes.size() - i - 1));
      if (next == nullptr) break;
      i = static_cast<size_t>(next - bytes.data());
      continue;
    }
    if (marker == 0xD9) break;
    n += marker == 0xDA;
    i += 2 + static_cast<size_t>(bytes[i + 2] << 8 | bytes[i + 3]);  // past the segment, whose length counts itself
  }
  return n;
}

struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg hands back a pointer to it
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(j_common_ptr cinfo, const char* message) {
  auto* errors = reinterpret_cast<JpegErrors*>(cinfo->err);
  std::snprintf(errors->message, sizeof(errors->message), "%s", message);
  std::longjmp(errors->jump, 1);
}

void on_error(j_common_ptr cinfo) {
  char message[JMSG_LENGTH_MAX];
  cinfo->err->format_message(cinfo, message);
  if (cinfo->err->msg_code == JERR_BAD_PRECISION) {
    std::snprintf(message, sizeof(message), "samples of %d bits; expected 8; save it with 8 bits a sample",
                  cinfo->err->msg_parm.i[0]);
  }
  leave(cinfo, message);
}

void on_warning(j_common_ptr, int) {}  // damaged entropy data decodes to something; Pillow accepts it too

boolean on_end_of_data(j_decompress_ptr cinfo) {
  leave(reinterpret_cast<j_common_ptr>(cinfo), "the file is truncated");
}

struct JpegProgress {
  jpeg_progress_mgr base;  // first, as above
  int64_t max_scans = kMaxJpegScans;
};

// For files whose scans libjpeg finds where count_scans does not.
void on_progress(j_common_ptr cinfo) {
  const auto* progress = reinterpret_cast<const JpegProgress*>(cinfo->progress);
  if (reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number > progress->max_scans)
    leave(cinfo, "too many scans");
}

// libjpeg reports errors by longjmp, which must not pass over a destructor: every owner of memory lives in this class
// or outside the functions that call setjmp.
class JpegReader {
 public:
  explicit JpegReader(const DecodeInput& in) : in_(in) {
    cinfo_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = on_error;
    errors_.base.emit_message = on_warning;
    errors_.message[0] = '\0';
    progress_.base.progress_monitor = on_progress;
  }
  ~JpegReader() { jpeg_destroy_decompress(&cinfo_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  Decoded read() {
    if (!read_header()) fail_image(in_, "JPEG", errors_.message);
    const int64_t width = cinfo_.image_width, height = cinfo_.image_height;
    check_dimensions(in_, "JPEG", width, height);
    const int n = cinfo_.num_components;
    if (n != 1 && n != 3 && n != 4) {
      fail_image(in_, "JPEG", std::to_string(n) + " components; expected 1, 3 or 4", ErrorCode::kUnsupported);
    }
    progress_.max_scans = max_scans(in_, width * height);
    check_jpeg_scans(in_, "JPEG", in_.bytes, width * height);
    Decoded out;
    out.orientation = orientation();
    out.image = Image(width, height);
    if (n != 3) row_.resize(static_cast<size_t>(width * n));
    if (!read_pixels(&out.image)) fail_image(in_, "JPEG", errors_.message);
    return out;
  }

 private:
  bool read_header() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&cinfo_);
    cinfo_.progress = &progress_.base;
    jpeg_mem_src(&cinfo_, in_.bytes.data(), in_.bytes.size());
    cinfo_.src->fill_input_buffer = on_end_of_data;
    jpeg_save_markers(&cinfo_, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&cinfo_, TRUE);
    return true;
  }

  bool read_pixels(Image* image) {
    if (setjmp(errors_.jump) != 0) return false;
    const int n = cinfo_.num_components;
    cinfo_.out_color_space = n == 1 ? JCS_GRAYSCALE : n == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_start_decompress(&cinfo_);
    while (cinfo_.output_scanline < cinfo_.output_height) {
      uint8_t* target = image->row(cinfo_.output_scanline);
      JSAMPROW row = n == 3 ? target : row_.data();
      if (jpeg_read_scanlines(&cinfo_, &row, 1) != 1) continue;
      if (n == 1) grey_row(target, image->width);
      if (n == 4) cmyk_row(target, image->width);
    }
    jpeg_finish_decompress(&cinfo_);
    return true;
  }

  void grey_row(uint8_t* to, int64_t width) const {
    for (int64_t x = 0; x < width; ++x) std::memset(to + 3 * x, row_[static_cast<size_t>(x)], 3);
  }

  // Ink as Adobe stores it, inverted. v - v * ink / 255 with v = 255 - black, rounded as Pillow does.
  void cmyk_row(uint8_t* to, int64_t width) const {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* ink = row_.data() + 4 * x;
      const int v = ink[3];
      for (int c = 0; c < 3; ++c) {
        const int product = (255 - ink[c]) * v + 128;
        to[3 * x + c] = static_cast<uint8_t>(std::max(0, v - (((product >> 8) + product) >> 8)));
      }
    }
  }

  int orientation() const {
    constexpr std::string_view kExif("Exif\0\0", 6), kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
    std::vector<uint8_t> exif;
    std::string_view xmp;
    for (const jpeg_marker_struct* m = cinfo_.marker_list; m != nullptr; m = m->next) {
      const std::string_view data(reinterpret_cast<const char*>(m->data), m->data_length);
      if (data.starts_with(kExif)) exif.insert(exif.end(), data.begin() + (exif.empty() ? 0 : 6), data.end());
      if (data.starts_with(kXmp)) xmp = data.substr(kXmp.size());
    }
    return choose_orientation(exif, xmp);
  }

  const DecodeInput& in_;
  jpeg_decompress_struct cinfo_{};
  JpegErrors errors_{};
  JpegProgress progress_{};
  std::vector<uint8_t> row_;  // one line of grey or CMYK samples
};

}  // namespace

void check_jpeg_scans(const DecodeInput& in, std::string_view format, std::span<const uint8_t> jpeg, int64_t n_pixels) {
  const int64_t n_scans = count_scans(jpeg), most = max_scans(in, n_pixels);
  if (n_scans <= most) return;
  fail_image(in, format,
             std::to_string(n_scans) + " scans; the limit is " + std::to_string(most) +
                 " at this size; save it with fewer, or not as progressive",
             ErrorCode::kMemory);
}

Decoded decode_jpeg(const DecodeInput& in) { return JpegReader(in).read(); }

}  // namespace vlcache
