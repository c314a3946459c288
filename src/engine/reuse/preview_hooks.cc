#include "engine/reuse/preview_hooks.h"

#include <algorithm>
#include <limits>

namespace vlcache {
PreviewHooks::PreviewHooks(Backend& backend, LoadedImageSource& images, ReuseChooserPtr chooser,
                           const Sequence& sequence, int32_t n_layers)
    : backend_(backend),
      images_(images),
      chooser_(std::move(chooser)),
      n_layers_(n_layers),
      wanted_(chooser_->preview(n_layers)),
      end_(sequence.n_tokens() - (wanted_.n_layers < n_layers ? 1 : 0)),
      tokens_(images.tokens()),
      plan_(chooser_->plan(n_layers, static_cast<int32_t>(tokens_.size())).scaled(1.0 / wanted_.n_looks)),
      computed_(tokens_.size(), wanted_.reused_tokens ? wanted_.n_layers : 0),
      scores_(static_cast<size_t>(n_layers)),
      layers_(static_cast<size_t>(n_layers)) {
  CHECK(wanted_.n_looks == 1 || !wanted_.reused_tokens);
  images_.set_depths(computed_);
}

bool PreviewHooks::cut(std::vector<TokenRun>& runs) {
  CHECK(!runs.empty());
  const bool begun = runs.front().begin >= tokens_.front();
  const int32_t end = begun ? end_ : tokens_.front();
  while (runs.back().begin >= end) runs.pop_back();
  runs.back().end = std::min(runs.back().end, end);
  step_scores_ = scores_;
  return begun;
}

std::vector<double> PreviewHooks::scores() const {
  const std::vector<size_t> images = images_.images_of_tokens();
  const int32_t n_wanted = plan_.n_tokens(0, static_cast<int32_t>(images.size()));
  PreviewScores seen{.layers = scores_, .images = images, .n_wanted = n_wanted, .chosen = {}};
  if (n_looks_ > 0) seen.chosen = computed_;
  return chooser_->rank(seen);
}

std::vector<int32_t> PreviewHooks::choose() {
  std::vector<double> scores = this->scores();
  const auto chosen = [&](size_t i) { return n_looks_ > 0 && computed_[i] > 0; };
  for (size_t i = 0; i < scores.size(); ++i) {
    if (chosen(i)) scores[i] = -std::numeric_limits<double>::infinity();
  }
  std::vector<int32_t> depths = plan_.depths(scores);
  for (size_t i = 0; i < depths.size(); ++i) {
    if (chosen(i)) depths[i] = 0;  // the plan's parts, rounded up, may be more than all
  }
  for (size_t i = 0; i < depths.size(); ++i) computed_[i] += depths[i];
  ++n_looks_;
  for (std::vector<float>& layer : scores_) layer.clear();
  return depths;
}

bool PreviewHooks::after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) {
  if (layer >= wanted_.first_layer && images_.holds(layer)) {
    PreviewedLayer seen{.backend = backend_,
                        .layer = layer,
                        .observed = observed,
                        .tokens = tokens_,
                        .k = {},
                        .v = {},
                        .loaded_k = {},
                        .loaded_v = {}};
    if (wanted_.reused_tokens) compare(layer, observed, seen);
    const int64_t n_heads = observed.q.dim(1), n = std::ssize(tokens_);
    std::vector<float>& scores = step_scores_[static_cast<size_t>(layer)];
    scores.resize(static_cast<size_t>(n_heads * n), 0.0f);
    chooser_->score(seen, Tensor(scores.data(), DType::kF32, {n_heads, n}));
  }
  if (layer + 1 == wanted_.n_layers && wanted_.n_layers < n_layers_) return true;  // no row continues
  return images_.after_attention(layer, observed, keep);
}

// Fills in the computed and the loaded K and V.
void PreviewHooks::compare(int layer, const Observed& observed, PreviewedLayer& seen) {
  const int64_t n = std::ssize(tokens_), n_heads = observed.k.dim(1), d = observed.k.dim(2);
  Layer& l = layers_[static_cast<size_t>(layer)];
  const DType dtype = backend_.compute_dtype();
  const auto rows = [&](Buffer& buffer, int64_t n_rows) {
    const int64_t bytes = n_rows * n_heads * d * dtype_bytes(dtype);
    if (buffer.bytes() < bytes) buffer = Buffer(bytes);
    return Tensor(buffer.data(), dtype, {n_rows, n_heads, d});
  };
  const auto values = [&](std::vector<float>& x) { return Tensor(x.data(), DType::kF32, {n, n_heads, d}); };
  if (l.k.empty()) {
    const Tensor k = rows(k_rows_, n), v = rows(v_rows_, n);
    images_.read(layer, tokens_, k, v);  // may throw: the step is repeated
    for (std::vector<float>* x : {&l.k, &l.v, &l.loaded_k, &l.loaded_v})
      x->resize(static_cast<size_t>(n * n_heads * d));
    backend_.convert(k, values(l.loaded_k));
    backend_.convert(v, values(l.loaded_v));
  }
  for (int64_t i = 0; i < std::ssize(observed.tokens); ++i) {
    const auto at = std::ranges::lower_bound(tokens_, observed.tokens[static_cast<size_t>(i)]);
    if (at == tokens_.end() || *at != observed.tokens[static_cast<size_t>(i)]) continue;
    const int64_t j = at - tokens_.begin();
    const Tensor rotated = rows(k_rows_, 1);
    backend_.rope(observed.k.slice_rows(i, i + 1), observed.cos.slice_rows(i, i + 1), observed.sin.slice_rows(i, i + 1),
                  rotated);
    backend_.convert(rotated, values(l.k).slice_rows(j, j + 1));
    backend_.convert(observed.v.slice_rows(i, i + 1), values(l.v).slice_rows(j, j + 1));
  }
  seen.k = values(l.k);
  seen.v = values(l.v);
  seen.loaded_k = values(l.loaded_k);
  seen.loaded_v = values(l.loaded_v);
}

}  // namespace vlcache
