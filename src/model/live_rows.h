// The rows of a step that are still alive: which tokens they are, in which runs. Bookkeeping beside the arithmetic of
// the forward pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/step.h"

namespace vlcache {

class LiveRows {
 public:
  // Room for n_rows, so that steps up to there allocate nothing.
  void reserve(int64_t n_rows);
  void begin(const StepInput& step);

  int64_t n() const { return static_cast<int64_t>(ids_.size()); }
  std::span<const int32_t> ids() const { return ids_; }              // [n] row numbers in the step's input
  std::span<const int32_t> tokens() const { return tokens_; }        // [n]
  std::span<const int32_t> positions() const { return positions_; }  // [n]
  std::span<const RowRun> runs() const { return runs_; }             // cover the rows, none of them empty
  RunTokens tokens_of(const RowRun& run) const;

  // Narrows to the ascending rows `keep`. A run is cut where somebody else supplies slots between two of its rows.
  void keep(std::span<const int32_t> keep, const KvAccess& kv);
  // The rows that `input_rows` of the step's input have become; CHECKs that all of them are alive.
  void find(std::span<const int32_t> input_rows, std::vector<int32_t>& rows) const;

 private:
  std::vector<int32_t> ids_, tokens_, positions_;
  std::vector<RowRun> runs_, old_runs_;
};

}  // namespace vlcache
