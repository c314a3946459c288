#include "engine/hooks/hook_dispatcher.h"

#include <algorithm>
#include <numeric>

namespace vlcache {
namespace {

Tensor rows_of(const Tensor& t, int64_t begin, int64_t end) { return t.empty() ? t : t.slice_rows(begin, end); }

}  // namespace

void HookDispatcher::begin() {
  owners_.clear();
  last_called_ = -1;
}

KvView HookDispatcher::view(int layer, const RowRun& run, const Tensor& q, const Tensor& hidden, const KvView& full) {
  KvView view = full;
  for (const Owner& owner : owners_) {
    if (owner.seq != run.seq) continue;
    last_called_ = run.seq;
    view = owner.hooks->view(layer, {.seq = 0, .row_begin = 0, .n_rows = run.n_rows}, q, hidden, view);
  }
  last_called_ = -1;
  return view;
}

bool HookDispatcher::wants_scores(int layer, int32_t seq) const {
  return std::ranges::any_of(
      owners_, [&](const Owner& owner) { return owner.seq == seq && owner.hooks->wants_scores(layer, 0); });
}

bool HookDispatcher::after_attention(int layer, const Observed& all, std::vector<int32_t>& keep) {
  bool some = false;
  for (size_t i = 0, end = 0; i < all.runs.size(); i = end) {
    const int32_t seq = all.runs[i].seq, begin_row = all.runs[i].row_begin;
    runs_.clear();
    for (end = i; end < all.runs.size() && all.runs[end].seq == seq; ++end) {
      runs_.push_back({.seq = 0, .row_begin = all.runs[end].row_begin - begin_row, .n_rows = all.runs[end].n_rows});
    }
    const int32_t n_rows = runs_.back().row_begin + runs_.back().n_rows, end_row = begin_row + n_rows;
    const auto at = static_cast<size_t>(begin_row), n = static_cast<size_t>(n_rows);
    const Observed own = {.runs = runs_,
                          .tokens = all.tokens.subspan(at, n),
                          .positions = all.positions.subspan(at, n),
                          .views = all.views.subspan(i, end - i),
                          .q = rows_of(all.q, begin_row, end_row),
                          .k = rows_of(all.k, begin_row, end_row),
                          .v = rows_of(all.v, begin_row, end_row),
                          .scores = all.scores.empty() ? all.scores : all.scores.subspan(i, end - i),
                          .lse = rows_of(all.lse, begin_row, end_row),
                          .sink_logits = all.sink_logits,
                          .scale = all.scale,
                          .cos = rows_of(all.cos, begin_row, end_row),
                          .sin = rows_of(all.sin, begin_row, end_row),
                          .frequencies = all.frequencies,
                          .axes = all.axes,
                          .window = all.window};
    if (ask(layer, seq, own)) {
      some = true;
    } else {
      kept_.resize(n);
      std::iota(kept_.begin(), kept_.end(), 0);
    }
    for (const int32_t row : kept_) keep.push_back(begin_row + row);
  }
  last_called_ = -1;
  return some;
}

// True: of the rows of `own`, those of kept_ continue.
bool HookDispatcher::ask(int layer, int32_t seq, const Observed& own) {
  bool some = false;
  for (const Owner& owner : owners_) {
    if (owner.seq != seq) continue;
    last_called_ = seq;
    chosen_.clear();
    if (!owner.hooks->after_attention(layer, own, chosen_)) continue;
    if (some) {
      std::erase_if(kept_, [&](int32_t row) { return !std::ranges::binary_search(chosen_, row); });
    } else {
      kept_ = chosen_;
    }
    some = true;
  }
  return some;
}

}  // namespace vlcache
