#include "reuse/evidence/reuse_gate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format.h"
#include "base/function_ref.h"
#include "base/numeric/statistics.h"

namespace vlcache {
namespace {

constexpr double kMostCases = 1e9;  // beyond this, more cases are no advice

double half_the_doubt(double confidence) { return 0.5 * (1 + confidence); }

double upper_bound(double n_changed, double n, const GateRule& rule) {
  if (!rule.repeated) return share_at_most(n_changed, n, rule.confidence);
  return share_at_most_at_any_time(n_changed, n, half_the_doubt(rule.confidence), rule.margin);
}

// Of the floor, which is as it was measured in one go, or as low as repeated looks may have it.
double floor_share(const AnswerCounts& floor, const GateRule& rule) {
  if (!rule.repeated) return floor.share();
  const auto n = static_cast<double>(floor.n), same = n - static_cast<double>(floor.n_changed);
  return 1 - share_at_most_at_any_time(same, n, half_the_doubt(rule.confidence), /*expected=*/1);
}

// The smallest whole n >= least with passes(n), which stays true beyond it; 0: none.
int64_t smallest(double least, FunctionRef<bool(double n)> passes) {
  double high = std::max(1.0, least);
  while (!passes(high)) {
    high *= 2;
    if (high > kMostCases) return 0;
  }
  double low = least - 1;
  while (high - low > 1) {
    const double middle = std::floor(0.5 * (low + high));
    (passes(middle) ? high : low) = middle;
  }
  return static_cast<int64_t>(high);
}

// The fewest cases that the rule accepts.
int64_t fewest_cases(const GateRule& rule) {
  return smallest(1, [&](double n) { return upper_bound(0, n, rule) <= rule.margin; });
}

// `share`: what was observed. `bound(n)`: if n cases were like those so far; `none_more(n)`: if the cases after those
// so far showed no change.
struct Extrapolation {
  double share;
  bool surely_above;  // the limit, with the rule's confidence
  FunctionRef<double(double n)> bound, none_more;
};

void decide(int64_t n, const Extrapolation& e, const GateRule& rule, GateVerdict& verdict) {
  using Answer = GateVerdict::Answer;
  const int64_t fewest = fewest_cases(rule);
  verdict.bound = e.bound(static_cast<double>(n));
  if (n >= fewest && verdict.bound <= verdict.limit) {
    verdict.answer = Answer::kYes;
  } else if (e.surely_above || (n >= fewest && e.share >= verdict.limit)) {
    verdict.answer = Answer::kNo;
  } else {
    verdict.answer = Answer::kNotEnough;
    const auto least = static_cast<double>(std::max(n, fewest));
    const int64_t needed = smallest(least, [&](double more) {
      return (e.share < verdict.limit ? e.bound(more) : e.none_more(more)) <= verdict.limit;
    });
    verdict.n_more = std::max<int64_t>(0, needed - n);
  }
}

GateVerdict judge_scores(const ScoreCounts& s, const GateRule& rule) {
  GateVerdict verdict;
  verdict.by_scores = true;
  verdict.limit = rule.margin;
  // Answers that are wrong either way say nothing about reuse.
  const int64_t n_right = std::min(s.n, s.n_right + s.n_gained);
  const auto n = static_cast<double>(n_right), lost = static_cast<double>(s.n_lost),
             gained = static_cast<double>(s.n_gained);
  const double scale = n > 0 ? 1 / n : 0;
  const auto bound = [&](double m) {
    return paired_loss_at_most(gained * m * scale, lost * m * scale, m, rule.confidence);
  };
  const auto none_more = [&](double m) { return paired_loss_at_most(gained, lost, m, rule.confidence); };
  decide(n_right,
         {.share = (lost - gained) * scale,
          .surely_above = paired_gain_at_least(lost, gained, n, rule.confidence) > verdict.limit,
          .bound = bound,
          .none_more = none_more},
         rule, verdict);
  verdict.n_more = n_right == 0 ? 0 : (verdict.n_more * s.n + n_right - 1) / n_right;
  return verdict;
}

GateVerdict judge_answers(const ReuseEvidence& evidence, const GateRule& rule) {
  GateVerdict verdict;
  const AnswerCounts& a = evidence.answers;
  verdict.limit = std::min(1.0, floor_share(noise_floor(evidence), rule) + rule.margin);
  const auto n = static_cast<double>(a.n), changed = static_cast<double>(a.n_changed);
  const auto bound = [&](double m) { return upper_bound(a.share() * m, m, rule); };
  const auto none_more = [&](double m) { return upper_bound(changed, m, rule); };
  decide(a.n,
         {.share = a.share(),
          .surely_above = share_at_least(changed, n, rule.confidence) > verdict.limit,
          .bound = bound,
          .none_more = none_more},
         rule, verdict);
  return verdict;
}

std::string percent(double share) { return format("%.3g %%", 100 * share); }

}  // namespace

void add(ReuseEvidence& to, const ReuseEvidence& more) {
  const auto add_counts = [](AnswerCounts& sum, const AnswerCounts& a) {
    sum.n += a.n;
    sum.n_changed += a.n_changed;
  };
  const auto n = static_cast<double>(to.answers.n), n_more = static_cast<double>(more.answers.n);
  if (n_more > 0) to.kl = (to.kl * n + more.kl * n_more) / (n + n_more);
  add_counts(to.answers, more.answers);
  for (const ReuseEvidence::OtherWay& way : more.floor) {
    const auto known = std::ranges::find(to.floor, way.name, &ReuseEvidence::OtherWay::name);
    if (known == to.floor.end()) {
      to.floor.push_back(way);
    } else {
      add_counts(known->answers, way.answers);
    }
  }
  to.scores.reset();
}

AnswerCounts noise_floor(const ReuseEvidence& evidence) {
  AnswerCounts floor;
  for (const ReuseEvidence::OtherWay& way : evidence.floor) {
    floor.n += way.answers.n;
    floor.n_changed += way.answers.n_changed;
  }
  return floor;
}

GateVerdict judge(const ReuseEvidence& evidence, const GateRule& rule) {
  CHECK(rule.margin > 0 && rule.confidence > 0 && rule.confidence < 1);
  return evidence.scores && !rule.repeated ? judge_scores(*evidence.scores, rule) : judge_answers(evidence, rule);
}

std::string bound_text(double bound) {
  const double digit = std::pow(10.0, std::floor(std::log10(std::max(bound, 1e-6))) - 1);
  return percent(std::ceil(bound / digit - 1e-9) * digit);
}

std::string evidence_words(const ReuseEvidence& evidence, const GateVerdict& verdict, const GateRule& rule) {
  const AnswerCounts& a = evidence.answers;
  if (a.n == 0) return "not measured";
  std::string text = format("%lld of %lld test answers stayed the same; ", static_cast<long long>(a.n - a.n_changed),
                            static_cast<long long>(a.n));
  const char* verb = verdict.by_scores ? " get worse" : " change";
  text += "at most " + bound_text(verdict.bound) + verb + format(" (%g %%)", 100 * rule.confidence);
  return verdict.yes() ? text : text + ", " + percent(verdict.limit) + " may";
}

std::string help_words(const ReuseEvidence& evidence, const GateVerdict& verdict) {
  if (verdict.yes()) return "";
  if (verdict.answer == GateVerdict::Answer::kNotEnough) {
    return verdict.n_more == 0
               ? "Not enough questions: many more are needed."
               : format("Not enough questions: about %lld more are needed.", static_cast<long long>(verdict.n_more));
  }
  const double beyond = verdict.bound - (verdict.by_scores ? 0 : noise_floor(evidence).share());
  const double margin = std::ceil(1000 * beyond) / 1000;  // printed with three digits, rounded up
  return format("Compute a larger share of the image (--target), or accept it (--reuse-margin %g).", margin);
}

}  // namespace vlcache
