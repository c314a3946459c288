// Fuzzes files of head scores: finite scores that survive writing and reading, or an Error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "policy/head_scores.h"

FUZZ_TARGET(head_scores) {
  using namespace vlcache;
  try {
    HeadScores scores = parse_head_scores({reinterpret_cast<const char*>(data), size}, "fuzz");
    HeadSet best(scores.induction);
    best.add_best(scores.induction, best.n_heads() / 2);
    for (const auto& row : scores.induction) {
      for (const float x : row) {
        if (!std::isfinite(x)) std::abort();
      }
    }
    if (scores.echo.empty()) scores.echo = scores.induction;
    if (parse_head_scores(head_scores_json(scores), "fuzz").induction != scores.induction) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
