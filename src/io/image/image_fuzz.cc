// Fuzzes the image decoders and, on what they accept, the resampler.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/image/image.h"
#include "io/image/resize.h"

FUZZ_TARGET(image) {
  using namespace vlcache;
  const ImageLimits limits{.max_pixels = 1 << 18, .max_side = 1 << 14};
  try {
    const Image image = decode_image(std::as_bytes(std::span(data, size)), "fuzz", limits);
    resize(image, 1 + data[size / 2] % 64, 1 + data[size - 1] % 64, static_cast<Resample>(data[size / 3] % 6), limits);
  } catch (const Error&) {
  }
  return 0;
}
