#include <algorithm>
#include <cmath>

#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {

void RefBackend::patchify(const Tensor& pixels, int64_t patch, const Tensor& y) {
  check_compute(y);
  CHECK(pixels.rank == 4 && pixels.dtype == DType::kF32 && patch > 0);
  const int64_t channels = pixels.dim(1), height = pixels.dim(2), width = pixels.dim(3);
  const int64_t n_y = height / patch, n_x = width / patch;
  CHECK(y.rows() == pixels.rows() * n_y * n_x && y.row_size() == channels * patch * patch);
  parallel_ranges(y.rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t top = r / n_x % n_y * patch, left = r % n_x * patch;
      const float* image = pixels.row<float>(r / (n_x * n_y));
      int64_t at = r * y.stride;
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t dy = 0; dy < patch; ++dy, at += patch) {
          store_values(image + (c * height + top + dy) * width + left, patch, y, at);
        }
      }
    }
  });
}

namespace {

struct ImageHead {
  int64_t begin, end, head;
};

// Attention of one head inside the rows of one image.
void attend_image(const Tensor& q, const Tensor& k, const Tensor& v, const DenseAttentionArgs& args,
                  const ImageHead& part, const Tensor& out) {
  const int64_t n = part.end - part.begin, d = q.dim(2), column = part.head * d;
  std::vector<float> keys(static_cast<size_t>(n * d)), values(keys.size());
  for (int64_t j = 0; j < n; ++j) {
    load_values(k, (part.begin + j) * k.stride + column, d, keys.data() + j * d);
    load_values(v, (part.begin + j) * v.stride + column, d, values.data() + j * d);
  }
  std::vector<float> query(static_cast<size_t>(d)), mixed(query.size()), p(static_cast<size_t>(n));
  for (int64_t i = part.begin; i < part.end; ++i) {
    load_values(q, i * q.stride + column, d, query.data());
    for (int64_t j = 0; j < n; ++j) p[static_cast<size_t>(j)] = args.scale * dot(query.data(), keys.data() + j * d, d);
    const float top = *std::max_element(p.begin(), p.end());
    for (float& x : p) x = std::exp(x - top);
    const float total = sum(p.data(), n);
    std::fill(mixed.begin(), mixed.end(), 0.0f);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t c = 0; c < d; ++c)
        mixed[static_cast<size_t>(c)] += p[static_cast<size_t>(j)] * values[static_cast<size_t>(j * d + c)];
    }
    for (float& x : mixed) x /= total;
    store_values(mixed.data(), d, out, i * out.stride + column);
    if (i == part.begin && !args.first_row_probs.empty()) {
      for (int64_t j = 0; j < n; ++j)
        args.first_row_probs.row<float>(part.begin + j)[part.head] = p[static_cast<size_t>(j)] / total;
    }
  }
}

}  // namespace

void RefBackend::dense_attention(const Tensor& q, const Tensor& k, const Tensor& v, const DenseAttentionArgs& args,
                                 const Tensor& out) {
  for (const Tensor* t : {&q, &k, &v, &out}) check_compute(*t), CHECK(t->rank == 3 && same_shape(*t, q));
  CHECK(!args.offsets.empty() && args.offsets.front() == 0 && args.offsets.back() == q.rows());
  const int64_t n_heads = q.dim(1), n_images = static_cast<int64_t>(args.offsets.size()) - 1;
  if (const Tensor& probs = args.first_row_probs; !probs.empty()) {
    CHECK(probs.dtype == DType::kF32 && probs.rows() == q.rows() && probs.row_size() == n_heads);
  }
  parallel_for(n_images * n_heads, [&](int64_t task, int) {
    const size_t image = static_cast<size_t>(task / n_heads);
    CHECK(args.offsets[image] <= args.offsets[image + 1]);
    attend_image(q, k, v, args, {args.offsets[image], args.offsets[image + 1], task % n_heads}, out);
  });
}

}  // namespace vlcache
