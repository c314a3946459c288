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

// The line of a table to use: the smallest budget whose interval of the share of the full cache's score reaches
// table.goal (`reaches`); if there is none, the highest score. Of equals the higher score, the smaller budget, fewer
// bytes, the earlier line. Lines that gave no answer, saved no bytes or never acted do not count; nullopt if none
// counts, or the full cache is never right.
struct BestLine {
  size_t index = 0;  // in table.lines
  bool reaches = false;
  std::vector<size_t> as_good;  // other lines of the same budget, losses and gains
};
std::optional<BestLine> best_line(const EvalTable& table);
// By which of the two rules, a sentence.
std::string best_line_rule(const EvalTable& table, const BestLine& best);

// "Keep 5 %: `auto` lost nothing on your 40 questions; 40 are few: ..." The interval is Clopper and Pearson's, 95 %, of
// the share of questions whose score does not fall: unlike a bootstrap it allows for losses that no question showed.
std::string eval_verdict(const EvalTable& table);

// The kept share, whether the answer is the same, and the memory saved.
std::string inspect_verdict(const Inspection& inspection);

// How many kv heads look back. `scores.echo` must hold a head.
std::string heads_verdict(const HeadScores& scores);

}  // namespace vlcache
