// `vlcache eval`: how correct the answers stay, by policy and budget, on the user's own questions.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "analysis/dataset.h"
#include "analysis/eval_report.h"
#include "analysis/eval_runner.h"
#include "analysis/eval_table.h"
#include "analysis/verdicts.h"
#include "api/request_builder.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/flags/codec_flags.h"
#include "cli/flags/command.h"
#include "cli/flags/generate_flags.h"
#include "cli/terminal/progress.h"

namespace vlcache {
namespace {

struct EvalFlags {
  ModelFlags model;
  std::string data;
  std::vector<std::string> policies{"draft", "vl-cache", "pyramidkv", "zipcache_score", "h2o", "streaming"};
  std::vector<std::string> budgets{"0.4", "0.2", "0.1", "0.05"};
  std::string metric = "exact";
  std::string output;
  int samples = 0;
  int kl_tokens = 0;
  uint64_t seed = 0;
  double find = 0;
  FieldFlags request;
  bool restart = false;
};

std::vector<EvalChoice> choices_of(const EvalFlags& flags, const Checkpoint& checkpoint) {
  std::vector<EvalChoice> choices{{"full", "", parse_policy("full")}};
  for (const std::string& kv : flags.policies) {
    if (!takes_budget(kv)) {
      choices.push_back({kv, "", parse_policy(kv, "", &checkpoint)});
      continue;
    }
    for (const std::string& budget : flags.budgets)
      choices.push_back({kv, budget, parse_policy(kv, budget, &checkpoint)});
  }
  return choices;
}

// Settings that must be the same for an evaluation to be resumed.
nlohmann::ordered_json settings(const EvalFlags& flags, const Checkpoint& checkpoint, const RequestFields& fields,
                                const std::vector<EvalChoice>& choices) {
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  for (const EvalChoice& c : choices) names.push_back({c.policy->name(), c.budget});
  nlohmann::ordered_json settings = {{"model", flags.model.model_dir},
                                     {"data", flags.data},
                                     {"metric", flags.metric},
                                     {"dtype", flags.model.dtype},
                                     {"kv_dtype", flags.model.kv_dtype},
                                     {"kv_codec", kv_codec_setting(flags.model, checkpoint)},
                                     {"max_tokens", *fields.max_tokens},
                                     {"kl", flags.kl_tokens},
                                     {"seed", flags.seed},
                                     {"query_aware", *fields.query_aware ? "on" : "off"},
                                     {"choices", std::move(names)}};
  // Not in folders of older evaluations, which had none of these.
  if (flags.model.weights != "auto") settings["weights"] = flags.model.weights;
  if (flags.model.vision_weights != "auto") settings["vision_weights"] = flags.model.vision_weights;
  if (*fields.image_dedup >= 0) settings["image_dedup"] = {*fields.image_dedup, *fields.image_dedup_weights};
  return settings;
}

// The settings in a folder, with present names of policies.
nlohmann::ordered_json settings_in(const std::filesystem::path& path) {
  nlohmann::ordered_json settings = parse_ordered_json(read_text_file(path), path.string());
  if (!settings.is_object() || !settings.contains("choices") || !settings["choices"].is_array()) return settings;
  for (nlohmann::ordered_json& choice : settings["choices"]) {
    if (!choice.is_array() || choice.empty() || !choice[0].is_string()) continue;
    choice[0] = with_present_names(choice[0].get<std::string>());
  }
  return settings;
}

// The results on disk: settings.json and a line of samples.jsonl for every turn.
class ResultLog {
 public:
  ResultLog(std::filesystem::path folder, const nlohmann::ordered_json& settings, bool restart)
      : folder_(std::move(folder)) {
    const std::filesystem::path path = folder_ / "settings.json", samples = folder_ / "samples.jsonl";
    make_folder_of(samples);
    if (!restart && std::filesystem::exists(path)) {
      if (settings_in(path) != settings) {
        throw Error(ErrorCode::kInput, folder_.string() +
                                           ": holds results of other settings (settings.json); choose another folder "
                                           "with -o, or --restart");
      }
      if (std::filesystem::exists(samples)) read(samples);
    }
    write("settings.json", settings.dump(2) + "\n");
    file_.open(samples, std::ios::trunc);
    for (const EvalTurnResult& result : results_) file_ << to_json(result).dump() << "\n";
    flush();
  }

  const std::vector<EvalTurnResult>& results() const { return results_; }
  bool has(const std::string& id) const { return n_turns_.contains(id); }
  void add(std::vector<EvalTurnResult> turns) {
    for (EvalTurnResult& turn : turns) {
      file_ << to_json(turn).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
      ++n_turns_[turn.id];
      results_.push_back(std::move(turn));
    }
    flush();
  }
  void write(const std::string& name, const std::string& text) const { write_file(folder_ / name, text); }

 private:
  // A sample whose lines were incomplete when the program was killed is computed again.
  void read(const std::filesystem::path& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      try {
        results_.push_back(turn_from_json(nlohmann::ordered_json::parse(line)));
        ++n_turns_[results_.back().id];
      } catch (const nlohmann::ordered_json::exception&) {
      }
    }
    std::erase_if(results_, [&](const EvalTurnResult& r) { return n_turns_[r.id] < r.n_turns; });
    n_turns_.clear();
    for (const EvalTurnResult& r : results_) ++n_turns_[r.id];
  }
  void flush() {
    if (!file_.flush())
      throw Error(ErrorCode::kIo, (folder_ / "samples.jsonl").string() + ": writing failed (is the disk full?)");
  }

  std::filesystem::path folder_;
  std::vector<EvalTurnResult> results_;
  std::map<std::string, int32_t> n_turns_;  // of each sample
  std::ofstream file_;
};

// Policies that had nothing to decide: every answer was the full cache's.
std::string notes(const EvalTable& table) {
  std::string text;
  for (const EvalLine& line : table.lines) {
    if (line.n == 0 || line.n_ended < line.n) continue;
    text += line.kv + " " + line.budget +
            ": every answer ended before the policy acted; measure longer answers (--max-tokens), or draft, which "
            "acts before the first token\n\n";
  }
  return text;
}

void report(const EvalFlags& flags, const std::vector<EvalChoice>& choices, const std::vector<EvalSample>& samples,
            const ResultLog& log) {
  std::string markdown, verdicts;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const bool later : {false, true}) {
    EvalTable table = make_table(choices, log.results(), later, flags.find > 0 ? flags.find : EvalTable{}.goal);
    if (table.n_turns == 0) continue;
    table.model = flags.model.model_dir;
    table.data = flags.data;
    const std::string heading = "## " + std::to_string(table.n_turns) +
                                (later ? " later questions, after a first that decided what is kept" : " questions") +
                                "\n\n";
    markdown += heading + to_markdown(table) + "\n";
    json.push_back(to_json(table));
    log.write(later ? "table-later.csv" : "table.csv", to_csv(table));
    if (!later) log.write("report.html", eval_page(table, choices, log.results(), samples));
    markdown += notes(table);
    if (flags.find > 0) markdown += safe_budgets(table) + "\n";
    verdicts += (later ? "Later questions: " : "") + eval_verdict(table) + "\n";
  }
  markdown += verdicts;
  log.write("table.md", markdown);
  log.write("table.json", json.dump(1) + "\n");
  std::fputs(markdown.c_str(), stdout);
}

void run(const EvalFlags& flags) {
  const auto metric = metric_from_name(flags.metric);
  if (!metric)
    throw Error(ErrorCode::kInput, "--metric: expected one of " + metric_names() + ", found '" + flags.metric + "'");
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  std::vector<EvalChoice> choices = choices_of(flags, checkpoint);
  EvalDataset data = load_dataset(flags.data, {.metric = *metric});
  for (const std::string& problem : data.problems) std::fprintf(stderr, "left out: %s\n", problem.c_str());
  if (flags.samples > 0 && flags.samples < static_cast<int>(data.samples.size())) {
    std::mt19937_64 random(flags.seed);
    std::ranges::shuffle(data.samples, random);
    data.samples.resize(static_cast<size_t>(flags.samples));
  }
  const RequestFields fields = over(flags.request.fields(), fallback_fields(Front::kEval));
  ResultLog log(flags.output, settings(flags, checkpoint, fields, choices), flags.restart);
  watch_interrupts();
  std::vector<PolicyPtr> policies;
  for (const EvalChoice& choice : choices) policies.push_back(choice.policy);
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint, policies);
  EvalRunner runner(*engine, choices,
                    {.max_tokens = *fields.max_tokens,
                     .query_aware = *fields.query_aware,
                     .image = image_options(fields),
                     .n_kl_tokens = flags.kl_tokens});
  int64_t n_done = 0, n_failed = 0;
  {
    ProgressBar bar("evaluating");
    for (const EvalSample& sample : data.samples) {
      bar.update(n_done++, std::ssize(data.samples));
      if (interrupted()) break;
      if (log.has(sample.id)) continue;
      try {
        log.add(runner.run(sample));
      } catch (const Error& e) {
        bar.clear();
        std::fprintf(stderr, "left out: %s: %s\n", sample.id.c_str(), e.what());
        ++n_failed;
      }
    }
  }
  report(flags, choices, data.samples, log);
  if (!data.problems.empty() || n_failed > 0) {
    std::fprintf(stderr, "%zu broken lines and %lld samples that cannot be computed were left out\n",
                 data.problems.size(), static_cast<long long>(n_failed));
  }
  if (interrupted()) throw Interrupted();
}

}  // namespace

void add_eval_command(const Command& app) {
  auto flags = std::make_shared<EvalFlags>();
  const Command command = app.add_command("eval", "Measure how accurate answers stay under KV policies and budgets");
  add_model_flags(command, flags->model, {.policy = false});
  command
      .add("--data", flags->data,
           "File of JSON lines {images, question | turns, answer | answers, kind, metric, id}, or of `run --requests` "
           "with answers")
      .value_name("FILE")
      .required();
  command.add("--kv", flags->policies, "KV policy to evaluate (one per use)")
      .value_name("POLICY")
      .one_per_use()
      .transform(policy_text)
      .show_default();
  command.add("--kv-budget", flags->budgets, "KV budgets to evaluate with each policy")
      .value_name("LIST")
      .delimiter(',')
      .show_default();
  command.add("--metric", flags->metric, "Metric of lines that name none: " + metric_names()).show_default();
  command.add("--samples", flags->samples, "Number of lines to evaluate, drawn by --seed (0: all)")
      .not_negative()
      .show_default();
  command.add("--seed", flags->seed, "Seed of the drawn lines").show_default();
  for (const char* name : {"max_tokens", "query_aware", "image_dedup", "image_dedup_weights"}) {
    flags->request.add(command, request_field(name), Front::kEval);
  }
  command
      .add("--kl", flags->kl_tokens,
           "Also compare the first N tokens of each answer with the full cache's: their KL divergence (mean, median, "
           "99.9 % quantile), and how often the likeliest token is the same (0: not)")
      .value_name("N")
      .range(0, 1 << 16)
      .show_default();
  command
      .add("--find", flags->find,
           "Share of the full cache's right answers that a budget must keep; also lists each policy's smallest such "
           "budget (default: 0.98, without the list). Without a loss, 0.95 needs 59 questions, 0.98 149, 0.99 299")
      .value_name("SHARE")
      .range(0.0, 0.9999);
  command.add("-o,--output", flags->output, "Folder of the results; an interrupted evaluation resumes from it")
      .value_name("DIR")
      .required();
  command.add("--restart", flags->restart, "Discard earlier results in that folder");
  command.footer(
      "Example: vlcache eval -m models/tinydoc --data tests/fixtures/tinydoc/questions.jsonl --samples 100 --kv draft "
      "--find 0.95 -o out/eval");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
