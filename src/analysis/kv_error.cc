#include "analysis/kv_error.h"

#include <algorithm>
#include <cmath>

#include "analysis/html.h"
#include "base/error.h"
#include "base/format.h"

namespace vlcache {
namespace {

// Squares of a token's differences, and of the right values.
struct Squares {
  double difference = 0, right = 0;

  void add(std::span<const float> x, std::span<const float> y) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double d = static_cast<double>(x[i]) - y[i];
      difference += d * d;
      right += static_cast<double>(y[i]) * y[i];
    }
  }
  double relative() const { return right > 0 ? std::sqrt(difference / right) : 0; }
};

// K and V of some slots of a head, [n, d].
struct HeadKv {
  HeadKv(Backend& backend, const KvView& view, int32_t head, std::span<const int32_t> slots)
      : k(slots.size() * static_cast<size_t>(view.head_dim)), v(k.size()) {
    const auto n = static_cast<int64_t>(slots.size());
    backend.kv_read(view, head, slots, Tensor(k.data(), DType::kF32, {n, view.head_dim}),
                    Tensor(v.data(), DType::kF32, {n, view.head_dim}));
  }
  std::vector<float> k, v;
};

std::string chart(const std::vector<NamedKvError>& errors, const char* what,
                  std::array<double, KvError::kPlaces> KvError::*sums) {
  std::vector<ChartLine> lines;
  double top = 0;
  for (const NamedKvError& e : errors) {
    ChartLine& line = lines.emplace_back(ChartLine{e.name, {}});
    for (size_t i = 0; i < e.error.n.size(); ++i) {
      if (e.error.n[i] == 0) continue;
      const double mean = (e.error.*sums)[i] / e.error.n[i];
      line.points.push_back({(static_cast<double>(i) + 0.5) / KvError::kPlacesOfImage, mean});
      top = std::max(top, mean);
    }
  }
  return line_chart(lines, {.x_label = "position of the token: 0 to 100 % the image, then the text after it",
                            .y_label = format("relative error of %s", what),
                            .x_ticks = {0, 0.25, 0.5, 0.75, 1, 1.25},
                            .y_high = top > 0 ? top : 1,
                            .percent_x = true,
                            .percent_y = false,
                            .log_x = false});
}

}  // namespace

void KvError::add(const KvError& other) {
  for (size_t i = 0; i < n.size(); ++i) {
    k[i] += other.k[i];
    v[i] += other.v[i];
    n[i] += other.n[i];
  }
}

KvError kv_error(Backend& backend, const KvCache& cache, const KvCache& right, const TokenRun& image,
                 const TokenRun& counted) {
  CHECK(cache.complete(counted.end) && right.complete(counted.end));
  CHECK(image.begin < image.end && image.begin <= counted.begin);
  std::vector<int32_t> slots;
  for (int32_t t = counted.begin; t < counted.end; ++t) slots.push_back(t);
  std::vector<Squares> k(slots.size()), v(slots.size());
  for (int32_t layer = 0; layer < cache.shape().n_layers(); ++layer) {
    const auto d = static_cast<size_t>(cache.shape().layers[static_cast<size_t>(layer)].head_dim);
    for (int32_t head = 0; head < cache.shape().n_own_heads(layer); ++head) {
      const auto held = std::ranges::find_if(slots, [&](int32_t slot) {  // the others were freed before a window
        return cache.holds(layer, head, slot) && right.holds(layer, head, slot);
      });
      const auto first = static_cast<size_t>(held - slots.begin());
      const std::span<const int32_t> there = std::span(slots).subspan(first);
      const HeadKv is(backend, cache.view(layer), head, there), should(backend, right.view(layer), head, there);
      for (size_t at = 0; at < there.size(); ++at) {
        const size_t i = first + at;
        k[i].add(std::span(is.k).subspan(at * d, d), std::span(should.k).subspan(at * d, d));
        v[i].add(std::span(is.v).subspan(at * d, d), std::span(should.v).subspan(at * d, d));
      }
    }
  }
  KvError error;
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto place = int64_t{slots[i] - image.begin} * KvError::kPlacesOfImage / (image.end - image.begin);
    if (place >= KvError::kPlaces) break;
    const auto at = static_cast<size_t>(place);
    error.k[at] += k[i].relative();
    error.v[at] += v[i].relative();
    error.n[at] += 1;
  }
  return error;
}

std::string kv_error_charts(const std::vector<NamedKvError>& errors) {
  return chart(errors, "K", &KvError::k) + chart(errors, "V", &KvError::v);
}

}  // namespace vlcache
