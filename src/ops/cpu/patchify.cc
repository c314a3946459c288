#include "base/error.h"
#include "ops/cpu/row_ops.h"

namespace vlcache::cpu {

void patchify(Isa isa, const Tensor& pixels, int64_t patch, const Tensor& y) {
  CHECK(pixels.rank == 4 && pixels.dtype == DType::kF32 && patch > 0);
  const int64_t channels = pixels.dim(1), height = pixels.dim(2), width = pixels.dim(3);
  const int64_t n_y = height / patch, n_x = width / patch;
  CHECK(y.rows() == pixels.rows() * n_y * n_x && y.row_size() == channels * patch * patch);
  const int64_t y_bytes = dtype_bytes(y.dtype);
  for_row_ranges(y.rows(), y.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t top = i / n_x % n_y * patch, left = i % n_x * patch;
      const float* image = pixels.row<float>(i / (n_x * n_y));
      std::byte* out = y.data + i * y.stride * y_bytes;
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t dy = 0; dy < patch; ++dy, out += patch * y_bytes) {
          const float* line = image + (c * height + top + dy) * width + left;
          convert_values(isa, {DType::kF32, y.dtype}, reinterpret_cast<const std::byte*>(line), out, patch);
        }
      }
    }
  });
}

}  // namespace vlcache::cpu
