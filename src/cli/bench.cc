// `vlcache bench`: tokens/s of prefill and decode, with the share of the machine's limit.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "base/threads.h"
#include "cli/bench_runner.h"
#include "cli/command.h"

namespace vlcache {
namespace {

struct BenchFlags {
  ModelFlags model;
  std::vector<std::string> policies{"full"};
  std::string random_weights;
  std::vector<int> prompts{512}, gens{64}, depths{0}, batches{1}, tiles{0}, threads;
  int repetitions = 3;
  std::string fill = "prefill", output = "md";
  uint64_t seed = 1;
};

struct Report {
  std::string model;
  int threads = 0;
  DType dtype = DType::kBF16;
  KvCodec codec = KvCodec::kBF16;
  std::string kv_mode;
  BenchResult result;
  double speed_up = 1, predicted = 0;  // beside the first policy; by the bytes that are read, 0: the limit is another
};

std::string test_name(const BenchCase& test) {
  if (test.n_tiles > 0) return "tiles" + std::to_string(test.n_tiles);
  std::string name = test.n_prompt > 0 ? "pp" + std::to_string(test.n_prompt) : "tg" + std::to_string(test.n_gen);
  if (test.n_depth > 0) name += " @ d" + std::to_string(test.n_depth);
  if (test.n_seqs > 1) name += " x " + std::to_string(test.n_seqs);
  return name;
}

std::string two_digits(double x) { return format("%.2f", x); }

// The ratio of the times that reading weights and KV takes at the same bandwidth.
double predicted_speed_up(const Engine& engine, BenchResult result, BenchResult beside) {
  bool by_bandwidth = false;
  result.limits = beside.limits;
  return limit_tokens_per_s(engine, result, by_bandwidth) / limit_tokens_per_s(engine, beside, by_bandwidth);
}

nlohmann::ordered_json to_json(const Report& r) {
  const BenchResult& b = r.result;
  return {{"model", r.model},
          {"n_prompt", b.test.n_prompt},
          {"n_gen", b.test.n_gen},
          {"n_tiles", b.test.n_tiles},
          {"n_depth", b.test.n_depth},
          {"n_seqs", b.test.n_seqs},
          {"n_threads", r.threads},
          {"dtype", dtype_name(r.dtype)},
          {"type_k", r.codec == KvCodec::kF32 ? "f32" : "bf16"},
          {"kv_mode", r.kv_mode},
          {"kept_share", b.kept_share},
          {"kv_bytes", b.kv_bytes},
          {"compress_ms", b.compress_ms},
          {"speed_up", r.speed_up},
          {"predicted_speed_up", r.predicted},
          {"avg_ts", b.avg_ts},
          {"stddev_ts", b.stddev_ts},
          {"samples_ts", b.tokens_per_s},
          {"limit_ts", b.limit_ts},
          {"limit_pct", b.limit_pct},
          {"limit", b.by_bandwidth ? "bandwidth" : "flops"},
          {"read_gb_s", b.limits.read_gb_s},
          {"bf16_tflops", b.limits.bf16_tflops},
          {"f32_tflops", b.limits.f32_tflops},
          {"output_hash", std::to_string(b.output_hash)},
          {"version", VLCACHE_VERSION}};
}

void print_comparison(const std::vector<Report>& reports) {
  std::puts(
      "| model | test | policy | tokens/s | speed-up | by bytes | % of limit | KV MiB | kept | compressing ms |\n"
      "|---|---|---|---:|---:|---:|---:|---:|---:|---:|");
  for (const Report& r : reports) {
    const BenchResult& b = r.result;
    std::printf("| %s | %s | %s | %.1f ± %.1f | %.2f | %s | %.0f | %.1f | %.1f %% | %.1f |\n", r.model.c_str(),
                test_name(b.test).c_str(), r.kv_mode.c_str(), b.avg_ts, b.stddev_ts, r.speed_up,
                r.predicted > 0 ? two_digits(r.predicted).c_str() : "", b.limit_pct,
                static_cast<double>(b.kv_bytes) / 1048576.0, 100 * b.kept_share, b.compress_ms);
  }
}

void print_reports(const std::vector<Report>& reports, const std::string& format) {
  if (format == "json") {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const Report& r : reports) array.push_back(to_json(r));
    std::printf("%s\n", array.dump(1).c_str());
    return;
  }
  if (format == "csv") {
    std::puts(
        "model,n_prompt,n_gen,n_tiles,n_depth,n_seqs,n_threads,avg_ts,stddev_ts,limit_pct,limit,read_gb_s,bf16_tflops,"
        "f32_tflops,kv_mode,kept_share,kv_bytes,compress_ms,speed_up,predicted_speed_up");
    for (const Report& r : reports) {
      const BenchResult& b = r.result;
      std::printf("%s,%d,%d,%d,%d,%d,%d,%.3f,%.3f,%.1f,%s,%.1f,%.3f,%.3f,\"%s\",%.4f,%lld,%.3f,%.3f,%.3f\n",
                  r.model.c_str(), b.test.n_prompt, b.test.n_gen, b.test.n_tiles, b.test.n_depth, b.test.n_seqs,
                  r.threads, b.avg_ts, b.stddev_ts, b.limit_pct, b.by_bandwidth ? "bandwidth" : "flops",
                  b.limits.read_gb_s, b.limits.bf16_tflops, b.limits.f32_tflops, r.kv_mode.c_str(), b.kept_share,
                  static_cast<long long>(b.kv_bytes), b.compress_ms, r.speed_up, r.predicted);
    }
    return;
  }
  if (std::ranges::any_of(reports, [&](const Report& r) { return r.kv_mode != reports[0].kv_mode; })) {
    print_comparison(reports);
    return;
  }
  std::puts("| model | threads | test | tokens/s | % of limit | limit |\n|---|---:|---|---:|---:|---|");
  for (const Report& r : reports) {
    const BenchResult& b = r.result;
    const std::string limit =
        b.by_bandwidth
            ? vlcache::format("%.1f GB/s", b.limits.read_gb_s)
            : vlcache::format("%.2f TFLOP/s", r.dtype == DType::kF32 ? b.limits.f32_tflops : b.limits.bf16_tflops);
    std::printf("| %s | %d | %s | %.1f ± %.1f | %.0f | %s |\n", r.model.c_str(), r.threads, test_name(b.test).c_str(),
                b.avg_ts, b.stddev_ts, b.limit_pct, limit.c_str());
  }
}

// All cases of one depth and batch size: they share a filled cache.
void run_group(Engine& engine, const BenchFlags& flags, Report base, const std::vector<BenchCase>& cases,
               std::vector<Report>& out) {
  if (cases.empty()) return;
  const auto fill = flags.fill == "random" ? BenchRunner::Fill::kRandom : BenchRunner::Fill::kPrefill;
  std::vector<BenchRunner> runners;
  std::vector<std::string> names;
  for (const std::string& kv : flags.policies) {
    PolicyPtr policy = parse_policy(kv, takes_budget(kv) ? flags.model.kv_budget : "");
    names.push_back(policy->name());
    runners.emplace_back(engine, std::move(policy), fill, flags.seed);
  }
  const auto results = BenchRunner::run_in_turn(runners, cases, flags.repetitions);
  for (size_t c = 0; c < cases.size(); ++c) {
    for (size_t i = 0; i < runners.size(); ++i) {
      base.kv_mode = names[i];
      base.result = results[i][c];
      base.speed_up = results[i][c].avg_ts / results[0][c].avg_ts;
      base.predicted = base.result.by_bandwidth && results[0][c].by_bandwidth
                           ? predicted_speed_up(engine, base.result, results[0][c])
                           : 0;
      out.push_back(base);
    }
  }
}

// Tiles know no depth and no batch of sequences.
std::vector<BenchCase> tile_cases(const Engine& engine, const BenchFlags& flags) {
  std::vector<BenchCase> cases;
  for (int n : flags.tiles) {
    if (n > 0) cases.push_back({.n_tiles = n});
  }
  if (!cases.empty() && !engine.model().sees_images()) {
    throw Error(ErrorCode::kInput, "bench: --tiles needs a vision model; this one (" +
                                       engine.model().config().model_type + ") takes text only");
  }
  return cases;
}

std::unique_ptr<Engine> make_engine(const BenchFlags& flags) {
  if (flags.random_weights.empty()) return load_engine(flags.model);
  const std::filesystem::path path = flags.random_weights;
  return Engine::random(parse_model_config(load_json(path), path.string()), engine_options(flags.model), flags.seed);
}

void run(BenchFlags flags) {
  if (flags.model.model_dir.empty() == flags.random_weights.empty()) {
    throw Error(ErrorCode::kInput, "bench: expected either -m DIR or --random-weights CONFIG.json");
  }
  std::vector<Report> reports;
  if (flags.threads.empty()) flags.threads = {0};
  for (int threads : flags.threads) {
    flags.model.threads = threads;
    const std::unique_ptr<Engine> engine = make_engine(flags);
    Report base;
    base.model = flags.random_weights.empty() ? flags.model.model_dir
                                              : std::filesystem::path(flags.random_weights).stem().string();
    base.threads = n_threads();
    base.dtype = engine->model().compute_dtype();
    base.codec = engine->kv_codec();
    run_group(*engine, flags, base, tile_cases(*engine, flags), reports);
    for (int depth : flags.depths) {
      for (int batch : flags.batches) {
        std::vector<BenchCase> cases;
        for (int p : flags.prompts) {
          if (p > 0) cases.push_back({.n_prompt = p, .n_depth = depth, .n_seqs = batch});
        }
        for (int n : flags.gens) {
          if (n > 0) cases.push_back({.n_gen = n, .n_depth = depth, .n_seqs = batch});
        }
        run_group(*engine, flags, base, cases, reports);
      }
    }
  }
  print_reports(reports, flags.output);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "tokens/s of prefill and decode at several depths");
  add_model_flags(*command, flags->model, {.needs_model = false, .policy = false});
  command->add_option("--kv,--kv-mode", flags->policies, "policies to compare, in turn (one per use)")
      ->type_name("POLICY")
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--kv-budget", flags->model.kv_budget, "of those that take one (0.1)")->type_name("BUDGET");
  command->remove_option(command->get_option("--threads"));
  const auto list = [&](const char* names, std::vector<int>& values, const char* help, int low = 0,
                        int high = INT32_MAX) {
    return command->add_option(names, values, help)
        ->delimiter(',')
        ->type_name("N,..")
        ->capture_default_str()
        ->check(CLI::Range(low, high));
  };
  command
      ->add_option("--random-weights", flags->random_weights,
                   "a config.json: random weights in its shape instead of a checkpoint")
      ->type_name("FILE");
  list("-p,--n-prompt", flags->prompts, "prefill tests of so many tokens (0: none)");
  list("-n,--n-gen", flags->gens, "decode tests of so many tokens (0: none)");
  list("-d,--n-depth", flags->depths, "tokens in the cache before a test");
  list("-b,--batch", flags->batches, "sequences at once", 1, 4096);
  list("--tiles", flags->tiles, "vision tests: so many tiles through the encoder (0: none)");
  share_environment(
      *list("-t,--threads", flags->threads, "threads (0: one per CPU that affinity and cgroup grant)", 0, 1024));
  command->add_option("-r,--repetitions", flags->repetitions, "runs of each test")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--fill", flags->fill, "how a depth is reached: by prefilling, or with random K and V")
      ->check(CLI::IsMember({"prefill", "random"}))
      ->capture_default_str();
  command->add_option("-o,--output", flags->output, "md, csv or json")
      ->check(CLI::IsMember({"md", "csv", "json"}))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "of weights, tokens and fill")->capture_default_str();
  command->footer(
      "Example: vlcache bench -m DIR -p 512,2048 -n 64 -d 0,4096,16384 -o md\n"
      "tokens/s of a vision test: rows of features. % of limit: of the read bandwidth or FLOP/s that the same threads\n"
      "reach in probes before and after every run.");
  command->callback([flags] { run(*flags); });
}

}  // namespace vlcache
