#include "model/images/cell_dedup.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/format.h"
#include "model/family.h"

namespace vlcache {
namespace {

// Pixels were 8-bit values, so differences are whole steps of 1/255: a little more than the tolerance is none more.
constexpr float kRounding = 1e-3f / 255;

class Cells {
 public:
  Cells(const ImageTiles& image, int64_t side, const std::array<float, 3>& range, float tolerance)
      : pixels_(reinterpret_cast<const float*>(image.pixels.data())),
        height_(image.height),
        width_(image.width),
        n_planes_(image.n_frames * 3),
        side_(side) {
    for (size_t c = 0; c < range.size(); ++c) limits_[c] = tolerance > 0 ? (tolerance + kRounding) * range[c] : 0;
  }

  bool alike(int32_t a, int32_t b) const {
    if (a == b) return true;
    for (int64_t plane = 0; plane < n_planes_; ++plane) {
      const float limit = limits_[static_cast<size_t>(plane % 3)];
      const float *of_a = first(a, plane), *of_b = first(b, plane);
      for (int64_t y = 0; y < side_; ++y, of_a += width_, of_b += width_) {
        float largest = 0;
        for (int64_t x = 0; x < side_; ++x) largest = std::max(largest, std::abs(of_a[x] - of_b[x]));
        if (!(largest <= limit)) return false;
      }
    }
    return true;
  }

 private:
  const float* first(int32_t cell, int64_t plane) const {
    const int64_t cols = width_ / side_;
    return pixels_ + (plane * height_ + cell / cols * side_) * width_ + cell % cols * side_;
  }

  const float* pixels_;
  int64_t height_, width_, n_planes_, side_;
  std::array<float, 3> limits_{};
};

}  // namespace

void check_takes_dedup(const ModelConfig& config) {
  if (config.vision && config.vision->traits.any_grid) return;
  throw Error(ErrorCode::kInput,
              "image_dedup: expected a model that takes images of any size (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, "
              "PaddleOCR-VL, GLM-OCR); this one (" +
                  config.model_type + (config.vision ? ") takes tiles of a fixed size" : ") takes text only"));
}

KeptCells dedup_cells(const ImageTiles& image, int64_t cell, const std::array<float, 3>& range, const CellDedup& how) {
  CHECK(image.n_tiles == 1 && image.pixels.bytes() == image.tensor().bytes());
  CHECK(cell > 0 && image.height % cell == 0 && image.width % cell == 0);
  const Cells cells(image, cell, range, how.tolerance);
  const auto cols = static_cast<int32_t>(image.width / cell), n = static_cast<int32_t>(image.height / cell) * cols;
  std::vector<int32_t> stands_for(static_cast<size_t>(n));  // of each cell, the one that is kept for it
  std::vector<int32_t> counts(static_cast<size_t>(n), 0);
  const auto kept_for = [&](int32_t i) { return stands_for[static_cast<size_t>(i)]; };
  for (int32_t i = 0; i < n; ++i) {
    int32_t& own = stands_for[static_cast<size_t>(i)];
    own = i;
    const bool first_line = i < cols, first_column = i % cols == 0;
    if (i > 0) {
      int32_t prediction = kept_for(first_column ? i - cols : i - 1);
      if (!first_line && !first_column) {
        const int32_t above = kept_for(i - cols), corner = kept_for(i - cols - 1);
        if (cells.alike(corner, prediction) && !cells.alike(corner, above)) prediction = above;
      }
      if (cells.alike(i, prediction)) own = prediction;
    }
    ++counts[static_cast<size_t>(own)];
  }
  KeptCells kept{.cells = {},
                 .counts = {},
                 .n_dropped = n,
                 .weighted = how.weighted,
                 .setting = format("dedup %.9g%s", how.tolerance, how.weighted ? " weighted" : "")};
  for (int32_t i = 0; i < n; ++i) {
    if (kept_for(i) != i) continue;
    kept.cells.push_back(i);
    kept.counts.push_back(counts[static_cast<size_t>(i)]);
    --kept.n_dropped;
  }
  return kept;
}

}  // namespace vlcache
