#include "model/live_rows.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace vlcache {

void LiveRows::reserve(int64_t n_rows) {
  for (std::vector<int32_t>* list : {&ids_, &tokens_}) list->reserve(static_cast<size_t>(n_rows));
  positions_.reserve(static_cast<size_t>(n_rows));
}

void LiveRows::begin(const StepInput& step) {
  CHECK(step.tokens.size() == step.positions.size());
  ids_.resize(step.tokens.size());
  std::iota(ids_.begin(), ids_.end(), 0);
  tokens_.assign(step.tokens.begin(), step.tokens.end());
  positions_.assign(step.positions.begin(), step.positions.end());
  runs_.assign(step.runs.begin(), step.runs.end());
}

std::span<const int32_t> LiveRows::tokens_of(const RowRun& run) const {
  return tokens().subspan(static_cast<size_t>(run.row_begin), static_cast<size_t>(run.n_rows));
}

void LiveRows::keep(std::span<const int32_t> keep, const KvAccess& kv) {
  CHECK(std::ranges::is_sorted(keep) && (keep.empty() || (keep.front() >= 0 && keep.back() < n())));
  std::swap(runs_, old_runs_);
  runs_.clear();
  auto row = keep.begin();
  for (const RowRun& run : old_runs_) {
    for (bool first = true; row != keep.end() && *row < run.row_begin + run.n_rows; ++row, first = false) {
      const int32_t token = tokens_[static_cast<size_t>(*row)];
      const auto at = static_cast<int32_t>(row - keep.begin());
      const bool cut = first || kv.supplies(run.seq, tokens_[static_cast<size_t>(*(row - 1))], token);
      if (cut) runs_.push_back({run.seq, at, 0});
      ++runs_.back().n_rows;
    }
  }
  const auto narrow = [&](auto& list) {
    for (size_t i = 0; i < keep.size(); ++i) list[i] = list[static_cast<size_t>(keep[i])];
    list.resize(keep.size());
  };
  narrow(ids_), narrow(tokens_), narrow(positions_);
}

void LiveRows::find(std::span<const int32_t> input_rows, std::vector<int32_t>& rows) const {
  rows.clear();
  auto at = ids_.begin();
  for (const int32_t row : input_rows) {
    at = std::lower_bound(at, ids_.end(), row);
    CHECK(at != ids_.end() && *at == row);
    rows.push_back(static_cast<int32_t>(at - ids_.begin()));
  }
}

}  // namespace vlcache
