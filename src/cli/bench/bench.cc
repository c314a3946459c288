// `vlcache bench`: tokens/s of prefill and decode, with the share of the machine's limit.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include "api/kv_codec_choice.h"
#include "base/error.h"
#include "base/format.h"
#include "base/os/machine.h"
#include "base/os/threads.h"
#include "cli/bench/bench_engine.h"
#include "cli/bench/bench_page.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/bench_runner.h"
#include "cli/flags/codec_flags.h"
#include "cli/terminal/progress.h"

namespace vlcache {
namespace {

struct BenchFlags {
  ModelFlags model;
  std::vector<std::string> weights{"auto"}, codecs{"auto"};
  std::vector<std::string> policies{"full"};
  std::string random_weights;
  std::vector<std::string> images;  // "1280x800"
  std::vector<int> prompts{512}, gens{64}, depths{0}, batches{1}, tiles{0}, threads;
  int repetitions = 3, shared_depth = 0;
  std::string fill = "prefill", output = "md";
  uint64_t seed = 1;
};

// The subject of a comparison: a model in one form, with one codec of KV and one policy.
struct Contender {
  Engine& engine;
  PolicyPtr policy;
};

// The ratio of the times of reading weights and KV at the same bandwidth.
double predicted_speed_up(const Contender& one, BenchResult result, const Contender& first, const BenchResult& beside) {
  bool by_bandwidth = false;
  result.limits = beside.limits;
  return limit_tokens_per_s(one.engine, result, by_bandwidth) / limit_tokens_per_s(first.engine, beside, by_bandwidth);
}

// All cases with one depth and batch size: they share a filled cache.
void run_group(std::span<const Contender> contenders, const BenchFlags& flags, BenchReport base,
               const std::vector<BenchCase>& cases, std::vector<BenchReport>& out) {
  if (cases.empty()) return;
  const auto fill = flags.fill == "random" ? BenchRunner::Fill::kRandom : BenchRunner::Fill::kPrefill;
  std::vector<BenchRunner> runners;
  for (const auto& [engine, policy] : contenders) runners.emplace_back(engine, policy, fill, flags.seed);
  ProgressBar bar(cases[0].n_tiles > 0 ? "measuring tiles"
                                       : format("measuring at depth %d, batch %d", cases[0].n_depth, cases[0].n_seqs));
  const int64_t n_runs = std::ssize(runners) * std::ssize(cases) * (flags.repetitions + 1);
  int64_t n_done = 0;
  bar.update(n_done, n_runs);
  const auto results =
      BenchRunner::run_in_turn(runners, cases, flags.repetitions, [&] { bar.update(++n_done, n_runs); });
  for (size_t c = 0; c < cases.size(); ++c) {
    for (size_t i = 0; i < runners.size(); ++i) {
      base.kv_mode = contenders[i].policy->name();
      base.weights = weight_choice_name(contenders[i].engine.options().weights.text);
      base.codec = default_codec(contenders[i].engine, *contenders[i].policy);
      base.result = results[i][c];
      base.speed_up = results[i][c].avg_ts / results[0][c].avg_ts;
      base.predicted = base.result.by_bandwidth && results[0][c].by_bandwidth
                           ? predicted_speed_up(contenders[i], base.result, contenders[0], results[0][c])
                           : 0;
      out.push_back(base);
    }
  }
}

// "1280x800", its sides rounded to the nearest multiples of a token's.
BenchCase image_case(const VisionConfig& vision, const std::string& size) {
  const auto [width, height] = parse_pixel_size(size, "bench: --images");
  const auto cell = static_cast<int32_t>(vision.cell());
  const auto rounded = [cell](int32_t side) { return std::max(1, (side + cell / 2) / cell) * cell; };
  return {.n_tiles = 1, .width = rounded(width), .height = rounded(height)};
}

// Cases of tiles have no depth and no batch size.
std::vector<BenchCase> tile_cases(const Engine& engine, const BenchFlags& flags) {
  std::vector<BenchCase> cases;
  for (int n : flags.tiles) {
    if (n > 0) cases.push_back({.n_tiles = n});
  }
  const ModelConfig& config = engine.model().config();
  const bool any_size = config.vision && config.vision->traits.any_grid;
  if (!flags.images.empty() && !any_size) {
    throw Error(ErrorCode::kInput,
                "bench: --images needs a model that takes images of any size; use --tiles with " + config.model_type);
  }
  if (!cases.empty() && any_size) {
    throw Error(ErrorCode::kInput, "bench: " + config.model_type + " takes images of any size, no tiles; use --images");
  }
  if (!cases.empty() && !config.vision) {
    throw Error(ErrorCode::kInput,
                "bench: --tiles needs a vision model; this one (" + config.model_type + ") takes text only");
  }
  for (const std::string& size : flags.images) cases.push_back(image_case(*config.vision, size));
  return cases;
}

// One model for each of --weights with each of --kv-codec, all held at once. Throws Error(kMemory) where the machine
// does not grant that.
std::vector<std::unique_ptr<Engine>> engines_of(BenchFlags& flags) {
  int64_t bytes = 0;
  std::string forms;
  std::vector<ModelFlags> each;
  for (const std::string& form : flags.weights) {
    for (const std::string& codec : flags.codecs) {
      each.push_back(flags.model);
      each.back().weights = form;
      each.back().kv_codec = codec;
    }
    forms += " --weights " + form;
  }
  if (flags.codecs.size() > 1) {
    for (const std::string& codec : flags.codecs) forms += " --kv-codec " + codec;
  }
  for (size_t i = 0; each.size() > 1 && i < each.size(); ++i) {
    bytes += bench_weight_bytes("bench", each[i], flags.random_weights);
  }
  if (bytes > usable_memory()) {
    throw Error(
        ErrorCode::kMemory,
        format("bench:%s: the weights of all of these take %.1f GB together, more than the %.1f GB of memory that "
               "this machine grants; use one form at a time",
               forms.c_str(), static_cast<double>(bytes) / 1e9, static_cast<double>(usable_memory()) / 1e9));
  }
  std::vector<std::unique_ptr<Engine>> engines;
  for (const ModelFlags& model : each)
    engines.push_back(bench_engine("bench", model, flags.random_weights, flags.seed));
  return engines;
}

// Before weights are read.
void check_codecs(const BenchFlags& flags, std::span<const PolicyPtr> policies) {
  for (const std::string& name : flags.codecs) {
    const std::optional<KvCodec> codec = joined_kv_codec(name, flags.model.kv_dtype);
    for (const PolicyPtr& policy : policies) {
      if (codec) check_codec_suits(*codec, *policy);
    }
  }
}

bool is_file(const std::string& output) { return std::filesystem::path(output).extension() == ".csv"; }

void run(BenchFlags flags) {
  if (is_file(flags.output)) make_folder_of(flags.output);
  const Checkpoint checkpoint = checkpoint_of(flags.model);  // without a place if the weights are random
  std::vector<PolicyPtr> policies;
  for (const std::string& kv : flags.policies) {
    policies.push_back(parse_policy(kv, takes_budget(kv) ? flags.model.kv_budget : "", &checkpoint));
  }
  check_codecs(flags, policies);
  std::vector<BenchReport> reports;
  if (flags.threads.empty()) flags.threads = {0};
  for (int threads : flags.threads) {
    flags.model.threads = threads;
    const std::vector<std::unique_ptr<Engine>> engines = engines_of(flags);
    const Engine& engine = *engines[0];
    std::vector<Contender> contenders;
    for (const auto& each : engines) {
      for (const PolicyPtr& policy : policies) contenders.push_back({*each, policy});
    }
    BenchReport base;
    base.model = flags.random_weights.empty() ? flags.model.model_dir
                                              : std::filesystem::path(flags.random_weights).stem().string();
    base.threads = n_threads();
    base.dtype = engine.model().compute_dtype();
    run_group(contenders, flags, base, tile_cases(engine, flags), reports);
    for (int depth : flags.depths) {
      for (int batch : flags.batches) {
        std::vector<BenchCase> cases;
        const int shared = std::min(flags.shared_depth, depth);
        for (int p : flags.prompts) {
          if (p > 0) cases.push_back({.n_prompt = p, .n_depth = depth, .n_seqs = batch, .n_shared = shared});
        }
        for (int n : flags.gens) {
          if (n > 0) cases.push_back({.n_gen = n, .n_depth = depth, .n_seqs = batch, .n_shared = shared});
        }
        run_group(contenders, flags, base, cases, reports);
      }
    }
  }
  if (!is_file(flags.output)) {
    std::fputs(bench_text(reports, flags.output).c_str(), stdout);
    return;
  }
  write_file(flags.output, bench_text(reports, "csv"));
  const std::string chart = bench_chart(reports);
  if (!chart.empty()) write_file(std::filesystem::path(flags.output).replace_extension(".svg"), chart);
  std::fputs(bench_text(reports, "md").c_str(), stdout);
}

}  // namespace

void add_bench_command(const Command& app) {
  auto flags = std::make_shared<BenchFlags>();
  const Command command = app.add_command("bench", "Measure tokens/s of prefill and decode at several context lengths");
  add_model_flags(command, flags->model, {.needs_model = false, .policy = false});
  command.add("--kv,--kv-mode", flags->policies, "KV policy to compare, in alternating runs (one per use)")
      .value_name("POLICY")
      .one_per_use()
      .transform(policy_text)
      .show_default();
  command.add("--kv-budget", flags->model.kv_budget, "KV budget of the policies that need one (default 0.1)")
      .value_name("BUDGET");
  command.remove(command.flag("--threads"));
  command.remove(command.flag("--weights"));
  command.remove(command.flag("--kv-codec"));
  command
      .add("--weights", flags->weights,
           "Storage of the language model's matrices to compare, in alternating runs (one per use; memory holds the "
           "model in all of them); auto: as in the checkpoint. See `run --weights`")
      .one_of({"auto", "dense", "int8", "int4", "int4+", "bf16", "f32"})
      .one_per_use()
      .show_default()
      .group("Machine")
      .share_environment();
  command
      .add("--kv-codec", flags->codecs,
           "Form of the KV cache to compare, in alternating runs (one per use; memory holds the model once for each). "
           "See `run --kv-codec`")
      .value_name("auto|bf16|f32|int8")
      .check(fault_of_codec)
      .one_per_use()
      .show_default()
      .group("Machine")
      .share_environment();
  const auto list = [&](const char* names, std::vector<int>& values, const char* help, int low = 0,
                        int high = INT32_MAX) {
    return command.add(names, values, help).delimiter(',').value_name("N,..").show_default().range(low, high);
  };
  command
      .add("--random-weights", flags->random_weights,
           "config.json whose shape is measured with random weights, instead of --model (default: none)")
      .value_name("FILE");
  list("-p,--n-prompt", flags->prompts, "Prefill tests: prompt lengths in tokens (0: none)");
  list("-n,--n-gen", flags->gens, "Decode tests: numbers of generated tokens (0: none)");
  list("-d,--n-depth", flags->depths, "Tokens in the KV cache before each test");
  list("-b,--batch", flags->batches, "Sequences computed together", 1, 4096);
  command
      .add("--shared-depth", flags->shared_depth,
           "Tokens of --n-depth whose KV all sequences of a --batch have in common, at most")
      .value_name("N")
      .range(0, INT32_MAX)
      .show_default();
  list("--tiles", flags->tiles, "Vision tests: numbers of tiles through the encoder (0: none)");
  command
      .add("--images", flags->images,
           "Vision tests: pixel sizes of images through the encoder, for models that accept images of any size "
           "(default: none)")
      .delimiter(',')
      .value_name("WxH,..");
  list("-t,--threads", flags->threads, "Compute threads (0, the default: one per CPU that affinity and cgroup grant)",
       0, 1024)
      .share_environment();
  command.add("-r,--repetitions", flags->repetitions, "Repetitions of each test").range(1, 1000).show_default();
  command.add("--fill", flags->fill, "Fill the KV cache up to --n-depth by prefilling, or with random K and V")
      .one_of({"prefill", "random"})
      .show_default();
  command
      .add("-o,--output", flags->output,
           "Format of the table: md, csv or json; or FILE.csv, which also writes a chart FILE.svg")
      .check([](const std::string& text) -> std::string {
        if (text == "md" || text == "csv" || text == "json" || is_file(text)) return "";
        return "expected md, csv, json or FILE.csv, found '" + text + "'";
      })
      .show_default();
  command.add("--seed", flags->seed, "Seed of the random weights, tokens and K and V").show_default();
  command.footer(
      "Example: vlcache bench -m DIR -p 512,2048 -n 64 -d 0,4096,16384 -o md\n"
      "tokens/s of a vision test counts rows of features. % of limit is the share of the read bandwidth or FLOP/s that "
      "the same threads reach in probes before and after every run. P, of decoding after a depth: the speed if a step "
      "took its time at depth 0, measured beside it, and that of reading its KV at the probes' bandwidth.");
  command.allow_command();
  add_bench_reuse_command(command);
  add_bench_page_command(command);
  command.run([flags, command] {
    if (!command.was_given_command()) run(*flags);
  });
}

}  // namespace vlcache
