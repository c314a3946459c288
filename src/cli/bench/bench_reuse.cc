// `vlcache bench reuse`: the time to the first token of a prompt whose images were seen in another prompt.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/format.h"
#include "base/splitmix.h"
#include "cli/bench/bench_engine.h"
#include "cli/bench/bench_prompt.h"
#include "cli/bench/bench_report.h"
#include "cli/terminal/progress.h"
#include "engine/scheduler/scheduler.h"
#include "reuse/choose/reuse_chooser.h"
#include "reuse/image/image_kv.h"

namespace vlcache {
namespace {

struct ReuseBenchFlags {
  ModelFlags model;
  std::string random_weights;
  std::vector<int> images{1};
  std::vector<std::string> choosers{"vlcache:r=0", "vlcache:r=0.025", "vlcache:r=0.05", "vlcache:r=0.1"};
  int n_text = 40, n_image_tokens = 1024, repetitions = 3;
  uint64_t seed = 1;
  bool exact_prefix = false;
};

struct Sample {
  double ttft_ms = 0, vision_ms = 0, computed = 0;  // computed: tokens, mean over the layers
};

class ReuseBench {
 public:
  ReuseBench(Engine& engine, const ReuseBenchFlags& flags) : engine_(engine), flags_(flags), state_(flags.seed) {}

  void run(int n_images) {
    images_.clear();
    for (int i = 0; i < n_images; ++i) images_.push_back(random_image());
    engine_.kv().forget_image_kv();
    ProgressBar bar(format("measuring %d image%s", n_images, n_images == 1 ? "" : "s"));
    bar.update(0, 1);
    std::vector<Row> rows = flags_.exact_prefix ? exact_rows() : chooser_rows();
    const int64_t n_runs = std::ssize(rows) * flags_.repetitions;
    int64_t n_done = 0;
    for (int r = 0; r < flags_.repetitions; ++r) {
      for (Row& row : rows) {
        if (row.from != From::kRam) forget_memory();
        if (row.from == From::kColdTier) drop_page_cache();
        row.samples.push_back(time_once(prompt(flags_.n_text), row.reuse));
        bar.update(++n_done, n_runs);
      }
    }
    bar.clear();
    for (const Row& row : rows) print(row.name, row.samples, rows[0].samples);
  }

  // Tokens/s of an answer by itself, and while images are being stored continuously.
  void decode_while_saving() {
    constexpr int kTokens = 32;
    const auto kv = std::make_shared<const ImageKv>(engine_.kv_shape(), engine_.options().cache_form, 2048);
    std::vector<double> idle, saving;
    for (int r = 0; r < 2 * flags_.repetitions; ++r) {
      const bool saves = r % 2 == 1;
      Request request;
      request.prompt = prompt(flags_.n_text);
      request.prompt.spans.clear();
      request.prompt.images.clear();
      request.prompt.tokens.resize(static_cast<size_t>(flags_.n_text / 2));
      request.policy = parse_policy("full");
      request.options.max_tokens = kTokens;
      request.options.ignore_eos = true;
      request.callbacks.cancelled = [&] {  // before every step: a save is always in progress
        Sha256Digest image{};
        std::memcpy(image.data(), &(state_ += kSplitmixStep), sizeof state_);
        if (saves) engine_.kv().store_image_kv(image, kv);
        return interrupted();
      };
      const TierStats before = engine_.kv().tiers()->stats().at(0).stats;
      const GenerateResult result = generate(engine_, std::move(request));
      const double rate = (kTokens - 1) / result.timings.decode_ms * 1000;
      (saves ? saving : idle).push_back(rate);
      const TierStats after = engine_.kv().tiers()->stats().at(0).stats;
      if (saves) {
        std::fprintf(stderr, "stored %.1f MiB meanwhile\n",
                     static_cast<double>(after.bytes_written - before.bytes_written) / 1048576.0);
      }
      engine_.kv().tiers()->flush(kNoDeadline);
    }
    std::printf("\nAn answer: %.1f tokens/s, while images are stored %.1f (%.1f %%).\n", median(idle), median(saving),
                100 * median(saving) / median(idle));
  }

 private:
  enum class From : uint8_t { kRam, kTier, kColdTier };
  struct Row {
    std::string name;
    From from;
    ReuseOptions reuse;
    std::vector<Sample> samples;
  };

  // The images' KV at another place, by chooser.
  std::vector<Row> chooser_rows() {
    const ReuseOptions record{.chooser = parse_reuse_chooser("static:r=1"), .required = true};
    time_once(prompt(flags_.n_text), record);  // leaves the images' records as another prompt would
    std::vector<Row> rows{computed_row()};
    for (const From from : places()) {
      for (const std::string& chooser : flags_.choosers) {
        rows.push_back(
            {chooser + from_text(from), from, {.chooser = parse_reuse_chooser(chooser), .required = true}, {}});
      }
    }
    return rows;
  }

  // The same images after the same text, with another question.
  std::vector<Row> exact_rows() {
    for (int use = 0; use < 2; ++use) time_once(prompt(flags_.n_text), {.prefix = true});
    std::vector<Row> rows{computed_row()};
    for (const From from : places()) rows.push_back({"exact prefix" + from_text(from), from, {.prefix = true}, {}});
    return rows;
  }

  static Row computed_row() { return {"all computed", From::kRam, {.encoder = false, .prefix = false}, {}}; }
  // Where the images or prefixes may come from, once they are stored there.
  std::vector<From> places() const {
    if (engine_.kv().tiers() == nullptr) return {From::kRam};
    engine_.kv().tiers()->flush(kNoDeadline);
    return {From::kRam, From::kTier, From::kColdTier};
  }
  std::string from_text(From from) const {
    if (from == From::kRam) return "";
    const std::string tier = engine_.kv().tiers()->stats().at(0).name;
    return from == From::kTier ? ", " + tier : ", " + tier + " after dropping the page cache";
  }

  // Drops the folder of --cache-disk from the page cache; a cache of the machine below this one stays.
  void drop_page_cache() const {
    sync();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(disk_folder(flags_.model.cache))) {
      if (!entry.is_regular_file()) continue;
      const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0) continue;
      posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      close(file);
    }
  }

  void forget_memory() const {
    if (flags_.exact_prefix) {
      engine_.kv().reset();
    } else {
      engine_.kv().forget_images();
    }
  }

  // An image in two by two tiles, if the model splits any; of the size whose tokens are nearest to --image-tokens, with
  // a little more columns than rows, if it accepts any size.
  ImageTiles random_image() {
    const VisionConfig& vision = *engine_.model().config().vision;
    const bool splits = !engine_.model().config().grid_pinpoints.empty();
    ImageTiles image;
    if (vision.traits.any_grid) {
      const int64_t rows = std::max<int64_t>(1, std::llround(std::sqrt(0.75 * flags_.n_image_tokens)));
      const int64_t cols = std::max<int64_t>(1, (flags_.n_image_tokens + rows / 2) / rows);
      image.allocate(1, rows * vision.cell(), cols * vision.cell());
      image.original_width = image.width, image.original_height = image.height;
    } else {
      image.allocate(splits ? 5 : 1, vision.image_size, vision.image_size);
      image.original_width = (splits ? 2 : 1) * vision.image_size;
      image.original_height = image.original_width * 3 / 4;
    }
    if (splits) {
      image.tile_rows = image.tile_cols = 2;
      image.overview = 0;
    }
    for (float& x : std::span(image.tensor().as<float>(), static_cast<size_t>(image.tensor().numel()))) {
      x = static_cast<float>(splitmix(state_ += kSplitmixStep) >> 40) * 0x1p-23f - 1.0f;
    }
    return image;
  }

  // The text is different every time, before exact prefixes only after the images.
  Prompt prompt(int n_text) {
    uint64_t fixed = flags_.seed;
    return random_prompt_around(engine_.model(), images_, n_text, flags_.exact_prefix ? fixed : state_, state_);
  }

  Sample time_once(Prompt prompt, const ReuseOptions& reuse) {
    if (interrupted()) throw Interrupted();
    Request request;
    request.prompt = std::move(prompt);
    request.policy = parse_policy("full");
    request.reuse = reuse;
    request.options.max_tokens = 1;
    const GenerateResult result = generate(engine_, std::move(request));
    Sample sample{.ttft_ms = result.timings.ttft_ms,
                  .vision_ms = result.timings.vision_ms,
                  .computed = static_cast<double>(result.n_prompt - result.n_vision)};
    for (const CacheReport::Image& image : result.cache.images) sample.computed += image.n_recomputed;
    if (flags_.exact_prefix) sample.computed = result.n_prompt - result.cache.n_prefix_tokens;
    n_vision_ = result.n_vision;
    n_prompt_ = result.n_prompt;
    return sample;
  }

  // FLOPs of a prompt of which `computed` tokens are computed, each of which attends to half of it at least.
  double flops(double computed) const {
    const TextConfig& text = engine_.model().config().text;
    return computed * text.layers_flops(n_prompt_ / 2.0);
  }

  void print(const std::string& name, const std::vector<Sample>& samples, const std::vector<Sample>& all) const {
    const auto of = [](const std::vector<Sample>& from, double Sample::*member) {
      std::vector<double> values;
      for (const Sample& s : from) values.push_back(s.*member);
      return values;
    };
    const std::vector<double> ttft = of(samples, &Sample::ttft_ms);
    const double time = median(ttft), whole = median(of(all, &Sample::ttft_ms));
    std::printf("| %d | %s | %.0f | %.0f | %.0f to %.0f | %.0f | %.1f | %.1f |\n", n_vision_, name.c_str(),
                samples[0].computed, time, std::ranges::min(ttft), std::ranges::max(ttft),
                median(of(samples, &Sample::vision_ms)), whole / time,
                flops(all[0].computed) / flops(samples[0].computed));
    std::fflush(stdout);
  }

  Engine& engine_;
  const ReuseBenchFlags& flags_;
  uint64_t state_;
  std::vector<ImageTiles> images_;
  int32_t n_vision_ = 0, n_prompt_ = 0;
};

void run(const ReuseBenchFlags& flags) {
  for (const std::string& chooser : flags.choosers) parse_reuse_chooser(chooser);
  watch_interrupts();
  const auto engine = bench_engine("bench reuse", flags.model, flags.random_weights, flags.seed);
  if (!engine->model().sees_images()) throw Error(ErrorCode::kInput, "bench reuse: needs a vision model");
  std::printf(
      "| image tokens | --reuse | tokens computed | first token, ms | spread | encoder, ms | times faster | "
      "times fewer FLOPs, without the encoder |\n|---:|---|---:|---:|---|---:|---:|---:|\n");
  ReuseBench bench(*engine, flags);
  for (const int n : flags.images) bench.run(n);
  if (engine->kv().tiers() != nullptr && !flags.exact_prefix) bench.decode_while_saving();
}

}  // namespace

void add_bench_reuse_command(const Command& bench_command) {
  auto flags = std::make_shared<ReuseBenchFlags>();
  const Command command = bench_command.add_command(
      "reuse", "Measure the time to the first token when the images were seen in another prompt");
  add_model_flags(command, flags->model, {.needs_model = false, .policy = false});
  command
      .add("--random-weights", flags->random_weights,
           "config.json whose shape is measured with random weights, instead of --model (default: none)")
      .value_name("FILE");
  command.add("--images", flags->images, "Images per prompt; of 2 x 2 tiles where the model splits images")
      .delimiter(',')
      .value_name("N,..")
      .range(1, 1000)
      .show_default();
  command.add("--image-tokens", flags->n_image_tokens, "Tokens per image, in models that accept images of any size")
      .range(1, 1 << 16)
      .show_default();
  command.add("--reuse", flags->choosers, "Reuse method to compare, in alternating runs (one per use)")
      .value_name("METHOD")
      .one_per_use()
      .show_default();
  command.add("--exact-prefix", flags->exact_prefix,
              "Measure exact prefix reuse instead: the same text and images, then another question");
  command.add("--text", flags->n_text, "Text tokens per prompt, different in every prompt")
      .range(2, 1 << 20)
      .show_default();
  command.add("-r,--repetitions", flags->repetitions, "Repetitions of each measurement").range(1, 1000).show_default();
  command.add("--seed", flags->seed, "Seed of the random weights, images and text").show_default();
  command.footer(
      "With --cache-disk, loading from the folder and the slowdown of answers while records are stored are measured "
      "too.\n"
      "Examples: vlcache bench reuse --random-weights bench/shapes/llava-next-1.1b.json --images 1,4\n"
      "          vlcache bench reuse --random-weights bench/shapes/qwen3-vl-2b.json --image-tokens 2300");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
