// `vlcache tune`: measures a model once, for policies to use.
#include <algorithm>
#include <cstdio>

#include "analysis/head_probe.h"
#include "analysis/verdicts.h"
#include "base/clock.h"
#include "cli/flags/command.h"
#include "cli/terminal/progress.h"

namespace vlcache {
namespace {

struct HeadFlags {
  ModelFlags model;
  std::string output;
  int period = 0;
  uint64_t seed = 1;
};

void tune_heads(const HeadFlags& flags) {
  watch_interrupts();
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  const std::filesystem::path path =
      flags.output.empty() ? checkpoint.companion(kHeadFileName) : std::filesystem::path(flags.output);
  make_folder_of(path);  // before anything is computed
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint);
  const auto begin = Clock::now();
  HeadScores scores;
  {
    ProgressBar bar("probing");
    scores = probe_heads(*engine, {.period = flags.period,
                                   .seed = flags.seed,
                                   .progress = [&](int32_t done, int32_t total) { bar.update(done, total); },
                                   .cancelled = interrupted});
  }
  if (interrupted()) throw Interrupted();
  scores.model = checkpoint.fingerprint();
  write_file(path, head_scores_json(scores));
  std::printf("%s\n", heads_verdict(scores).c_str());
  const auto best = [](const HeadMatrix& m) {
    float largest = 0;
    for (const std::vector<float>& row : m) largest = std::max(largest, std::ranges::max(row));
    return largest;
  };
  std::fprintf(stderr, "%s: %zu layers of %zu kv heads, largest echo %.2f, largest induction %.2f, %.0f s\n",
               path.string().c_str(), scores.echo.size(), scores.echo[0].size(), best(scores.echo),
               best(scores.induction), ms_since(begin) / 1000);
}

}  // namespace

void add_tune_command(const Command& app) {
  const Command tune = app.add_command(
      "tune", "Measure a model and write the files that --kv razor, --kv duo, --reuse auto and --kv-codec auto read");
  tune.require_command();
  auto flags = std::make_shared<HeadFlags>();
  const Command command = tune.add_command(
      "heads", "Find retrieval heads, for --kv razor and --kv duo, in a prefill of repeated random tokens");
  add_model_flags(command, flags->model, {.policy = false});
  command.add("-o,--output", flags->output, "File of the heads' scores (default: heads.json in the model's folder)")
      .value_name("FILE");
  command
      .add("--period", flags->period,
           "Number of random tokens, which the prompt repeats four times (0: 2500, or as many as the context holds)")
      .range(0, 1 << 20)
      .show_default();
  command.add("--seed", flags->seed, "Seed of the random tokens").show_default();
  command.footer("Example: vlcache tune heads -m models/tinydoc && vlcache run -m models/tinydoc --kv duo \"Hello\"");
  command.run([flags] { tune_heads(*flags); });
  add_tune_reuse_command(tune);
  add_tune_codec_command(tune);
}

}  // namespace vlcache
