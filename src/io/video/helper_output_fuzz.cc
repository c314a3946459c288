// Fuzzes the reader of vlcache-video's output, whole and in two pieces.
#include <cstdlib>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/video/helper_output.h"

FUZZ_TARGET(helper_output) {
  using namespace vlcache;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const std::vector<int64_t> indices{0, 3};
  const VideoLimits limits{.image = {.max_pixels = 4096, .max_side = 4096}};
  const auto run = [&](size_t cut) {
    int64_t n_taken = 0;
    const TakeFrame take = [&](int64_t index, Image&& frame) {
      if (index != indices[static_cast<size_t>(n_taken++)] || frame.rgb.empty()) std::abort();
    };
    HelperOutput output(indices, limits, take);
    try {
      output.add(bytes.first(cut));
      output.add(bytes.subspan(cut));
    } catch (const Error&) {
    }
    if (output.complete() && n_taken != 2) std::abort();
    return n_taken;
  };
  if (run(0) != run(size / 2)) std::abort();
  return 0;
}
