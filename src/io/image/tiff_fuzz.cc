// Fuzzes the pages of TIFFs, and the names of files that are no images.
#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/image/other_formats.h"
#include "io/image/tiff.h"

FUZZ_TARGET(tiff) {
  using namespace vlcache;
  const ImageLimits limits{.max_pixels = 1 << 16, .max_side = 1 << 12};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  if (!is_tiff(bytes)) {
    describe_other_format({data, size});
    return 0;
  }
  try {
    int n = 0;
    for (const uint64_t page : tiff_pages(bytes, "fuzz")) {
      if (++n > 4) break;
      try {
        decode_tiff_page(bytes, page, "fuzz", limits);
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
