#include "io/image/alpha.h"

namespace vlcache {

void blend_with_white(Image* image) {
  const size_t n_pixels = image->rgb.size() / 4;
  const uint8_t* from = image->rgb.data();
  uint8_t* to = image->rgb.data();  // never ahead of `from`
  for (size_t i = 0; i < n_pixels; ++i, from += 4, to += 3) {
    const uint32_t alpha = from[3];
    for (int c = 0; c < 3; ++c) to[c] = over_white(from[c], alpha);
  }
  image->rgb.resize(n_pixels * 3);
}

}  // namespace vlcache
