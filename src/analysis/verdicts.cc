#include "analysis/verdicts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "analysis/inspection_report.h"
#include "base/format.h"
#include "base/numeric/statistics.h"

namespace vlcache {
namespace {

constexpr double kOneSided = 0.975;  // of each end of a 95 % interval
// A probed head looks back if it gives a tenth of its attention to the one token, of thousands, that repeats.
constexpr float kLooksBack = 0.1f;

// A budget that is a share of the prompt, such as 0.1 or 10%.
std::optional<double> budget_share(const EvalLine& line) {
  const double budget = std::atof(line.budget.c_str()) / (line.budget.ends_with('%') ? 100 : 1);
  if (line.budget.empty() || line.budget.find_first_not_of("0123456789.%") != line.budget.npos) return {};
  return budget > 0 && budget <= 1 ? std::optional(budget) : std::nullopt;
}

// The share of the prompt's KV that a line keeps: its budget or, if that is none or not a share, its bytes.
double kept_share(const EvalLine& line) { return budget_share(line).value_or(line.kv_share); }

bool saves(const EvalLine& line) { return line.n > 0 && line.n_ended < line.n && line.kv_share < 1; }

std::string questions(int32_t n) { return n == 1 ? "one question" : format("%d questions", n); }

std::string named(const EvalLine& line) {
  const std::string name = "`" + line.given + "`";
  if (line.budget.empty()) return name + format(", with %.3g %% of the bytes", 100 * line.kv_share);
  const std::optional<double> share = budget_share(line);
  return name + " at " + (share ? format("%g %%", 100 * *share) : line.budget);
}

std::string losses(const EvalLine& line, int32_t n) {
  if (line.n_lost == 0 && line.n_gained == 0) return "lost nothing on your " + questions(n);
  const std::string lost = line.n_lost == 0 ? "nothing" : format("%d", line.n_lost);
  return "lost " + lost + (line.n_gained > 0 ? format(" and gained %d", line.n_gained) : "") +
         (line.n_lost == 0 ? " on your " : " of your ") + questions(n);
}

// How far chance may have moved that: ends rounded outwards.
std::string certainty(const EvalLine& line, int32_t n) {
  constexpr double kFew = 0.99;  // a set is small if even no loss at all does not show that
  const double low = share_at_least(n - line.n_lost, n, kOneSided), high = share_at_most(n - line.n_lost, n, kOneSided);
  std::string text = "; ";
  if (n == 1) {
    text += "one is far too few: ";
  } else if (share_at_least(n, n, kOneSided) < kFew) {
    text += format("%d are few: ", n);
  }
  return text + format("of all such questions, %.0f to %.0f %% are answered as well as with the full cache",
                       std::floor(100 * low), std::ceil(100 * high - 1e-9));
}

std::string size_words(int64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1000 ? format("%.0f KiB", kib) : format("%.1f MiB", kib / 1024);
}

// Why no line counts.
std::string nothing_to_use(const EvalTable& table) {
  const EvalLine& full = table.lines[0];
  const std::string on = " on your " + questions(table.n_turns);
  if (full.n == 0) return "The full cache gave no answer" + on + ": " + full.error + ".";
  if (full.score <= 0) {
    return "The full cache is never right" + on +
           ", so no loss can be measured: check the data's answers and --metric.";
  }
  if (table.lines.size() == 1) return "Only the full cache was measured: name the policies to compare with --kv.";
  const auto others = std::span(table.lines).subspan(1);
  if (std::ranges::all_of(others, [](const EvalLine& l) { return l.n == 0; })) {
    return "No policy gave an answer" + on + ": " + others[0].error + ".";
  }
  std::string text = "No policy saved anything" + on;
  if (std::ranges::any_of(others, [](const EvalLine& l) { return l.n > 0 && l.n_ended == l.n; })) {
    text += ": answers ended before the policy acted; measure longer answers (--max-tokens)";
  }
  return text + ".";
}

}  // namespace

std::optional<BestLine> best_line(const EvalTable& table) {
  std::optional<BestLine> best;
  if (table.lines.empty() || table.lines[0].score <= 0) return best;
  const auto rank = [&](size_t i) {  // the smallest is the best
    const EvalLine& l = table.lines[i];
    const bool reaches = l.share_interval.low >= table.goal;
    return std::tuple(!reaches, reaches ? kept_share(l) : -l.score, reaches ? -l.score : kept_share(l), l.kv_share, i);
  };
  for (size_t i = 1; i < table.lines.size(); ++i) {
    if (saves(table.lines[i]) && (!best || rank(i) < rank(best->index))) best = BestLine{i, false, {}};
  }
  if (!best) return best;
  const EvalLine& chosen = table.lines[best->index];
  best->reaches = chosen.share_interval.low >= table.goal;
  for (size_t i = 1; i < table.lines.size(); ++i) {
    const EvalLine& l = table.lines[i];
    if (i != best->index && saves(l) && kept_share(l) == kept_share(chosen) && l.score == chosen.score &&
        l.n_lost == chosen.n_lost) {
      best->as_good.push_back(i);
    }
  }
  return best;
}

std::string best_line_rule(const EvalTable& table, const BestLine& best) {
  const std::string goal = format("%g %% of the full cache's score", 100 * table.goal);
  return best.reaches ? "Marked: the smallest budget whose 95 % interval lies at or above " + goal + "."
                      : "Marked: the highest score, because no interval lies at or above " + goal +
                            "; of equal scores, the smaller budget.";
}

std::string eval_verdict(const EvalTable& table) {
  if (table.lines.empty()) return "";
  const std::optional<BestLine> best = best_line(table);
  if (!best) return nothing_to_use(table);
  const EvalLine& line = table.lines[best->index];
  std::string text;
  if (best->reaches) {
    const std::optional<double> share = budget_share(line);
    text = share ? format("Keep %g %%: `", 100 * *share) + line.given + "` " : "Use " + named(line) + ": it ";
  } else {
    text = format("No policy keeps %g %% of the full cache's score for certain. The best is ", 100 * table.goal) +
           named(line) + ": it ";
  }
  text += losses(line, table.n_turns) + certainty(line, table.n_turns) + ".";
  if (!best->as_good.empty()) {
    text += " As good:";
    for (const size_t i : best->as_good) text += (i == best->as_good[0] ? " " : ", ") + named(table.lines[i]);
    text += ".";
  }
  if (line.n_ended > 0) {
    text += format(" %d of its answers ended before it acted.", line.n_ended);
  }
  return text;
}

std::string inspect_verdict(const Inspection& inspection) {
  double kept = 0, n_heads = 0;
  for (const InspectedLayer& layer : inspection.layers) {
    for (const std::vector<int32_t>& head : layer.kept) {
      kept += static_cast<double>(head.size());
      ++n_heads;
    }
  }
  kept /= std::max(1.0, n_heads);
  std::string text = format("%.3g %% of the KV stayed, %.0f of %d tokens a head on average",
                            100 * kept / std::max(1, inspection.n_prompt), kept, inspection.n_prompt);
  double of_images = 0, n_tokens = 0;
  for (const InspectedImage& image : inspection.images) {
    for (const double share : kept_shares(inspection, image)) {
      of_images += share;
      ++n_tokens;
    }
  }
  if (n_tokens > 0) {
    text += format(" (%.3g %% of the ", 100 * of_images / n_tokens) +
            (inspection.images.size() == 1 ? "image)" : "images)");
  }
  text += inspection.answer == inspection.full_answer ? "; the answer is the same." : "; the answer is another one.";
  const int64_t saved = inspection.full_kv_bytes - inspection.kv_bytes;
  if (saved > 0) {
    text += " That saves " + size_words(saved) + " of " + size_words(inspection.full_kv_bytes) +
            format(" (%.3g %%).", 100.0 * static_cast<double>(saved) / static_cast<double>(inspection.full_kv_bytes));
  } else {
    text += " That saves nothing.";
  }
  return text + " One question shows little: `vlcache eval` measures many.";
}

std::string heads_verdict(const HeadScores& scores) {
  int n_heads = 0, n_looking = 0;
  float largest = 0;
  for (const std::vector<float>& layer : scores.echo) {
    for (const float echo : layer) {
      ++n_heads;
      n_looking += echo >= kLooksBack ? 1 : 0;
      largest = std::max(largest, echo);
    }
  }
  if (n_looking == 0) {
    return format(
        "None of %d kv heads looks back: none gives more than %.1f %% of its attention to the text that "
        "repeats. --kv razor and --kv duo would choose heads by chance; use another policy.",
        n_heads, 100 * largest);
  }
  return format("%d of %d kv heads look%s back: ", n_looking, n_heads, n_looking == 1 ? "s" : "") +
         format(
             "%s at least %g %% of the attention, at most %.0f %%, to the text that repeats. --kv razor and --kv duo "
             "keep everything in such heads; `vlcache eval` measures what that costs.",
             n_looking == 1 ? "it gives" : "they give", 100 * kLooksBack, 100 * largest);
}

}  // namespace vlcache
