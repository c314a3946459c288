#include "model/images/unit_pruning.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/format.h"

namespace vlcache {
namespace {

// Adds to sums [cells] what each cell of two frames differs by, over pixels and channels.
void add_differences(const Image& a, const Image& b, int64_t cell, std::vector<int64_t>& sums) {
  CHECK(a.width == b.width && a.height == b.height && a.width % cell == 0 && a.height % cell == 0);
  const int64_t cols = a.width / cell, bytes = cell * 3;
  for (int64_t y = 0; y < a.height; ++y) {
    const uint8_t *of_a = a.row(y), *of_b = b.row(y);
    int64_t* sum = sums.data() + y / cell * cols;
    for (int64_t col = 0; col < cols; ++col, of_a += bytes, of_b += bytes) {
      int64_t difference = 0;
      for (int64_t i = 0; i < bytes; ++i) difference += std::abs(int32_t{of_a[i]} - int32_t{of_b[i]});
      sum[col] += difference;
    }
  }
}

}  // namespace

std::optional<KeptCells> prune_unit(std::span<const Image> unit, std::span<const Image> before, int64_t cell,
                                    double share) {
  CHECK(!unit.empty() && !before.empty() && cell > 0 && share >= 0 && share <= 1);
  const int64_t n = (unit[0].height / cell) * (unit[0].width / cell);
  const int64_t n_dropped = std::min<int64_t>(std::llround(share * static_cast<double>(n)), n - 1);
  if (n_dropped <= 0) return std::nullopt;
  std::vector<int64_t> differences(static_cast<size_t>(n), 0);
  const auto frame = [](std::span<const Image> frames, size_t i) -> const Image& {
    return frames[std::min(i, frames.size() - 1)];
  };
  for (size_t i = 0; i < std::max(unit.size(), before.size()); ++i) {
    add_differences(frame(unit, i), frame(before, i), cell, differences);
  }
  std::vector<int32_t> cells(static_cast<size_t>(n));
  std::iota(cells.begin(), cells.end(), 0);
  std::ranges::stable_sort(cells, std::greater(), [&](int32_t i) { return differences[static_cast<size_t>(i)]; });
  cells.resize(static_cast<size_t>(n - n_dropped));
  std::ranges::sort(cells);
  return KeptCells{.cells = std::move(cells),
                   .counts = std::vector<int32_t>(static_cast<size_t>(n - n_dropped), 1),
                   .n_dropped = n_dropped,
                   .weighted = false,
                   .setting = format("prune %.9g", share)};
}

}  // namespace vlcache
