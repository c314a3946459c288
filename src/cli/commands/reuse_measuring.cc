#include "cli/commands/reuse_measuring.h"

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

using Line = MeasuredCases::Line;

constexpr std::array kLevels{0.0, .01, .02, .05, .1, .3, 1.0};  // of profiles
// Lower instruction sets get as long as all full answers took, and this at least.
constexpr double kLeastMs = 20000;

Line errors_json(const std::vector<KvError>& errors) {
  Line json = Line::array();
  for (const KvError& e : errors) json.push_back({{"k", e.k}, {"v", e.v}, {"n", e.n}});
  return json;
}

std::vector<KvError> read_errors(const Line& json) {
  using Places = decltype(KvError::n);
  std::vector<KvError> errors;
  for (const Line& e : json) {
    errors.push_back({e["k"].get<Places>(), e["v"].get<Places>(), e["n"].get<Places>()});
  }
  return errors;
}

bool is_measurement(const Line& line) {
  return line.is_object() && line.contains("what") && line["what"].is_string() && line.contains("case") &&
         line["case"].is_number_unsigned();
}

std::string looking_of(const std::string& name) { return name + ", looking"; }

}  // namespace

int32_t other_chunk(const ModelFlags& flags) {
  constexpr int32_t kOther = 100, kSmaller = 48;
  return flags.prefill_chunk > kOther ? kOther : kSmaller;
}

MeasuredCases::MeasuredCases(std::filesystem::path path, const Line& settings) : path_(std::move(path)) {
  std::ifstream old(path_);
  std::string text;
  if (std::getline(old, text) && text == settings.dump()) {
    while (std::getline(old, text)) {
      Line line = Line::parse(text, nullptr, /*allow_exceptions=*/false);  // the last may have been cut off
      if (!is_measurement(line)) continue;
      std::pair key(line["what"].get<std::string>(), line["case"].get<size_t>());
      lines_.emplace(std::move(key), std::move(line));
    }
  }
  file_.open(path_, std::ios::trunc);
  write(settings);
  for (const auto& [key, line] : lines_) write(line);
}

const MeasuredCases::Line* MeasuredCases::find(const std::string& what, size_t i) const {
  const auto at = lines_.find({what, i});
  return at == lines_.end() ? nullptr : &at->second;
}

const MeasuredCases::Line& MeasuredCases::add(const std::string& what, size_t i, Line values) {
  Line line{{"what", what}, {"case", i}};
  line.update(values);
  if (!path_.empty()) write(line);
  return lines_.insert_or_assign({what, i}, std::move(line)).first->second;
}

void MeasuredCases::remove_file() {
  file_.close();
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void MeasuredCases::write(const Line& line) {
  if (!(file_ << line.dump() << std::endl)) {
    throw Error(ErrorCode::kIo, path_.string() + ": writing failed (does the folder exist, is the disk full?)");
  }
}

void ReuseMeasuring::compare(const std::string& name, const ReusePlan& plan) {
  const ReuseChooserPtr planned = planned_chooser(plan);
  const ReuseChooserPtr looking = plan.looking.empty() ? nullptr : parse_reuse_chooser(plan.looking);
  for (size_t i = 0; i < cases_.size(); ++i) {
    progress_.update("comparing answers", static_cast<int64_t>(i), std::ssize(cases_));
    if (interrupted()) throw Interrupted();
    const ReuseCase& c = cases_[i];
    std::vector<std::string> names;
    std::vector<ReuseChooserPtr> choosers;
    const auto add = [&](const std::string& what, const ReuseChooserPtr& chooser) {
      if (chooser == nullptr || measured_.find(what, i) != nullptr) return;
      names.push_back(what);
      choosers.push_back(chooser);
    };
    add(name, planned);
    // The same chooser is measured once, whatever the plan.
    if (c.images.size() > 1) add(looking_of(plan.looking), looking);
    if (choosers.empty()) continue;
    const auto begin = Clock::now();
    const ReuseTuner::Answer full = tuner_.full(c);
    if (measured_.find("full", i) == nullptr) {
      measured_.add("full", i, {{"tokens", full.tokens}, {"ms", ms_since(begin)}});
    }
    const std::vector<ReuseTuner::Comparison> found = tuner_.compare(c, full, choosers);
    for (size_t j = 0; j < found.size(); ++j) {
      measured_.add(names[j], i, {{"equal", found[j].equal}, {"kl", found[j].kl}, {"gain", found[j].gain}});
    }
  }
}

std::vector<int32_t> ReuseMeasuring::answer(size_t i) const {
  const Line* line = measured_.find("full", i);
  CHECK(line != nullptr);
  return (*line)["tokens"].get<std::vector<int32_t>>();
}

double ReuseMeasuring::full_ms() const {
  double ms = 0;
  for (size_t i = 0; i < cases_.size(); ++i) ms += (*measured_.find("full", i))["ms"].get<double>();
  return ms;
}

// Cases in order, n_together at once, until they are all counted or have taken budget_ms; those that were counted
// before included.
void ReuseMeasuring::count_way(const std::string& way, double budget_ms, ReuseTuner& tuner, size_t n_together,
                               int32_t chunk) {
  double ms = 0;
  for (size_t i = 0; i < cases_.size() && ms < budget_ms; i += n_together) {
    progress_.update("the same without reuse, " + way, static_cast<int64_t>(i), std::ssize(cases_));
    if (interrupted()) throw Interrupted();
    const size_t n = std::min(n_together, cases_.size() - i);
    const Line* last = measured_.find(way, i + n - 1);
    if (last == nullptr) {
      std::vector<std::vector<int32_t>> answers;
      for (size_t j = 0; j < n; ++j) answers.push_back(answer(i + j));
      const auto begin = Clock::now();
      const std::vector<bool> same = tuner.unchanged(cases_.subspan(i, n), answers, chunk);
      for (size_t j = 0; j < n; ++j) {
        last = &measured_.add(way, i + j, {{"equal", bool{same[j]}}, {"ms", ms_since(begin) / static_cast<double>(n)}});
      }
    }
    ms += static_cast<double>(n) * (*last)["ms"].get<double>();
  }
}

void ReuseMeasuring::measure_floor(const ModelFlags& flags, const Checkpoint& checkpoint) {
  constexpr double kNoBudget = 1e300;
  const int32_t chunk = other_chunk(flags);
  const std::string chunked = format("chunks of %d", chunk), together = format("batches of %zu", kTogether);
  ways_ = {chunked, together};
  count_way(chunked, kNoBudget, tuner_, 1, chunk);
  count_way(together, kNoBudget, tuner_, kTogether, 0);
  const auto isas = lower_instruction_sets(flags.backend, {.max_isa = flags.max_isa});
  const double budget_ms = std::max(kLeastMs, full_ms()) / static_cast<double>(std::max<size_t>(1, isas.size()));
  for (const std::string_view isa : isas) {
    const std::string way(isa);
    ways_.push_back(way);
    progress_.update("loading for " + way, 0, 1);
    ModelFlags lower = flags;
    lower.cache = {};
    EngineOptions options = engine_options(lower, checkpoint);
    options.backend_options.max_isa = isa;
    options.cache_bytes = 0;
    const std::unique_ptr<Engine> engine = Engine::load(checkpoint, options);
    ReuseTuner tuner(*engine, tuner_.max_tokens());
    count_way(way, budget_ms, tuner, 1, 0);
  }
}

ReuseEvidence ReuseMeasuring::evidence(const std::string& what, bool several) const {
  ReuseEvidence e;
  ScoreCounts scores;
  std::map<std::string, AnswerCounts> floor;
  for (size_t i = 0; i < cases_.size(); ++i) {
    if ((cases_[i].images.size() > 1) != several) continue;
    if (const Line* line = measured_.find(what, i)) {
      ++e.answers.n;
      e.answers.n_changed += (*line)["equal"].get<bool>() ? 0 : 1;
      e.kl += (*line)["kl"].get<double>();
      scores.n += cases_[i].right_answers.empty() ? 0 : 1;
      scores.n_right += tuner_.score(cases_[i], answer(i)) > 0 ? 1 : 0;
      scores.n_lost += (*line)["gain"].get<int>() < 0 ? 1 : 0;
      scores.n_gained += (*line)["gain"].get<int>() > 0 ? 1 : 0;
    }
    for (const std::string& way : ways_) {
      const Line* line = measured_.find(way, i);
      if (line == nullptr) continue;
      ++floor[way].n;
      floor[way].n_changed += (*line)["equal"].get<bool>() ? 0 : 1;
    }
  }
  e.kl /= std::max(1.0, static_cast<double>(e.answers.n));
  for (const auto& [way, answers] : floor) e.floor.push_back({way, answers});
  if (scores.n > 0 && scores.n == e.answers.n) e.scores = scores;
  return e;
}

void ReuseMeasuring::fill(const std::string& name, ReusePlan& plan) const {
  plan.one = evidence(name, false);
  plan.several = evidence(name, true);
  plan.several_looking = plan.looking.empty() ? ReuseEvidence() : evidence(looking_of(plan.looking), true);
}

ReuseMeasuring::Profiled ReuseMeasuring::profile(std::span<const ReuseCase> cases) {
  const std::vector<double> levels(kLevels.begin(), kLevels.end());
  Profiled profiled{.sensitivity = {.levels = levels, .loss = {}}, .errors = {}};
  std::vector<std::vector<double>>& sums = profiled.sensitivity.loss;
  for (size_t i = 0; i < cases.size(); ++i) {
    progress_.update("profiling layers", static_cast<int64_t>(i), std::ssize(cases));
    if (interrupted()) throw Interrupted();
    const Line* line = measured_.find("layers", i);
    if (line == nullptr) {
      const ReuseTuner::Profile found = tuner_.profile(cases[i], levels);
      line = &measured_.add("layers", i, {{"loss", found.loss}, {"errors", errors_json(found.errors)}});
    }
    const std::vector<KvError> errors = read_errors((*line)["errors"]);
    profiled.errors.resize(errors.size());
    for (size_t e = 0; e < errors.size(); ++e) profiled.errors[e].add(errors[e]);
    const auto loss = (*line)["loss"].get<std::vector<std::vector<double>>>();
    if (sums.empty()) sums.assign(loss.size(), std::vector<double>(levels.size(), 0));
    for (size_t l = 0; l < loss.size(); ++l) {
      for (size_t r = 0; r < levels.size(); ++r) sums[l][r] += loss[l][r] / static_cast<double>(cases.size());
    }
  }
  return profiled;
}

}  // namespace vlcache
