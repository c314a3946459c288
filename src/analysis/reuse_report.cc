#include "analysis/reuse_report.h"

#include <algorithm>

#include "analysis/html.h"
#include "analysis/reuse_tuner.h"
#include "base/format.h"

namespace vlcache {
namespace {

using Answer = GateVerdict::Answer;

std::string count(int64_t n) { return cell(format("%lld", static_cast<long long>(n))); }
std::string percent_text(double share) { return cell(format("%.3g %%", 100 * share)); }

std::string row(const std::string& name, const ReuseEvidence& e, const GateRule& rule) {
  const GateVerdict v = judge(e, rule);
  const char* word = v.yes() ? "yes" : v.answer == Answer::kNo ? "no" : "not enough";
  std::string text = "<tr>" + cell(name) + count(e.answers.n) + count(e.answers.n_changed);
  text += e.scores ? count(e.scores->n_right) + count(e.scores->n_lost) + count(e.scores->n_gained)
                   : cell("") + cell("") + cell("");
  return text + cell(format("%.2g", e.kl)) + cell(bound_text(v.bound)) + percent_text(v.limit) + cell(word) + "</tr>";
}

std::string evidence_table(const std::vector<MeasuredPlan>& plans, const GateRule& rule) {
  std::string text =
      "<div class=\"wide\"><table><tr><th>reuse</th><th>answers</th><th>changed</th><th>right</th><th>became "
      "wrong</th><th>became "
      "right</th><th>KL a "
      "token</th><th>at most (95 %)</th><th>allowed</th><th>verdict</th></tr>";
  for (const MeasuredPlan& p : plans) {
    text += row(p.name + ", one image", p.plan.one, rule) + row(p.name + ", several", p.plan.several, rule);
  }
  const ReusePlan& last = plans.back().plan;
  if (!last.looking.empty()) text += row(last.looking + ", several", last.several_looking, rule);
  return text + "</table></div>";
}

// The questions so far, of the number that a verdict needs.
std::string progress_of(const char* kind, const ReuseEvidence& e, const GateRule& rule) {
  const GateVerdict v = judge(e, rule);
  const auto n = static_cast<long long>(e.answers.n), needed = n + static_cast<long long>(v.n_more);
  const bool enough = v.answer != Answer::kNotEnough;
  if (!enough && v.n_more == 0) return "";  // how many is not known
  return format("<p><label>%s: ", kind) +
         (enough ? format("%lld questions, enough for a verdict", n)
                 : format("%lld of about %lld questions", n, needed)) +
         format(" <progress value=\"%lld\" max=\"%lld\"></progress></label></p>", n, std::max(1LL, needed));
}

std::string floor_table(const ReusePlan& plan) {
  std::string text =
      "<div class=\"wide\"><table><tr><th>nothing reused, "
      "computed</th><th>images</th><th>answers</th><th>changed</th></tr>";
  for (const auto& [images, e] : {std::pair("one", &plan.one), std::pair("several", &plan.several)}) {
    for (const ReuseEvidence::OtherWay& way : e->floor) {
      text += "<tr>" + cell(way.name) + cell(images) + count(way.answers.n) + count(way.answers.n_changed) + "</tr>";
    }
  }
  return text + "</table></div>";
}

std::vector<double> shares_of(const ReuseSensitivity& s, const std::vector<size_t>& levels) {
  std::vector<double> shares;
  for (const size_t l : levels) shares.push_back(s.levels[l]);
  return shares;
}

std::string plan_line(const char* name, const ReuseSensitivity& s, const std::vector<size_t>& levels) {
  const std::vector<double> shares = shares_of(s, levels);
  std::string text =
      format("%-7s loss %.6g, mean share %.4f:", name, plan_loss(s, levels), RecomputePlan(shares).mean());
  for (const double share : shares) text += format(" %g", share);
  return text + "\n";
}

// The paper's Fig. 3: what recomputing each layer is worth.
std::string sensitivity_chart(const ReuseSensitivity& s, double target) {
  std::vector<ChartLine> lines;
  double top = 0;
  std::vector<double> ticks;
  for (const double level : {0.0, 0.1, 0.3, 1.0}) {
    const auto r = static_cast<size_t>(std::ranges::find(s.levels, level) - s.levels.begin());
    ChartLine& line = lines.emplace_back(ChartLine{format("%g %% computed", 100 * level), {}});
    for (size_t l = 0; l < s.loss.size(); ++l) {
      line.points.push_back({static_cast<double>(l), s.loss[l][r]});
      top = std::max(top, s.loss[l][r]);
    }
  }
  for (size_t l = 0; l < s.loss.size(); ++l) ticks.push_back(static_cast<double>(l));
  return "<h2>What a layer's recomputation is worth</h2><p>Images whose KV comes from other prompts; one layer has the "
         "right KV of their first tokens, all others load it (arXiv:2512.12977, Fig. 3).</p>" +
         line_chart(lines, {.x_label = "layer",
                            .y_label = "squared error of the logits",
                            .x_ticks = ticks,
                            .y_high = top > 0 ? top : 1,
                            .percent_x = false,
                            .percent_y = false,
                            .log_x = false}) +
         "<pre>" +
         escape_html(plan_line("greedy", s, solve_greedily(s, target)) +
                     plan_line("exact", s, solve_exactly(s, target))) +
         "</pre>";
}

// The paper's Fig. 2: KV loaded for early tokens causes errors in the tokens after them.
std::string error_charts(const std::vector<KvError>& errors) {
  std::vector<NamedKvError> named{{"loaded", errors[0]}};
  for (size_t i = 0; i < kErrorShares.size(); ++i) {
    named.push_back({format("after %g %% right", 100 * kErrorShares[i]), errors[i + 1]});
  }
  return "<h2>What loaded tokens do to those after them</h2><p>How far K and V of a token are from those of computing "
         "everything, over all layers: as they are loaded, and as they become if the token is computed after what is "
         "loaded, of which the first 0, 10 or 30 % are right (after arXiv:2512.12977, Fig. 2).</p>" +
         kv_error_charts(named);
}

}  // namespace

std::string reuse_page(const std::vector<MeasuredPlan>& plans, size_t chosen, const GateRule& rule,
                       const ReuseSensitivity& sensitivity, const std::vector<KvError>& errors) {
  const MeasuredPlan& plan = plans[chosen];
  std::string body =
      verdict_box(verdict_words(plan.plan, rule)) + progress_of("one image in a prompt", plan.plan.one, rule) +
      progress_of("several images", plan.plan.several, rule) + "<p>Under the " + escape_html(plan.name) +
      format(": %.3g %% of an image's tokens are recomputed. ", 100 * RecomputePlan(plan.plan.shares).mean()) +
      "Answers are greedy and compared token for token with those of computing everything.</p>" +
      evidence_table(plans, rule) +
      "<h2>How often answers change without reuse</h2><p>The same questions, everything computed, with "
      "the arithmetic in another order. The gate allows these changes and the margin.</p>" +
      floor_table(plan.plan);
  if (!errors.empty()) {
    body += fold("Errors by layer and place (for authors of papers)",
                 sensitivity_chart(sensitivity, RecomputePlan(plans.back().plan.shares).mean()) + error_charts(errors));
  }
  return html_page("Reuse of images", body);
}

}  // namespace vlcache
