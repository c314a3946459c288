// WebP by libwebp: the first frame on its canvas, over white if the file declares alpha, else over black.
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>
#include <string_view>

#include "io/image/alpha.h"
#include "io/image/decoders.h"
#include "io/image/orientation.h"

namespace vlcache {
namespace {

struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

class FirstFrame {
 public:
  explicit FirstFrame(const WebPDemuxer* demuxer) : found_(WebPDemuxGetFrame(demuxer, 1, &iter_) != 0) {}
  ~FirstFrame() { WebPDemuxReleaseIterator(&iter_); }
  FirstFrame(const FirstFrame&) = delete;
  FirstFrame& operator=(const FirstFrame&) = delete;
  bool found() const { return found_; }
  const WebPIterator& operator*() const { return iter_; }

 private:
  WebPIterator iter_{};
  bool found_;
};

std::span<const uint8_t> chunk(const WebPDemuxer* demuxer, const char* name) {
  WebPChunkIterator iter{};
  std::span<const uint8_t> bytes;  // points into the file
  if (WebPDemuxGetChunk(demuxer, name, 1, &iter) != 0) bytes = {iter.chunk.bytes, iter.chunk.size};
  WebPDemuxReleaseChunkIterator(&iter);
  return bytes;
}

}  // namespace

Decoded decode_webp(const DecodeInput& in) {
  const WebPData data{in.bytes.data(), in.bytes.size()};
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemux(&data));
  if (demuxer == nullptr) fail_image(in, "WebP", "the file is truncated or its chunks are damaged");
  const int64_t width = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH);
  const int64_t height = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT);
  check_dimensions(in, "WebP", width, height);
  const FirstFrame first(demuxer.get());
  if (!first.found()) fail_image(in, "WebP", "it holds no frame");

  const WebPIterator& frame = *first;
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(frame.fragment.bytes, frame.fragment.size, &features) != VP8_STATUS_OK ||
      features.width != frame.width || features.height != frame.height || frame.x_offset < 0 || frame.y_offset < 0 ||
      int64_t{frame.x_offset} + frame.width > width || int64_t{frame.y_offset} + frame.height > height) {
    fail_image(in, "WebP", "the first frame is damaged or does not fit the canvas");
  }
  WebPBitstreamFeatures file_features;  // as opposed to the frame's: alpha that the file does not declare is ignored
  const bool has_alpha = WebPGetFeatures(in.bytes.data(), in.bytes.size(), &file_features) == VP8_STATUS_OK &&
                         file_features.has_alpha != 0;
  const int64_t channels = has_alpha ? 4 : 3;
  Decoded out;
  out.image.width = width;
  out.image.height = height;
  out.image.rgb.resize(static_cast<size_t>(width * height * channels));  // transparent, or black
  const int64_t start = (frame.y_offset * width + frame.x_offset) * channels;
  const auto decode = has_alpha ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (decode(frame.fragment.bytes, frame.fragment.size, out.image.rgb.data() + start,
             out.image.rgb.size() - static_cast<size_t>(start), static_cast<int>(width * channels)) == nullptr) {
    fail_image(in, "WebP", "the pixel data is truncated or damaged");
  }
  if (has_alpha) blend_with_white(&out.image);
  const std::span<const uint8_t> xmp = chunk(demuxer.get(), "XMP ");
  out.orientation =
      choose_orientation(chunk(demuxer.get(), "EXIF"), {reinterpret_cast<const char*>(xmp.data()), xmp.size()});
  return out;
}

}  // namespace vlcache
