#include "engine/sequence/layered_prompt.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace vlcache {

LayeredPrompt::LayeredPrompt(TokenRun tokens, std::vector<int32_t> rows_per_layer, const HiddenShape& hidden)
    : tokens_(tokens), rows_per_layer_(std::move(rows_per_layer)), hidden_(hidden) {
  rows_.resize(static_cast<size_t>(tokens.end - tokens.begin));
  std::iota(rows_.begin(), rows_.end(), tokens.begin);
  CHECK(rows_per_layer_.front() == std::ssize(rows_) && rows_per_layer_.back() > 0);
  CHECK(std::ranges::is_sorted(rows_per_layer_, std::greater()));
  states_ = Buffer(std::ssize(rows_) * hidden_.size * dtype_bytes(hidden_.dtype));
}

int32_t LayeredPrompt::end_layer() const {
  const auto end = std::find_if(rows_per_layer_.begin() + begin_layer_, rows_per_layer_.end(),
                                [&](int32_t n) { return n < std::ssize(rows_); });
  return static_cast<int32_t>(end - rows_per_layer_.begin());
}

Tensor LayeredPrompt::states(const Buffer& buffer, int32_t begin, int32_t end) const {
  return Tensor(buffer.data() + begin * hidden_.size * dtype_bytes(hidden_.dtype), hidden_.dtype,
                {end - begin, hidden_.size});
}

StepLayers LayeredPrompt::next(int32_t max_rows, std::vector<TokenRun>& runs) {
  const int32_t begin = n_rows_done_, end = std::min(begin + max_rows, static_cast<int32_t>(rows_.size()));
  runs.clear();
  for (int32_t i = begin; i < end; ++i) {
    const int32_t token = rows_[static_cast<size_t>(i)];
    if (runs.empty() || runs.back().end != token) runs.push_back({token, token});
    ++runs.back().end;
  }
  n_rows_ = end - begin;
  // The model overwrites what it is given; the states stay until the step has succeeded.
  const Tensor from = states(states_, begin, end);
  if (from.bytes() > step_.bytes()) step_ = Buffer(from.bytes());
  const Tensor hidden = states(step_, 0, n_rows_);
  std::memcpy(hidden.data, from.data, static_cast<size_t>(from.bytes()));
  return {.layers = {begin_layer_, end_layer()}, .hidden = hidden};
}

void LayeredPrompt::finish_step() {
  const Tensor to = states(states_, n_rows_done_, n_rows_done_ + n_rows_);
  std::memcpy(to.data, step_.data(), static_cast<size_t>(to.bytes()));
  n_rows_done_ += n_rows_;
}

void LayeredPrompt::cut(std::span<const int32_t> kept) {
  CHECK(at_cut() && std::ssize(kept) == n_to_keep() && kept.back() == tokens_.end - 1);
  begin_layer_ = end_layer();
  const int64_t row_bytes = hidden_.size * dtype_bytes(hidden_.dtype);
  auto row = rows_.begin();
  for (size_t i = 0; i < kept.size(); ++i) {
    row = std::lower_bound(row, rows_.end(), kept[i]);
    CHECK(row != rows_.end() && *row == kept[i]);
    std::memmove(states_.data() + static_cast<int64_t>(i) * row_bytes,
                 states_.data() + (row - rows_.begin()) * row_bytes, static_cast<size_t>(row_bytes));
  }
  rows_.assign(kept.begin(), kept.end());
  n_rows_done_ = 0;
}

double LayeredPrompt::share_done() const {
  const auto sum = [&](int32_t n) {
    return static_cast<double>(std::accumulate(rows_per_layer_.begin(), rows_per_layer_.begin() + n, int64_t{0}));
  };
  return (sum(begin_layer_) + static_cast<double>(n_rows_done_) * (end_layer() - begin_layer_)) / sum(n_layers());
}

double LayeredPrompt::n_rows_left() const {
  const auto all = std::accumulate(rows_per_layer_.begin(), rows_per_layer_.end(), int64_t{0});
  return (1 - share_done()) * static_cast<double>(all) / n_layers();
}

}  // namespace vlcache
