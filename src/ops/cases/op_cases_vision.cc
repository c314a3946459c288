#include <cmath>

#include "ops/cases/op_case_maker.h"
#include "ops/cases/op_case_tables.h"

namespace vlcache {
namespace {

OpCase patchify_case(int64_t n_images, int64_t height, int64_t width, int64_t patch) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const Tensor pixels = make.input_as(DType::kF32, {n_images, 3, height, width});
    const Tensor y = make.output("y", {n_images * (height / patch) * (width / patch), 3 * patch * patch});
    op.run = [&backend = setup.backend, pixels, patch, y] { backend.patchify(pixels, patch, y); };
  };
  return {"patchify",
          std::to_string(n_images) + " images " + std::to_string(height) + "x" + std::to_string(width) + " patch " +
              std::to_string(patch),
          prepare};
}

struct DenseShape {
  std::vector<int32_t> offsets;
  int64_t n_heads = 2, d = 64;
  bool probs = false;
  RowLayout layout = RowLayout::kDense;
};

OpCase dense_case(const DenseShape& s) {
  const int64_t n = s.offsets.back();
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const Tensor q = make.input({n, s.n_heads, s.d}, 2.0f, s.layout),
                 k = make.input({n, s.n_heads, s.d}, 2.0f, s.layout);
    const Tensor v = make.input({n, s.n_heads, s.d}, 1.0f, s.layout);
    DenseAttentionArgs args{.scale = 1.0f / std::sqrt(static_cast<float>(s.d)), .offsets = make.ints(s.offsets)};
    if (s.probs) args.first_row_probs = make.output_f32("first_row_probs", {n, s.n_heads});
    const Tensor out = make.output("out", {n, s.n_heads, s.d}, s.layout);
    op.run = [&backend = setup.backend, q, k, v, args, out] { backend.dense_attention(q, k, v, args, out); };
  };
  std::string shape = "rows";
  for (size_t i = 1; i < s.offsets.size(); ++i) shape += numbered(" ", s.offsets[i] - s.offsets[i - 1]);
  shape += numbered(" H=", s.n_heads) + " d=" + std::to_string(s.d) + (s.probs ? " first_row_probs" : "");
  double pairs = 0.0;
  for (size_t i = 1; i < s.offsets.size(); ++i) {
    const double rows = s.offsets[i] - s.offsets[i - 1];
    pairs += rows * rows;
  }
  return {"dense_attention", shape + std::string(row_layout_name(s.layout)), prepare,
          4 * pairs * static_cast<double>(s.n_heads * s.d), static_cast<double>(8 * n * s.n_heads * s.d)};
}

}  // namespace

void add_vision_cases(OpCases& cases) {
  cases.push_back(patchify_case(0, 28, 28, 14));
  cases.push_back(patchify_case(1, 28, 42, 14));
  cases.push_back(patchify_case(3, 33, 50, 16));  // pixels that do not fill a patch are left out
  cases.push_back(patchify_case(2, 9, 7, 1));
  for (int32_t n : {1, 17, 63, 64, 65, 81, 577}) cases.push_back(dense_case({.offsets = {0, n}, .probs = n % 2 == 1}));
  for (int64_t d : {32, 64, 72, 80, 96, 128}) cases.push_back(dense_case({.offsets = {0, 81}, .n_heads = 3, .d = d}));
  for (int64_t d : {514, 1024}) cases.push_back(dense_case({.offsets = {0, 65}, .n_heads = 1, .d = d}));
  cases.push_back(dense_case({.offsets = {0, 0}}));
  cases.push_back(dense_case({.offsets = {0, 17, 18, 18, 99, 230}, .n_heads = 3, .d = 72, .probs = true}));
  cases.push_back(dense_case({.offsets = {0, 81, 162}, .d = 80, .layout = RowLayout::kStrided}));
  cases.push_back(dense_case({.offsets = {0, 81, 162}, .d = 64, .probs = true, .layout = RowLayout::kMisaligned}));
}

}  // namespace vlcache
