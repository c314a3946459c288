// `vlcache tune reuse` and `vlcache verify reuse`: how much of a reused image a model must recompute, and whether its
// answers stay the same.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "analysis/reuse_report.h"
#include "analysis/reuse_tuner.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "base/sha256.h"
#include "cli/commands/reuse_measuring.h"
#include "cli/flags/codec_flags.h"
#include "cli/flags/command.h"
#include "cli/terminal/progress.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct TuneFlags {
  ModelFlags model;
  std::string data, images, output, plan;
  std::string looking = "asked:r=0.15";
  double target = 0.025, margin = GateRule{}.margin;
  int profiled = 4, compared = 1000;
  int max_tokens = 64;
  uint64_t seed = 1;
};

std::vector<EvalSample> load_samples(const TuneFlags& flags) {
  if (flags.data.empty() == flags.images.empty()) {
    throw Error(ErrorCode::kInput, "expected --data FILE.jsonl or --images DIR, found " +
                                       std::string(flags.data.empty() ? "neither" : "both"));
  }
  if (!flags.data.empty())
    return load_dataset(flags.data, {.metric = Metric::kExact, .answers = Answers::kOptional}).samples;
  std::vector<std::filesystem::path> images;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(flags.images, error)) {
    const std::string extension = entry.path().extension().string();
    constexpr std::string_view kKnown[] = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"};
    if (std::ranges::find(kKnown, extension) != std::end(kKnown)) images.push_back(entry.path());
  }
  if (error) throw Error(ErrorCode::kNotFound, flags.images + ": " + error.message());
  std::ranges::sort(images);
  return questions_about(images);
}

// Names the cases in a file of measurements.
std::string digest_of(const std::vector<ReuseCase>& cases) {
  Sha256 hash;
  const auto add = [&](const std::string& text) {
    hash.add(std::ssize(text));
    hash.add(std::as_bytes(std::span(text)));
  };
  for (const ReuseCase& c : cases) {
    for (const std::filesystem::path& image : c.images) add(image.string());
    for (const std::string& text : {c.before, c.question, c.first_before, c.first_question}) add(text);
    for (const std::string& text : c.right_answers) add(text);
    hash.add(static_cast<int64_t>(c.n_new));
  }
  return hex(hash.finish());
}

// Loads with a bar from the start on.
std::unique_ptr<Engine> load(const ModelFlags& flags, const Checkpoint& checkpoint, Progress& progress) {
  EngineOptions options = engine_options(flags, checkpoint);
  options.progress = [&](int64_t done, int64_t total) { progress.update("loading", done, total); };
  options.packed.say = [&, say = options.packed.say](const std::string& line) {
    progress.pause();
    say(line);
  };
  return Engine::load(checkpoint, options);
}

// Whether no rule is left that more cases could still open the gate for.
bool fails(const ReusePlan& plan, const GateRule& rule) {
  const PlanVerdict v = judge(plan, rule);
  const auto no = [](const GateVerdict& verdict) { return verdict.answer == GateVerdict::Answer::kNo; };
  return no(v.one) || (no(v.several) && (plan.looking.empty() || no(v.several_looking)));
}

// What a plan costs, in the counts that the gate uses.
int64_t cost(const ReusePlan& plan) {
  const auto of = [](const ReuseEvidence& e) {
    return e.scores ? e.scores->n_lost - e.scores->n_gained : e.answers.n_changed;
  };
  return of(plan.one) + of(plan.several);
}

// The measured plans, the documented schedule first; the profile, if that failed.
struct Tuned {
  std::vector<MeasuredPlan> plans;
  size_t chosen = 0;
  ReuseMeasuring::Profiled profiled;
};

Tuned measure(const TuneFlags& flags, const Checkpoint& checkpoint, Engine& engine, ReusePlan plan,
              std::span<const ReuseCase> profiled, ReuseMeasuring& measuring) {
  const GateRule rule{.margin = flags.margin};
  Tuned tuned;
  const ReuseChooserPtr schedule = parse_reuse_chooser(format("vlcache:r=%g", flags.target));
  plan.shares = schedule->plan(engine.kv_shape().n_layers(), 1).shares();
  measuring.compare("schedule", plan);
  measuring.measure_floor(flags.model, checkpoint);
  measuring.fill("schedule", plan);
  tuned.plans.push_back({"documented schedule", plan});
  if (!fails(plan, rule) || profiled.empty()) return tuned;
  tuned.profiled = measuring.profile(profiled);
  const ReuseSensitivity& s = tuned.profiled.sensitivity;
  const std::vector<size_t> levels = solve_exactly(s, flags.target);
  for (size_t l = 0; l < levels.size(); ++l) plan.shares[l] = s.levels[levels[l]];
  measuring.compare("profiled", plan);
  measuring.fill("profiled", plan);
  tuned.plans.push_back({"plan by profile", plan});
  tuned.chosen = cost(plan) < cost(tuned.plans[0].plan) ? 1 : 0;
  return tuned;
}

void tune(const TuneFlags& flags) {
  const ImageKvForm form = image_form(flags.model.cache);
  if (!form.keeps_all()) {
    throw Error(ErrorCode::kInput,
                "--cache-keep: layers are profiled with all of an image's KV; `vlcache verify reuse` measures a plan "
                "with some of it");
  }
  if (!flags.looking.empty()) parse_reuse_chooser(flags.looking);
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  const std::filesystem::path path =
      flags.output.empty() ? checkpoint.companion(kReusePlanName) : std::filesystem::path(flags.output);
  make_folder_of(path);  // before anything is computed
  const auto begin = Clock::now();
  watch_interrupts();
  Progress progress;
  progress.update("loading", 0, 1);
  const std::vector<ReuseCase> cases =
      make_reuse_cases(load_samples(flags), flags.profiled + flags.compared, flags.seed);
  // No case is both compared and profiled; few are profiled.
  const size_t n_profiled = std::min(static_cast<size_t>(flags.profiled), (cases.size() + 9) / 10);
  const std::span all(cases);
  const std::span compared =
      all.subspan(n_profiled, std::min(cases.size() - n_profiled, static_cast<size_t>(flags.compared)));
  const KvCodec codec = default_codec(flags.model, checkpoint);
  ReusePlan plan{
      .model = checkpoint.fingerprint(),
      .form = form.name(),
      .weights = weights_form(flags.model, checkpoint),
      .kv_codec = codec == value_codec(compute_dtype(flags.model, checkpoint)) ? std::nullopt : std::optional(codec),
      .shares = {},
      .one = {},
      .several = {},
      .looking = flags.looking,
      .several_looking = {}};
  const OrderedJson settings{{"model", plan.model},
                             {"cases", digest_of(cases)},
                             {"target", flags.target},
                             {"profiled", n_profiled},
                             {"looking", flags.looking},
                             {"max_tokens", flags.max_tokens},
                             {"dtype", flags.model.dtype},
                             {"form", plan.form},
                             {"weights", plan.weights},
                             {"kv_dtype", flags.model.kv_dtype},
                             {"kv_codec", kv_codec_setting(flags.model, checkpoint)},
                             {"isa", flags.model.max_isa},
                             {"error_shares", kErrorShares},
                             {"chunk", flags.model.prefill_chunk}};
  const std::filesystem::path partial = path.string() + ".partial";
  MeasuredCases measured(partial, settings);
  const ExitAfterInterrupt exit("interrupted; the same command continues from " + partial.string());
  const std::unique_ptr<Engine> engine = load(flags.model, checkpoint, progress);
  ReuseTuner tuner(*engine, flags.max_tokens);
  ReuseMeasuring measuring(tuner, compared, measured, progress);
  const Tuned tuned = measure(flags, checkpoint, *engine, plan, all.first(n_profiled), measuring);
  progress.pause();
  const GateRule rule{.margin = flags.margin};
  const MeasuredPlan& chosen = tuned.plans[tuned.chosen];
  write_file(path, reuse_plan_json(chosen.plan));
  std::filesystem::path html = path;
  write_file(html.replace_extension(".html"),
             reuse_page(tuned.plans, tuned.chosen, rule, tuned.profiled.sensitivity, tuned.profiled.errors));
  measured.remove_file();
  std::fputs(verdict_words(chosen.plan, rule).c_str(), stdout);
  std::fprintf(stderr, "%s (%s) and %s, %.0f s\n", path.string().c_str(), chosen.name.c_str(), html.string().c_str(),
               ms_since(begin) / 1000);
}

void verify(const TuneFlags& flags) {
  watch_interrupts();
  Progress progress;
  progress.update("loading", 0, 1);
  const std::vector<ReuseCase> cases = make_reuse_cases(load_samples(flags), flags.compared, flags.seed);
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  const std::filesystem::path path =
      flags.plan.empty() ? checkpoint.companion(kReusePlanName) : std::filesystem::path(flags.plan);
  ReusePlan plan = parse_reuse_plan(read_text_file(path), path.string());
  const ExitAfterInterrupt exit("interrupted");
  const std::unique_ptr<Engine> engine = load(flags.model, checkpoint, progress);
  ReuseTuner tuner(*engine, flags.max_tokens);
  MeasuredCases measured;
  ReuseMeasuring measuring(tuner, cases, measured, progress);
  measuring.compare("plan", plan);
  measuring.measure_floor(flags.model, checkpoint);
  measuring.fill("plan", plan);
  progress.pause();
  std::fputs(verdict_words(plan, {.margin = flags.margin}).c_str(), stdout);
}

std::shared_ptr<TuneFlags> add_reuse_flags(const Command& command) {
  auto flags = std::make_shared<TuneFlags>();
  add_model_flags(command, flags->model, {.policy = false});
  command
      .add("--data", flags->data,
           "JSON lines of questions about images, in the format of `eval --data` (default: none)")
      .value_name("FILE.jsonl");
  command.add("--images", flags->images, "Folder of images, about which built-in questions are asked (default: none)")
      .value_name("DIR");
  command
      .add("--compare", flags->compared,
           "Number of questions whose answers with and without reuse are compared, each once")
      .range(1, 1 << 20)
      .show_default();
  command
      .add("--reuse-margin", flags->margin,
           "Tolerated share of changed answers (or lost right answers), above numerical noise; compared with the upper "
           "95 % bound of the measurement")
      .range(0.0001, 1.0)
      .show_default();
  command.add("-n,--max-tokens", flags->max_tokens, "Maximum number of tokens of an answer")
      .range(1, 4096)
      .show_default();
  command.add("--seed", flags->seed, "Seed of the random choice of questions").show_default();
  return flags;
}

}  // namespace

void add_tune_reuse_command(const Command& tune_command) {
  const Command command = tune_command.add_command("reuse",
                                                   "Measure whether answers stay the same when images are reused, and "
                                                   "choose the share of tokens to recompute per layer");
  const auto flags = add_reuse_flags(command);
  command.add("--target", flags->target, "Mean share of an image's tokens that the plan recomputes")
      .range(0.0, 1.0)
      .show_default();
  command
      .add("--profile", flags->profiled,
           "Maximum number of questions used to profile layers if the documented schedule fails, at most a tenth of "
           "all (0: no profiling)")
      .range(0, 1 << 20)
      .show_default();
  command
      .add("--several", flags->looking,
           "Reuse method to measure beside the plan, for prompts with several images; \"\": none")
      .value_name("METHOD")
      .show_default();
  command.add("-o,--output", flags->output, "File of the plan (default: reuse_plan.json in the model's folder)")
      .value_name("FILE");
  command.footer(
      "Example: vlcache tune reuse -m models/tinydoc --data models/tinydoc/demo/questions.jsonl -o "
      "out/reuse_plan.json");
  command.run([flags] { tune(*flags); });
}

void add_verify_command(const Command& app) {
  const Command verify_command = app.add_command("verify", "Repeat the measurement of a reuse plan");
  verify_command.require_command();
  const Command command =
      verify_command.add_command("reuse", "Measure how often answers stay the same under a reuse plan");
  const auto flags = add_reuse_flags(command);
  command.add("--reuse-plan", flags->plan, "Plan to measure again (default: reuse_plan.json in the model's folder)")
      .value_name("FILE");
  command.run([flags] { verify(*flags); });
}

}  // namespace vlcache
