// The gate of approximate reuse: whether measured answers permit it. Counts in, a verdict and words out; it knows no
// model, no plan and no request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vlcache {

// Greedy answers that were compared with those of full computation, token for token.
struct AnswerCounts {
  int64_t n = 0;
  int64_t n_changed = 0;
  double share() const { return n == 0 ? 0 : static_cast<double>(n_changed) / static_cast<double>(n); }
};

// The same answers scored against right ones, where those are known. Of n answers of full computation, n_right score
// above 0; the score fell in n_lost cases, and rose in n_gained.
struct ScoreCounts {
  int64_t n = 0;
  int64_t n_right = 0;
  int64_t n_lost = 0;
  int64_t n_gained = 0;
};

// What was measured under one way of reuse, for one kind of prompts.
struct ReuseEvidence {
  AnswerCounts answers;
  double kl = 0;  // mean divergence along the answers of full computation, nats per token
  // How often full computation itself changes answers where its arithmetic is ordered otherwise (another prefill chunk,
  // a batch, another instruction set), on the same cases.
  struct OtherWay {
    std::string name;
    AnswerCounts answers;
  };
  std::vector<OtherWay> floor;
  std::optional<ScoreCounts> scores;  // nullopt: right answers are not known
};

// Adds what was measured of other cases under the same way of reuse. Scores are left out.
void add(ReuseEvidence& to, const ReuseEvidence& more);

// The floor as one count, all ways together.
AnswerCounts noise_floor(const ReuseEvidence& evidence);

struct GateRule {
  double margin = 0.01;  // > 0: what reuse may change or cost beyond the floor
  double confidence = 0.95;
  // Verdicts are asked for again and again while counts grow (share_at_most_at_any_time): the floor counts as far as it
  // is certain, and each of the two bounds has half the doubt. Scores are not considered.
  bool repeated = false;
};

struct GateVerdict {
  enum class Answer : uint8_t { kYes, kNo, kNotEnough };
  Answer answer = Answer::kNotEnough;
  bool by_scores = false;  // what `bound` and `limit` are of: answers that change, or answers that are no longer right
  double bound = 1;        // upper bound of their share
  double limit = 0;        // the bound that is permitted
  int64_t n_more = 0;      // of kNotEnough: about how many more cases decide, if they are like those so far; 0: unknown
  bool yes() const { return answer == Answer::kYes; }
};

// Yes: with rule.confidence, reuse changes at most the floor's share of answers plus the margin; or, where right
// answers are known, it costs at most the margin in accuracy. Never yes for fewer cases than the rule requires at a
// floor of 0 without a change (299 for 1 % at 95 %). No: it changes or costs more than that, as measured on as many
// cases at least, or with that confidence on fewer.
GateVerdict judge(const ReuseEvidence& evidence, const GateRule& rule = {});

// "627 of 629 test answers stayed the same; at most 1 % change (95 %)", without a full stop; with the limit, unless
// the verdict is yes.
std::string evidence_words(const ReuseEvidence& evidence, const GateVerdict& verdict, const GateRule& rule = {});
// An upper bound of a share, "0.91 %": two digits, rounded up.
std::string bound_text(double bound);
// What would change the verdict, a sentence; "" for yes.
std::string help_words(const ReuseEvidence& evidence, const GateVerdict& verdict);

}  // namespace vlcache
