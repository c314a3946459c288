// Fuzzes a line of an evaluation's data and the scoring of its questions: samples or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "analysis/dataset.h"
#include "base/error.h"
#include "base/fuzz_target.h"

FUZZ_TARGET(dataset) {
  using namespace vlcache;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    parse_dataset(text, "/data", "fuzz", {.metric = Metric::kExact, .answers = Answers::kOptional});
    for (const EvalSample& sample : parse_dataset(text, "/data", "fuzz", {}).samples) {
      for (const EvalTurn& turn : sample.turns) {
        for (const Metric metric : {sample.metric, Metric::kAnls, Metric::kRelaxed, Metric::kChoice, Metric::kVqa}) {
          const double score = score_answer(metric, turn.question, turn.answers);
          if (!(score >= 0 && score <= 1)) std::abort();
        }
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
