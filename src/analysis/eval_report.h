// Writes an evaluation as a page: accuracy over budget, the table, and the answers on which policies differ.
#pragma once

#include <string>
#include <vector>

#include "analysis/dataset.h"
#include "analysis/eval_table.h"

namespace vlcache {

// `samples`: the questions of `results`.
std::string eval_page(const EvalTable& table, const std::vector<EvalChoice>& choices,
                      const std::vector<EvalTurnResult>& results, const std::vector<EvalSample>& samples);

}  // namespace vlcache
