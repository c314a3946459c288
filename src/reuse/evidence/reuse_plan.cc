// The file format, and the two solvers.
#include "reuse/evidence/reuse_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "reuse/evidence/codec_field.h"

namespace vlcache {
namespace {

constexpr int64_t kFormat = 1;
constexpr size_t kMaxLayers = 4096;

using OrderedJson = nlohmann::ordered_json;

OrderedJson evidence_json(const ReuseEvidence& e) {
  OrderedJson json{{"cases", e.answers.n}, {"equal", e.answers.n - e.answers.n_changed}, {"kl", e.kl}};
  for (const ReuseEvidence::OtherWay& way : e.floor) {
    json["floor"][way.name] = {{"cases", way.answers.n}, {"changed", way.answers.n_changed}};
  }
  if (e.scores)
    json["scores"] = {{"cases", e.scores->n},
                      {"right", e.scores->n_right},
                      {"lost", e.scores->n_lost},
                      {"gained", e.scores->n_gained}};
  return json;
}

// A count from 0 to `most`.
int64_t count(const JsonObject& o, const char* key, int64_t most) {
  const int64_t n = o.integer(key);
  if (n < 0 || n > most) o.fail(key, "an integer from 0 to " + std::to_string(most));
  return n;
}

ReuseEvidence evidence(const JsonObject& file, std::string_view key) {
  const JsonObject o = file.object(key);
  ReuseEvidence found;
  found.answers.n = count(o, "cases", INT32_MAX);
  found.answers.n_changed = found.answers.n - count(o, "equal", found.answers.n);
  found.kl = o.number("kl");
  if (!(found.kl >= 0)) o.fail("kl", "a number >= 0");
  if (o.find("floor") != nullptr) {
    const JsonObject floor = o.object("floor");
    for (const auto& [name, ignored] : o.find("floor")->items()) {
      const JsonObject way = floor.object(name);
      AnswerCounts a{.n = count(way, "cases", INT32_MAX), .n_changed = 0};
      a.n_changed = count(way, "changed", a.n);
      found.floor.push_back({name, a});
    }
  }
  if (o.find("scores") != nullptr) {
    const JsonObject scores = o.object("scores");
    ScoreCounts s{.n = count(scores, "cases", found.answers.n), .n_right = 0, .n_lost = 0, .n_gained = 0};
    s.n_right = count(scores, "right", s.n);
    s.n_lost = count(scores, "lost", s.n);
    s.n_gained = count(scores, "gained", s.n - s.n_lost);
    found.scores = s;
  }
  return found;
}

class PlannedChooser final : public ReuseChooser {
 public:
  explicit PlannedChooser(std::vector<double> shares) : plan_(std::move(shares)) {}

  std::string name() const override { return "vlcache, by plan"; }
  RecomputePlan plan(int32_t n_layers, int32_t) const override {
    if (n_layers == plan_.n_layers()) return plan_;
    throw Error(ErrorCode::kInput, "reuse plan: expected " + std::to_string(n_layers) +
                                       " layers, as the model has, found " + std::to_string(plan_.n_layers()));
  }

 private:
  RecomputePlan plan_;
};

// Levels and budgets in hundredths.
std::vector<int64_t> units_of(const ReuseSensitivity& s) {
  std::vector<int64_t> units;
  for (const double level : s.levels) {
    units.push_back(std::llround(level * 100));
    CHECK(std::abs(level * 100 - static_cast<double>(units.back())) < 1e-9);
  }
  CHECK(!units.empty() && units[0] == 0 && std::ranges::is_sorted(units));
  return units;
}

int64_t budget_of(const ReuseSensitivity& s, double target) {
  CHECK(target >= 0 && target <= 1);
  return static_cast<int64_t>(std::floor(target * 100 * static_cast<double>(s.loss.size()) + 1e-9));
}

}  // namespace

ReusePlan parse_reuse_plan(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  const JsonObject file(json, std::string(where));
  if (file.integer("format") != kFormat) file.fail("format", std::to_string(kFormat));
  ReusePlan plan{.model = file.string("model"),
                 .kv_codec = {},
                 .shares = {},
                 .one = {},
                 .several = {},
                 .looking = file.string("looking", ""),
                 .several_looking = {}};
  plan.form = file.string("form", plan.form);
  plan.weights = file.string("weights", plan.weights);
  if (file.find("kv_codec") != nullptr) plan.kv_codec = codec_field(file, "kv_codec");
  const Json* shares = file.find("shares");
  const auto is_number = [](const Json& x) { return x.is_number(); };
  if (shares == nullptr || !shares->is_array() || shares->empty() || shares->size() > kMaxLayers ||
      !std::ranges::all_of(*shares, is_number)) {
    file.fail("shares", "a list of 1 to " + std::to_string(kMaxLayers) + " numbers, one for each layer");
  }
  for (const Json& share : *shares) plan.shares.push_back(share.get<double>());
  try {
    RecomputePlan checked(plan.shares);
  } catch (const Error& e) {
    throw Error(ErrorCode::kInput, file.where() + ": " + e.what());
  }
  plan.one = evidence(file, "one_image");
  plan.several = evidence(file, "several_images");
  if (plan.looking.empty()) return plan;
  try {
    parse_reuse_chooser(plan.looking);
  } catch (const Error& e) {
    throw Error(ErrorCode::kInput, file.where() + ".looking: " + e.what());
  }
  plan.several_looking = evidence(file, "several_images_looking");
  return plan;
}

std::string reuse_plan_json(const ReusePlan& plan) {
  OrderedJson file{{"format", kFormat},
                   {"model", plan.model},
                   {"form", plan.form},
                   {"mean", RecomputePlan(plan.shares).mean()},
                   {"shares", plan.shares},
                   {"one_image", evidence_json(plan.one)},
                   {"several_images", evidence_json(plan.several)}};
  if (plan.weights != ReusePlan().weights) file["weights"] = plan.weights;  // files of dense ones stay as they were
  if (plan.kv_codec) file["kv_codec"] = kv_codec_name(*plan.kv_codec);      // and of values, too
  if (!plan.looking.empty()) {
    file["looking"] = plan.looking;
    file["several_images_looking"] = evidence_json(plan.several_looking);
  }
  return file.dump(1) + "\n";
}

PlanVerdict::Use PlanVerdict::use(size_t n_images) const {
  if ((n_images > 1 ? several : one).yes()) return Use::kPlan;
  return n_images > 1 && several_looking.yes() ? Use::kLooking : Use::kNothing;
}

PlanVerdict judge(const ReusePlan& plan, const GateRule& rule) {
  return {.one = judge(plan.one, rule),
          .several = judge(plan.several, rule),
          .several_looking = judge(plan.several_looking, rule)};
}

std::string verdict_words(const ReusePlan& plan, const GateRule& rule) {
  const PlanVerdict verdict = judge(plan, rule);
  const auto about = [&](const ReuseEvidence& e, const GateVerdict& v) {
    const std::string help = e.answers.n == 0 ? "" : help_words(e, v);
    return evidence_words(e, v, rule) + "." + (help.empty() ? "" : " " + help) + "\n";
  };
  const auto begin = [](bool yes, const std::string& when) {
    return std::string("Reuse: ") + (yes ? "on" : "off") + " for " + when;
  };
  std::string text = begin(verdict.one.yes(), "one image in a prompt") + (plan.one.answers.n == 0 ? ", " : ". ") +
                     about(plan.one, verdict.one);
  const PlanVerdict::Use use = verdict.use(2);
  text += begin(use != PlanVerdict::Use::kNothing, "several images in a prompt");
  if (use == PlanVerdict::Use::kLooking) {
    return text + " (" + plan.looking + "). " + about(plan.several_looking, verdict.several_looking);
  }
  text += (plan.several.answers.n == 0 ? ", " : ". ") + about(plan.several, verdict.several);
  if (use == PlanVerdict::Use::kPlan || plan.looking.empty() || plan.several_looking.answers.n == 0) return text;
  return text + "  With " + plan.looking + ": " + about(plan.several_looking, verdict.several_looking);
}

ReuseChooserPtr planned_chooser(const ReusePlan& plan) { return std::make_shared<PlannedChooser>(plan.shares); }

double plan_loss(const ReuseSensitivity& s, const std::vector<size_t>& levels) {
  double loss = 0;
  for (size_t i = 0; i < levels.size(); ++i) loss += s.loss[i][levels[i]];
  return loss;
}

std::vector<size_t> solve_greedily(const ReuseSensitivity& s, double target) {
  const std::vector<int64_t> units = units_of(s);
  std::vector<size_t> levels(s.loss.size(), 0);
  int64_t left = budget_of(s, target);
  while (true) {
    double best_rate = -std::numeric_limits<double>::infinity();
    size_t best_layer = levels.size();
    int64_t best_price = 0;
    for (size_t layer = 0; layer < levels.size(); ++layer) {
      const size_t level = levels[layer] + 1;
      if (level == units.size()) continue;
      double gain = 0;
      int64_t price = 0;
      for (size_t i = 0; i <= layer; ++i) {
        if (levels[i] >= level) continue;
        gain += s.loss[i][levels[i]] - s.loss[i][level];
        price += units[level] - units[levels[i]];
      }
      const double rate = gain / static_cast<double>(price);
      if (price > left || rate <= best_rate) continue;
      best_rate = rate;
      best_layer = layer;
      best_price = price;
    }
    if (best_layer == levels.size()) return levels;
    const size_t level = levels[best_layer] + 1;
    for (size_t i = 0; i <= best_layer; ++i) levels[i] = std::max(levels[i], level);
    left -= best_price;
  }
}

std::vector<size_t> solve_exactly(const ReuseSensitivity& s, double target) {
  const std::vector<int64_t> units = units_of(s);
  const size_t n_layers = s.loss.size(), n_levels = units.size();
  const auto n_budgets = static_cast<size_t>(budget_of(s, target)) + 1;
  // least[i][l][b]: loss of layers i, i + 1, .. at levels of at most l with a budget of b; choice: the level of layer
  // i.
  struct Cell {
    double loss = 0;
    size_t choice = 0;
  };
  const auto at = [&](size_t level, size_t budget) { return level * n_budgets + budget; };
  std::vector<std::vector<Cell>> least(n_layers + 1, std::vector<Cell>(n_levels * n_budgets));
  for (size_t i = n_layers; i-- > 0;) {
    for (size_t b = 0; b < n_budgets; ++b) {
      Cell best{.loss = std::numeric_limits<double>::infinity(), .choice = 0};
      for (size_t l = 0; l < n_levels; ++l) {
        const auto price = static_cast<size_t>(units[l]);
        if (price <= b) {
          const double loss = s.loss[i][l] + least[i + 1][at(l, b - price)].loss;
          if (loss < best.loss) best = {loss, l};
        }
        least[i][at(l, b)] = best;
      }
    }
  }
  std::vector<size_t> levels;
  size_t level = n_levels - 1, budget = n_budgets - 1;
  for (size_t i = 0; i < n_layers; ++i) {
    level = least[i][at(level, budget)].choice;
    budget -= static_cast<size_t>(units[level]);
    levels.push_back(level);
  }
  return levels;
}

}  // namespace vlcache
