// `vlcache tune reuse` and `vlcache verify reuse`: how much of a reused image a model must recompute, and whether its
// answers stay the same.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>

#include "analysis/html.h"
#include "analysis/reuse_tuner.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/flags/command.h"
#include "cli/terminal/progress.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

const std::vector<double> kLevels{0, .01, .02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1};

struct TuneFlags {
  ModelFlags model;
  std::string data, images, output, plan;
  std::string looking = "asked:r=0.15";
  double target = 0.025;
  int profiled = 12, compared = 100;
  int max_tokens = 64;
  uint64_t seed = 1;
};

std::vector<EvalSample> load_samples(const TuneFlags& flags) {
  if (flags.data.empty() == flags.images.empty()) {
    throw Error(ErrorCode::kInput, "expected --data FILE.jsonl or --images DIR, found " +
                                       std::string(flags.data.empty() ? "neither" : "both"));
  }
  if (!flags.data.empty()) return load_dataset(flags.data, Metric::kExact).samples;
  std::vector<std::filesystem::path> images;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(flags.images, error)) {
    const std::string extension = entry.path().extension().string();
    constexpr std::string_view kKnown[] = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"};
    if (std::ranges::find(kKnown, extension) != std::end(kKnown)) images.push_back(entry.path());
  }
  if (error) throw Error(ErrorCode::kNotFound, flags.images + ": " + error.message());
  std::ranges::sort(images);
  return questions_about(images);
}

// The measurements so far, a line a case, so that an interrupted command can resume.
class Measured {
 public:
  Measured(std::filesystem::path path, const OrderedJson& settings) : path_(std::move(path)) {
    std::ifstream old(path_);
    std::string line;
    if (std::getline(old, line) && line == settings.dump()) {
      while (std::getline(old, line)) {
        OrderedJson json = OrderedJson::parse(line, nullptr, /*allow_exceptions=*/false);
        if (json.is_object()) lines_.push_back(std::move(json));
      }
    }
    file_.open(path_, std::ios::trunc);
    write(settings);
    for (const OrderedJson& l : lines_) write(l);
  }
  // Null: that case has not been measured.
  const OrderedJson* find(const char* what, int32_t i) const {
    const auto at =
        std::ranges::find_if(lines_, [&](const OrderedJson& l) { return l.contains(what) && l[what] == i; });
    return at == lines_.end() ? nullptr : &*at;
  }
  const OrderedJson& add(OrderedJson line) {
    write(line);
    return lines_.emplace_back(std::move(line));
  }
  void remove() {
    file_.close();
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

 private:
  void write(const OrderedJson& line) {
    if (!(file_ << line.dump() << std::endl)) {
      throw Error(ErrorCode::kIo, path_.string() + ": writing failed (does the folder exist, is the disk full?)");
    }
  }

  std::filesystem::path path_;
  std::deque<OrderedJson> lines_;
  std::ofstream file_;
};

OrderedJson error_json(const std::vector<KvError>& errors) {
  OrderedJson json = OrderedJson::array();
  for (const KvError& e : errors) json.push_back({{"k", e.k}, {"v", e.v}, {"n", e.n}});
  return json;
}

std::vector<KvError> read_errors(const OrderedJson& json) {
  using Places = decltype(KvError::n);
  std::vector<KvError> errors;
  for (const OrderedJson& e : json) {
    errors.push_back({e["k"].get<Places>(), e["v"].get<Places>(), e["n"].get<Places>()});
  }
  return errors;
}

struct Profiled {
  ReuseSensitivity sensitivity;  // the mean of the cases' losses
  std::vector<KvError> errors;   // their sums
};

Profiled profile(ReuseTuner& tuner, const std::vector<ReuseCase>& cases, Measured& measured) {
  Profiled profiled{.sensitivity = {.levels = kLevels, .loss = {}}, .errors = {}};
  ReuseSensitivity& s = profiled.sensitivity;
  ProgressBar bar("profiling layers");
  for (int32_t i = 0; i < static_cast<int32_t>(cases.size()); ++i) {
    const OrderedJson* line = measured.find("profiled", i);
    if (line == nullptr) {
      const ReuseTuner::Profile found = tuner.profile(cases[static_cast<size_t>(i)], kLevels);
      line = &measured.add({{"profiled", i}, {"loss", found.loss}, {"errors", error_json(found.errors)}});
    }
    const std::vector<KvError> errors = read_errors((*line)["errors"]);
    profiled.errors.resize(errors.size());
    for (size_t e = 0; e < errors.size(); ++e) profiled.errors[e].add(errors[e]);
    const auto loss = (*line)["loss"].get<std::vector<std::vector<double>>>();
    if (s.loss.empty()) s.loss.assign(loss.size(), std::vector<double>(kLevels.size(), 0));
    for (size_t l = 0; l < loss.size(); ++l) {
      for (size_t r = 0; r < kLevels.size(); ++r) s.loss[l][r] += loss[l][r] / static_cast<double>(cases.size());
    }
    bar.update(i + 1, std::ssize(cases));
    if (interrupted()) throw Interrupted();
  }
  return profiled;
}

void add(const ReuseTuner::Comparison& found, ReuseAgreement& a) {
  a.kl = (a.kl * a.n_cases + found.kl) / (a.n_cases + 1);
  ++a.n_cases;
  a.n_equal += found.equal ? 1 : 0;
}

// Counts equal answers into the plan.
void compare(ReuseTuner& tuner, const std::vector<ReuseCase>& cases, Measured* measured, ReusePlan& plan) {
  plan.one = plan.several = plan.several_looking = {};
  ProgressBar bar("comparing answers");
  for (int32_t i = 0; i < static_cast<int32_t>(cases.size()); ++i) {
    const ReuseCase& c = cases[static_cast<size_t>(i)];
    const bool several = c.images.size() > 1;
    const auto under = [&](const char* what, const ReuseChooserPtr& chooser) {
      const OrderedJson* line = measured != nullptr ? measured->find(what, i) : nullptr;
      if (line != nullptr) {
        return ReuseTuner::Comparison{.equal = (*line)["equal"].get<bool>(), .kl = (*line)["kl"].get<double>()};
      }
      const ReuseTuner::Comparison found = tuner.compare(c, chooser);
      if (measured != nullptr) measured->add({{what, i}, {"equal", found.equal}, {"kl", found.kl}});
      return found;
    };
    add(under("compared", planned_chooser(plan)), several ? plan.several : plan.one);
    if (several && !plan.looking.empty()) {
      add(under("looked", parse_reuse_chooser(plan.looking)), plan.several_looking);
    }
    bar.update(i + 1, std::ssize(cases));
    if (interrupted()) throw Interrupted();
  }
}

std::vector<double> shares_of(const ReuseSensitivity& s, const std::vector<size_t>& levels) {
  std::vector<double> shares;
  for (const size_t l : levels) shares.push_back(s.levels[l]);
  return shares;
}

std::string row(const char* name, const ReuseSensitivity& s, const std::vector<size_t>& levels) {
  std::string text = format("%-7s loss %.6g, mean share %.4f:", name, plan_loss(s, levels),
                            RecomputePlan(shares_of(s, levels)).mean());
  for (const double share : shares_of(s, levels)) text += format(" %g", share);
  return text + "\n";
}

std::string told(const ReuseAgreement& a, const std::string& of) {
  return format("%s: %d of %d answers equal (%.1f %%), KL %.2g\n", of.c_str(), a.n_equal, a.n_cases, 100 * a.share(),
                a.kl);
}

std::string told(const ReusePlan& plan) {
  std::string text = told(plan.one, "one image") + told(plan.several, "several images");
  if (!plan.looking.empty()) text += told(plan.several_looking, "several images, " + plan.looking);
  return text;
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

// The paper's Fig. 3: what recomputing each layer is worth.
std::string page(const Profiled& profiled, const std::string& text) {
  const ReuseSensitivity& s = profiled.sensitivity;
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
  const std::string chart = line_chart(lines, {.x_label = "layer",
                                               .y_label = "squared error of the logits",
                                               .x_ticks = ticks,
                                               .y_high = top > 0 ? top : 1,
                                               .percent_x = false,
                                               .percent_y = false,
                                               .log_x = false});
  return html_page("What a layer's recomputation is worth",
                   "<p>Images whose KV comes from other prompts; one layer "
                   "has the right KV of their first tokens, all others load it (arXiv:2512.12977, Fig. 3).</p>" +
                       chart + "<pre>" + escape_html(text) + "</pre>" + error_charts(profiled.errors));
}

void tune(const TuneFlags& flags) {
  const ImageKvForm form = image_form(flags.model.cache);
  if (!form.keeps_all()) {
    throw Error(ErrorCode::kInput,
                "--cache-keep: layers are profiled with all of a picture's KV; `vlcache verify reuse` measures a plan "
                "with some of it");
  }
  // The cases that are compared are not those that were profiled.
  const std::vector<ReuseCase> cases =
      make_reuse_cases(load_samples(flags), flags.profiled + flags.compared, flags.seed);
  const auto middle = cases.begin() + flags.profiled;
  watch_interrupts();
  const Checkpoint checkpoint(flags.model.model_dir);
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint);
  const auto begin = Clock::now();
  const std::filesystem::path path =
      flags.output.empty() ? checkpoint.companion(kReusePlanName) : std::filesystem::path(flags.output);
  ReusePlan plan{.model = checkpoint.fingerprint(),
                 .form = form.name(),
                 .shares = {},
                 .one = {},
                 .several = {},
                 .looking = flags.looking,
                 .several_looking = {}};
  if (!plan.looking.empty()) parse_reuse_chooser(plan.looking);
  const OrderedJson settings{{"model", plan.model},          {"data", flags.data + flags.images},
                             {"target", flags.target},       {"profiled", flags.profiled},
                             {"compared", flags.compared},   {"max_tokens", flags.max_tokens},
                             {"looking", flags.looking},     {"seed", flags.seed},
                             {"dtype", flags.model.dtype},   {"kv_dtype", flags.model.kv_dtype},
                             {"error_shares", kErrorShares}, {"form", plan.form}};
  Measured measured(path.string() + ".partial", settings);
  ReuseTuner tuner(*engine, flags.max_tokens);
  const Profiled profiled = profile(tuner, {cases.begin(), middle}, measured);
  const ReuseSensitivity& s = profiled.sensitivity;
  const std::vector<size_t> greedy = solve_greedily(s, flags.target), exact = solve_exactly(s, flags.target);
  plan.shares = shares_of(s, exact);
  std::string text = row("greedy", s, greedy) + row("exact", s, exact);
  std::fputs(text.c_str(), stderr);
  compare(tuner, {middle, cases.end()}, &measured, plan);
  const std::string found = told(plan);
  std::fputs(found.c_str(), stderr);
  write_file(path, reuse_plan_json(plan));
  std::filesystem::path html = path;
  write_file(html.replace_extension(".html"), page(profiled, text + found));
  measured.remove();
  std::fprintf(stderr, "%s and %s, %.0f s\n", path.string().c_str(), html.string().c_str(), ms_since(begin) / 1000);
}

void verify(const TuneFlags& flags) {
  const std::vector<ReuseCase> cases = make_reuse_cases(load_samples(flags), flags.compared, flags.seed);
  const Checkpoint checkpoint(flags.model.model_dir);
  const std::filesystem::path path =
      flags.plan.empty() ? checkpoint.companion(kReusePlanName) : std::filesystem::path(flags.plan);
  ReusePlan plan = parse_reuse_plan(read_text_file(path), path.string());
  watch_interrupts();
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint);
  ReuseTuner tuner(*engine, flags.max_tokens);
  compare(tuner, cases, nullptr, plan);
  std::fputs(told(plan).c_str(), stdout);
}

std::shared_ptr<TuneFlags> add_reuse_flags(const Command& command) {
  auto flags = std::make_shared<TuneFlags>();
  add_model_flags(command, flags->model, {.policy = false});
  command.add("--data", flags->data, "questions about pictures, as `eval` takes them").value_name("FILE.jsonl");
  command.add("--images", flags->images, "pictures, about which built-in questions are asked").value_name("DIR");
  command.add("--compare", flags->compared, "cases whose answers are compared").range(1, 1 << 20).show_default();
  command.add("-n,--max-tokens", flags->max_tokens, "of an answer").range(1, 4096).show_default();
  command.add("--seed", flags->seed, "of the choice of cases").show_default();
  return flags;
}

}  // namespace

void add_tune_reuse_command(const Command& tune_command) {
  const Command command = tune_command.add_command(
      "reuse", "how much of a reused image each layer recomputes, and how often answers stay the same");
  const auto flags = add_reuse_flags(command);
  command.add("--target", flags->target, "mean share of a picture's tokens that is computed")
      .range(0.0, 1.0)
      .show_default();
  command.add("--profile", flags->profiled, "cases that layers are profiled on").range(1, 1 << 20).show_default();
  command
      .add("--several", flags->looking,
           "chooser that is measured beside the plan for prompts with several pictures; \"\": none")
      .value_name("CHOOSER")
      .show_default();
  command.add("-o,--output", flags->output, "the plan (default: reuse_plan.json in the model's folder)")
      .value_name("FILE");
  command.footer("Example: vlcache tune reuse -m models/tinydoc --data questions.jsonl");
  command.run([flags] { tune(*flags); });
}

void add_verify_command(const Command& app) {
  const Command verify_command = app.add_command("verify", "measure again what a plan says of itself");
  verify_command.require_command();
  const Command command = verify_command.add_command("reuse", "how often answers stay the same under a reuse plan");
  const auto flags = add_reuse_flags(command);
  command.add("--reuse-plan", flags->plan, "the plan (default: reuse_plan.json in the model's folder)")
      .value_name("FILE");
  command.run([flags] { verify(*flags); });
}

}  // namespace vlcache
