#include "model/images/patch_grid.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/os/threads.h"
#include "model/rope.h"

namespace vlcache {
namespace {

// Squares in the order of windows of `side` x `side` of them, and where windows begin; only those in `some` (ascending;
// empty: all).
std::vector<int32_t> squares_by_window(PatchGrid squares, int64_t side, std::span<const int32_t> some,
                                       std::vector<int32_t>& begins) {
  const auto is_wanted = [&](int32_t square) { return some.empty() || std::ranges::binary_search(some, square); };
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(squares.n()));
  begins = {0};
  for (int64_t top = 0; top < squares.rows; top += side) {
    for (int64_t left = 0; left < squares.cols; left += side) {
      for (int64_t y = top; y < std::min(top + side, squares.rows); ++y) {
        for (int64_t x = left; x < std::min(left + side, squares.cols); ++x) {
          const auto square = static_cast<int32_t>(y * squares.cols + x);
          if (is_wanted(square)) order.push_back(square);
        }
      }
      if (std::ssize(order) > begins.back()) begins.push_back(static_cast<int32_t>(order.size()));
    }
  }
  return order;
}

// The two nearest entries of a table with `side` entries, and how much the second weighs.
struct Between {
  int64_t first = 0, second = 0;
  float weight_first = 0, weight_second = 0;
};

std::vector<Between> between_entries(int64_t n, int64_t side, VisionPositions positions) {
  std::vector<Between> all(static_cast<size_t>(n));
  const auto last = static_cast<float>(side - 1);
  for (int64_t i = 0; i < n; ++i) {
    const auto index = static_cast<float>(i);
    const float at = positions == VisionPositions::kAlignedCorners
                         ? index * last / static_cast<float>(std::max<int64_t>(n - 1, 1))
                         : (index + 0.5f) * static_cast<float>(side) / static_cast<float>(n) - 0.5f;
    const float floor = std::floor(at), distance = at - floor;
    const auto entry = static_cast<int64_t>(floor);
    all[static_cast<size_t>(i)] = {.first = std::clamp<int64_t>(entry, 0, side - 1),
                                   .second = std::clamp<int64_t>(entry + 1, 0, side - 1),
                                   .weight_first = std::max(0.0f, 1.0f - distance),
                                   .weight_second = std::max(0.0f, 1.0f - std::abs(distance - 1.0f))};
  }
  return all;
}

}  // namespace

PatchOrder patch_order(const VisionConfig& config, PatchGrid grid, std::span<const int32_t> cells) {
  const int64_t merge = config.merge, area = merge * merge;
  const PatchGrid squares = {.rows = grid.rows / merge, .cols = grid.cols / merge};
  CHECK(squares.rows * merge == grid.rows && squares.cols * merge == grid.cols);
  const int64_t side =
      config.window > 0 ? config.window / config.cell() : std::max<int64_t>({squares.rows, squares.cols, 1});
  CHECK(side > 0);
  PatchOrder order;
  const std::vector<int32_t> by_window = squares_by_window(squares, side, cells, order.windows);
  for (int32_t& begin : order.windows) begin *= static_cast<int32_t>(area);
  order.patches.reserve(by_window.size() * static_cast<size_t>(area));
  order.features.resize(by_window.size() * static_cast<size_t>(area));
  for (const int32_t square : by_window) {
    const int64_t top = square / squares.cols * merge, left = square % squares.cols * merge;
    const int64_t row = cells.empty() ? square : std::ranges::lower_bound(cells, square) - cells.begin();
    for (int64_t k = 0; k < area; ++k) {
      order.features[static_cast<size_t>(row * area + k)] = static_cast<int32_t>(order.patches.size());
      order.patches.push_back(static_cast<int32_t>((top + k / merge) * grid.cols + left + k % merge));
    }
  }
  return order;
}

void fill_patch_rotations(const VisionConfig& config, PatchGrid grid, const std::vector<int32_t>& order,
                          const Tensor& cos, const Tensor& sin) {
  const int64_t n_angles = config.head_dim() / 4;
  CHECK(cos.row_size() == 2 * n_angles && sin.row_size() == 2 * n_angles && cos.rows() == std::ssize(order));
  const RopeTable table({.theta = config.rope_theta}, config.head_dim() / 2);
  const std::span<const float> frequencies = table.frequencies();
  // Of every number of a row or column.
  std::vector<float> cosines, sines;
  for (int64_t i = 0; i < std::max(grid.rows, grid.cols); ++i) {
    for (const float frequency : frequencies) {
      cosines.push_back(std::cos(static_cast<float>(i) * frequency));
      sines.push_back(std::sin(static_cast<float>(i) * frequency));
    }
  }
  for (int64_t i = 0; i < cos.rows(); ++i) {
    const int64_t patch = order[static_cast<size_t>(i)], row = patch / grid.cols, col = patch % grid.cols;
    std::copy_n(cosines.data() + row * n_angles, n_angles, cos.row<float>(i));
    std::copy_n(cosines.data() + col * n_angles, n_angles, cos.row<float>(i) + n_angles);
    std::copy_n(sines.data() + row * n_angles, n_angles, sin.row<float>(i));
    std::copy_n(sines.data() + col * n_angles, n_angles, sin.row<float>(i) + n_angles);
  }
}

void interpolate_positions(const Tensor& table, int64_t side, VisionPositions positions, PatchGrid grid,
                           const Tensor& out) {
  CHECK(table.rows() == side * side && out.rows() == grid.n() && out.row_size() == table.row_size());
  const std::vector<Between> by_row = between_entries(grid.rows, side, positions),
                             by_col = between_entries(grid.cols, side, positions);
  const int64_t width = table.row_size();
  parallel_ranges(grid.n(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Between &y = by_row[static_cast<size_t>(i / grid.cols)], &x = by_col[static_cast<size_t>(i % grid.cols)];
      const float* corners[] = {table.row<float>(y.first * side + x.first), table.row<float>(y.first * side + x.second),
                                table.row<float>(y.second * side + x.first),
                                table.row<float>(y.second * side + x.second)};
      const float weights[] = {y.weight_first * x.weight_first, y.weight_first * x.weight_second,
                               y.weight_second * x.weight_first, y.weight_second * x.weight_second};
      float* to = out.row<float>(i);
      for (int64_t c = 0; c < width; ++c) {
        to[c] = corners[0][c] * weights[0] + corners[1][c] * weights[1] + corners[2][c] * weights[2] +
                corners[3][c] * weights[3];
      }
    }
  });
}

}  // namespace vlcache
