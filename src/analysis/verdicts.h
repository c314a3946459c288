// Verdicts in words for readers who know no paper: what an evaluation, an inspection and a probe of heads have found.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "analysis/eval_table.h"
#include "analysis/inspection.h"
#include "policy/head_scores.h"

namespace vlcache {

// The line of a table to use: the smallest budget that reaches table.goal by its verdict (`reaches`). If there is none,
// the line to speak of: that to which the fewest questions are missing, else that which loses least for certain. Of
// equals fewer losses, the smaller budget, fewer bytes, the earlier line. Lines that gave no answer, saved no bytes or
// never acted do not count; nullopt if none counts, or the full cache is never right.
struct BestLine {
  size_t index = 0;  // in table.lines
  bool reaches = false;
  std::vector<size_t> as_good;  // other lines of the same budget, losses and gains
};
std::optional<BestLine> best_line(const EvalTable& table);
// Which line a report marks, a sentence.
std::string best_line_rule(const EvalTable& table, const BestLine& best);

// "Keep 5 %: `auto` lost nothing on your 200 questions; ...", or how many questions are missing to say that.
std::string eval_verdict(const EvalTable& table);

// The kept share, whether the answer is the same, and the memory saved.
std::string inspect_verdict(const Inspection& inspection);

// How many kv heads look back. `scores.echo` must hold a head.
std::string heads_verdict(const HeadScores& scores);

}  // namespace vlcache
