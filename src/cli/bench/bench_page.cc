#include "cli/bench/bench_page.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/os/threads.h"
#include "base/splitmix.h"
#include "cli/bench/bench_engine.h"
#include "cli/bench/bench_prompt.h"
#include "cli/bench/bench_report.h"
#include "cli/terminal/progress.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

struct PageFlags {
  ModelFlags model;
  std::string random_weights, page = "1240x1754", output = "md";
  int n_text = 40, n_gen = 32, repetitions = 1;
  uint64_t seed = 1;
};

struct PageRow {
  std::string model, weights;
  int threads = 0;
  int64_t weight_bytes = 0, kv_bytes = 0, peak_bytes = 0;
  int32_t n_image = 0, n_prompt = 0;
  std::vector<double> first_s, encoder_s, tokens_per_s;  // one per repetition
};

// The most memory that the process held since reset_peak(), or since its start where the kernel resets nothing.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    int64_t kib = 0;
    if (key == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

Image random_page(PixelSize size, uint64_t& state) {
  Image page(size.width, size.height);
  for (uint8_t& level : page.rgb) level = static_cast<uint8_t>(splitmix(state += kSplitmixStep));
  return page;
}

PageRow measure(Engine& engine, const ImageProcessor& processor, const PageFlags& flags) {
  const PixelSize size = parse_pixel_size(flags.page, "bench page: --page");
  PageRow row{.model = flags.random_weights.empty() ? flags.model.model_dir
                                                    : std::filesystem::path(flags.random_weights).stem().string(),
              .weights = std::string(weight_choice_name(engine.options().weights.text)),
              .threads = n_threads(),
              .weight_bytes = engine.model().weight_bytes()};
  ProgressBar bar("measuring a page");
  uint64_t state = flags.seed;
  reset_peak();
  for (int r = 0; r < flags.repetitions; ++r) {
    if (interrupted()) throw Interrupted();
    const Image page = random_page(size, state);
    const auto begin = Clock::now();
    const std::vector<ImageTiles> images = [&] {
      std::vector<ImageTiles> one;
      one.push_back(processor.process(page));
      return one;
    }();
    const double processing_s = seconds_since(begin);
    Request request;
    request.prompt = random_prompt_around(engine.model(), images, flags.n_text, state, state);
    request.policy = parse_policy("full");
    request.reuse = {.encoder = false, .prefix = false};
    request.options = {.max_tokens = flags.n_gen + 1, .ignore_eos = true};
    request.callbacks.on_progress = [&](const PromptProgress& p) { bar.show(p.share, p.seconds_left); };
    request.callbacks.cancelled = interrupted;
    const GenerateResult result = generate(engine, std::move(request));
    if (interrupted()) throw Interrupted();
    row.n_image = result.n_vision, row.n_prompt = result.n_prompt;
    row.kv_bytes = result.kv.peak_bytes;
    row.first_s.push_back(processing_s + result.timings.ttft_ms / 1000);
    row.encoder_s.push_back(result.timings.vision_ms / 1000);
    row.tokens_per_s.push_back(flags.n_gen / result.timings.decode_ms * 1000);
  }
  row.peak_bytes = peak_bytes();
  return row;
}

std::string text_of(const PageRow& row, const std::string& kind) {
  const double first = median(row.first_s), encoder = median(row.encoder_s), speed = median(row.tokens_per_s);
  if (kind == "json") {
    const nlohmann::ordered_json json{{"model", row.model},
                                      {"weights", row.weights},
                                      {"n_threads", row.threads},
                                      {"weight_bytes", row.weight_bytes},
                                      {"kv_bytes", row.kv_bytes},
                                      {"peak_bytes", row.peak_bytes},
                                      {"image_tokens", row.n_image},
                                      {"prompt_tokens", row.n_prompt},
                                      {"first_token_s", first},
                                      {"encoder_s", encoder},
                                      {"answer_ts", speed},
                                      {"samples_first_token_s", row.first_s},
                                      {"samples_answer_ts", row.tokens_per_s},
                                      {"version", VLCACHE_VERSION}};
    return json.dump(1) + "\n";
  }
  if (kind == "csv") {
    return format(
        "model,weights,n_threads,weight_bytes,kv_bytes,peak_bytes,image_tokens,prompt_tokens,first_token_s,encoder_s,"
        "answer_ts\n%s,%s,%d,%lld,%lld,%lld,%d,%d,%.3f,%.3f,%.3f\n",
        row.model.c_str(), row.weights.c_str(), row.threads, static_cast<long long>(row.weight_bytes),
        static_cast<long long>(row.kv_bytes), static_cast<long long>(row.peak_bytes), row.n_image, row.n_prompt, first,
        encoder, speed);
  }
  const auto short_number = [](double x) { return format("%.*f", x < 10 ? 2 : 1, x); };
  return format(
      "| model | weights | memory, GB | of it weights | KV of a page, MB | tokens of a page | first token, s | of it "
      "encoder | answer, tokens/s |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n"
      "| %s | %s | %s | %s | %.0f | %d | %s | %s | %.1f |\n",
      row.model.c_str(), row.weights.c_str(), short_number(static_cast<double>(row.peak_bytes) / 1e9).c_str(),
      short_number(static_cast<double>(row.weight_bytes) / 1e9).c_str(), static_cast<double>(row.kv_bytes) / 1e6,
      row.n_image, short_number(first).c_str(), short_number(encoder).c_str(), speed);
}

void run(PageFlags flags) {
  parse_pixel_size(flags.page, "bench page: --page");
  watch_interrupts();
  if (flags.model.cache_ram.empty()) flags.model.cache_ram = "0";  // nothing is reused
  const auto engine = bench_engine("bench page", flags.model, flags.random_weights, flags.seed);
  const ModelConfig& config = engine->model().config();
  if (!config.vision) {
    throw Error(ErrorCode::kInput, "bench page: needs a vision model; this one (" + config.model_type +
                                       ") takes text only; time prompts with: vlcache bench -p 512,2048");
  }
  const auto processor = bench_image_processor(flags.model, flags.random_weights, config);
  std::fputs(text_of(measure(*engine, *processor, flags), flags.output).c_str(), stdout);
}

}  // namespace

PixelSize parse_pixel_size(const std::string& text, const char* flag) {
  PixelSize size;
  int used = 0;
  const bool read = std::sscanf(text.c_str(), "%dx%d%n", &size.width, &size.height, &used) == 2;
  if (!read || used != static_cast<int>(text.size()) || size.width < 1 || size.height < 1 || size.width > 65536 ||
      size.height > 65536) {
    throw Error(ErrorCode::kInput,
                std::string(flag) + ": expected WIDTHxHEIGHT such as 1280x800, found '" + text + "'");
  }
  return size;
}

void add_bench_page_command(const Command& bench_command) {
  auto flags = std::make_shared<PageFlags>();
  const Command command = bench_command.add_command(
      "page", "Measure memory, time to the first token and tokens/s of an answer about a page");
  add_model_flags(command, flags->model, {.needs_model = false, .policy = false});
  command
      .add("--random-weights", flags->random_weights,
           "config.json whose shape is measured with random weights, instead of --model (default: none)")
      .value_name("FILE");
  command.add("--page", flags->page, "Size of the page in pixels (the default: A4 at 150 dpi)")
      .value_name("WxH")
      .show_default();
  command.add("--text", flags->n_text, "Text tokens beside the page").range(2, 1 << 20).show_default();
  command.add("-n,--n-gen", flags->n_gen, "Tokens of the answer after its first").range(1, 1 << 20).show_default();
  command.add("-r,--repetitions", flags->repetitions, "Pages to read; medians are printed")
      .range(1, 1000)
      .show_default();
  command.add("-o,--output", flags->output, "Format of the table").one_of({"md", "csv", "json"}).show_default();
  command.add("--seed", flags->seed, "Seed of the random weights, pages and text").show_default();
  command.footer(
      "The first token's time begins with the decoded image. Memory is the most that the process held while it "
      "answered.\n"
      "Examples: vlcache bench page -m DIR --weights int4\n"
      "          vlcache bench page --random-weights bench/shapes/qwen3-vl-2b.json --weights int4");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
