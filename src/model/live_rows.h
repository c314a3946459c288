// LiveRows: the rows of a step that have not been dropped, their tokens and their runs. Bookkeeping for the forward
// pass, without arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/step.h"

namespace vlcache {

class LiveRows {
 public:
  // Makes room for n_rows, so that steps of up to n_rows allocate nothing.
  void reserve(int64_t n_rows);
  void begin(const StepInput& step);

  int64_t n() const { return static_cast<int64_t>(ids_.size()); }
  std::span<const int32_t> ids() const { return ids_; }               // [n] row numbers in the step's input
  std::span<const int32_t> tokens() const { return tokens_; }         // [n]
  std::span<const Position> positions() const { return positions_; }  // [n]
  std::span<const RowRun> runs() const { return runs_; }              // cover the rows, none of them empty
  std::span<const int32_t> tokens_of(const RowRun& run) const;

  // Narrows to the ascending rows `keep`. A run is cut where another source supplies slots between two of its rows.
  void keep(std::span<const int32_t> keep, const KvAccess& kv);
  // The current rows of the step's `input_rows`; CHECKs that none of them was dropped.
  void find(std::span<const int32_t> input_rows, std::vector<int32_t>& rows) const;

 private:
  std::vector<int32_t> ids_, tokens_;
  std::vector<Position> positions_;
  std::vector<RowRun> runs_, old_runs_;
};

}  // namespace vlcache
