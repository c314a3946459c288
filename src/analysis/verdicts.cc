#include "analysis/verdicts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "analysis/inspection_report.h"
#include "base/contracts/kv.h"
#include "base/format.h"

namespace vlcache {
namespace {

constexpr double kNearly = 0.01;  // a difference of shares that needs no words
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

std::string questions(int32_t n) { return n == 1 ? "one question" : format("%d questions", n); }

std::string named(const EvalLine& line) {
  const std::string name = "`" + line.given + "`";
  if (line.budget.empty()) return name + format(", with %.3g %% of the bytes", 100 * line.kv_share);
  const std::optional<double> share = budget_share(line);
  return name + " at " + (share ? format("%g %%", 100 * *share) : line.budget);
}

// "lost 2 and gained 1 of your 40 questions"
std::string losses(const EvalLine& line, const EvalTable& table) {
  const std::string lost = line.n_lost == 0 ? "nothing" : format("%d", line.n_lost);
  return "lost " + lost + (line.n_gained > 0 ? format(" and gained %d", line.n_gained) : "") +
         (line.n_lost == 0 ? " on your " : " of your ") + questions(table.n_turns) +
         (table.n_right < table.n_turns ? format(" (the full cache answers %d right)", table.n_right) : "");
}

// "at least 98.5 % of the full cache's right answers are kept (95 % sure)"
std::string certainty(const EvalLine& line) {
  return format("at least %.3g %% of the full cache's right answers are kept",
                std::floor(1000 * line.kept_at_least()) / 10) +
         (line.n_gained > 0 ? " on balance" : "") + " (95 % sure)";
}

// The sentence of a line that does not reach the goal.
std::string short_of_goal(const EvalLine& line, const EvalTable& table) {
  const std::string goal = format("%g %% of the full cache's right answers", 100 * table.goal);
  if (line.loses_too_much()) {
    return "No budget that was tried keeps " + goal +
           (line.verdict.answer == GateVerdict::Answer::kNo ? "" : " so far") + ". The best is " + named(line) +
           ": it " + losses(line, table) + ", so that " + certainty(line) + ".";
  }
  const std::string more =
      line.verdict.n_more == 0 ? "many" : format("about %lld", static_cast<long long>(line.verdict.n_more));
  return "Not enough questions: " + more + " more are needed to say which budget keeps " + goal + ". So far, " +
         named(line) + " " + losses(line, table) + ", which shows that " + certainty(line) + ".";
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
  if (table.n_right == 0) {
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
  if (table.lines.empty() || table.n_right == 0) return best;
  // The smallest is the best: first lines that reach the goal, then lines that more questions may show to reach it.
  const auto rank = [&](size_t i) {
    const EvalLine& l = table.lines[i];
    if (l.verdict.yes()) return std::tuple(0, kept_share(l), -l.kept, l.kv_share, i);
    if (!l.loses_too_much()) return std::tuple(1, static_cast<double>(l.verdict.n_more), kept_share(l), l.kv_share, i);
    return std::tuple(2, l.verdict.bound, kept_share(l), l.kv_share, i);
  };
  for (size_t i = 1; i < table.lines.size(); ++i) {
    if (table.lines[i].saves() && (!best || rank(i) < rank(best->index))) best = BestLine{i, false, {}};
  }
  if (!best) return best;
  const EvalLine& chosen = table.lines[best->index];
  best->reaches = chosen.verdict.yes();
  for (size_t i = 1; i < table.lines.size(); ++i) {
    const EvalLine& l = table.lines[i];
    if (i != best->index && l.saves() && kept_share(l) == kept_share(chosen) && l.n_lost == chosen.n_lost &&
        l.n_gained == chosen.n_gained) {
      best->as_good.push_back(i);
    }
  }
  return best;
}

std::string best_line_rule(const EvalTable& table, const BestLine& best) {
  const std::string goal = format("at least %g %% of the full cache's right answers", 100 * table.goal);
  return best.reaches ? "Marked: the smallest budget that keeps " + goal + " (95 % sure)."
                      : "No row is marked: of none is it certain (95 %) that it keeps " + goal + ".";
}

std::string eval_verdict(const EvalTable& table) {
  if (table.lines.empty()) return "";
  const std::optional<BestLine> best = best_line(table);
  if (!best) return nothing_to_use(table);
  const EvalLine& line = table.lines[best->index];
  std::string text;
  if (best->reaches) {
    const std::optional<double> share = budget_share(line);
    text = (share ? format("Keep %g %%: `", 100 * *share) + line.given + "` " : "Use " + named(line) + ": it ") +
           losses(line, table) + "; " + certainty(line) + ".";
  } else {
    text = short_of_goal(line, table);
  }
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
  const double of_prompt = kept / std::max(1, inspection.n_prompt);
  std::string text = format("%.3g %% of the KV stayed, %.0f of %d tokens a head on average", 100 * of_prompt, kept,
                            inspection.n_prompt);
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
    const double share = static_cast<double>(saved) / static_cast<double>(inspection.full_kv_bytes);
    text += " That saves " + size_words(saved) + " of " + size_words(inspection.full_kv_bytes) +
            format(" (%.3g %%)", 100 * share);
    const bool less = share < 1 - of_prompt - kNearly;
    text += less ? format(": memory is held in pages of %d tokens.", kPageSlots) : ".";
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
