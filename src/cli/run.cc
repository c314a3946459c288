// `vlcache run`: one question, or a file of requests.
#include <cstdio>
#include <new>

#include "base/error.h"
#include "cli/answer.h"
#include "cli/command.h"
#include "cli/generate_flags.h"
#include "cli/line_source.h"
#include "cli/progress.h"
#include "cli/request.h"

namespace vlcache {
namespace {

struct RunFlags {
  ModelFlags model;
  GenerateFlags generate;
  std::string prompt;
  std::vector<std::string> images;
  std::string system;
  bool raw = false;
  bool json = false;
  std::string requests;
  int batch = 1;
};

void print_line(const nlohmann::ordered_json& json) {
  const std::string line = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  // Whoever reads a stream of answers wants each when it is there; without a reader or room there is no point in going
  // on.
  if (std::fflush(stdout) != 0) throw Error(ErrorCode::kIo, "writing to standard output failed (is the disk full?)");
}

void run_one(Engine& engine, const RunFlags& flags, const CacheMode& mode) {
  UserRequest request{.prompt = flags.prompt, .images = flags.images, .system = flags.system, .raw = flags.raw};
  Sequence sequence = engine.new_sequence(prepare(engine, request), mode);
  ProgressBar bar("reading the prompt");
  GenerateItem item{&sequence, generate_options(flags.generate, engine.model().config().generation), {}};
  item.callbacks.cancelled = interrupted;
  item.callbacks.on_prefill = [&](int32_t done, int32_t total) { bar.update(done, total); };
  item.callbacks.on_text = [&](std::string_view text) {
    bar.clear();
    if (flags.json) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const GenerateResult result = generate(engine, {&item, 1})[0];
  bar.clear();
  if (flags.json) {
    print_line(result_json(result));
  } else {
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }
  std::fprintf(stderr, "%s\n", summary(result).c_str());
  if (interrupted()) throw Interrupted();
}

// A request of a file on its way: its sequence, or why there is none.
struct Line {
  nlohmann::ordered_json id;
  std::unique_ptr<Sequence> sequence;
  GenerateOptions options;
  std::optional<std::string> error;
};

// What went wrong with a request that must not stop the others; nothing if all went well.
template <class Work>
std::optional<std::string> failure_of(Work&& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& e) {
    return e.what();
  } catch (const std::bad_alloc&) {
    return "out of memory: the machine does not give what this request needs";
  }
}

Line read_line(Engine& engine, const std::string& text, const UserRequest& defaults, const CacheMode& mode) {
  Line line;
  line.error = failure_of([&] {
    RequestLine read = read_request(text, defaults);
    line.id = std::move(read.id);
    if (!read.request) throw Error(ErrorCode::kInput, read.error);
    line.options = read.request->options;
    Prompt prompt = prepare(engine, *read.request);
    check_prompt_fits(engine, mode, static_cast<int32_t>(prompt.tokens.size()));
    line.sequence = std::make_unique<Sequence>(engine.new_sequence(std::move(prompt), mode));
  });
  return line;
}

// The lines `which` in one batch.
std::vector<GenerateResult> run_lines(Engine& engine, std::vector<Line>& lines, const std::vector<size_t>& which) {
  std::vector<GenerateItem> items;
  for (size_t i : which) items.push_back({lines[i].sequence.get(), lines[i].options, {.cancelled = interrupted}});
  return generate(engine, items);
}

// Runs what is runnable of `texts` in one batch; when that fails (no memory), one by one.
void run_batch(Engine& engine, const std::vector<std::string>& texts, const UserRequest& defaults,
               const CacheMode& mode) {
  std::vector<Line> lines;
  for (const std::string& text : texts) lines.push_back(read_line(engine, text, defaults, mode));
  std::vector<nlohmann::ordered_json> out(lines.size());
  std::vector<size_t> good;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].error) good.push_back(i);
  }
  const std::optional<std::string> problem = failure_of([&] {
    const std::vector<GenerateResult> results = run_lines(engine, lines, good);
    for (size_t i = 0; i < good.size(); ++i) out[good[i]] = result_json(results[i]);
  });
  if (problem) {
    for (size_t i : good) lines[i].sequence.reset();  // gives the KV of the failed batch back
    if (good.size() == 1) lines[good[0]].error = problem;
  }
  if (problem && good.size() > 1) {
    for (size_t i : good) {
      lines[i] = read_line(engine, texts[i], defaults, mode);
      if (lines[i].error) continue;
      lines[i].error = failure_of([&] { out[i] = result_json(run_lines(engine, lines, {i})[0]); });
      lines[i].sequence.reset();
    }
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    nlohmann::ordered_json object{{"id", lines[i].id}};
    if (lines[i].error) {
      object["error"] = *lines[i].error;
    } else {
      object.update(out[i]);
    }
    print_line(object);
  }
}

// The next requests: waits for one, then takes those that are there, up to n.
std::vector<std::string> next_requests(LineSource& source, int n) {
  std::vector<std::string> texts;
  std::string text;
  while (static_cast<int>(texts.size()) < n && source.next(text, /*wait=*/texts.empty())) {
    if (text.find_first_not_of(" \t\r") != std::string::npos) texts.push_back(text);
  }
  return texts;
}

void run_requests(Engine& engine, const RunFlags& flags, const CacheMode& mode) {
  LineSource source(flags.requests, interrupted);
  UserRequest defaults{.system = flags.system, .raw = flags.raw};
  defaults.options = generate_options(flags.generate, engine.model().config().generation);
  while (!interrupted()) {
    const std::vector<std::string> texts = next_requests(source, flags.batch);
    if (texts.empty()) break;
    run_batch(engine, texts, defaults, mode);
  }
  if (interrupted()) throw Interrupted();
}

void run(const RunFlags& flags) {
  const CacheMode mode = parse_cache_mode(flags.model.kv_mode);
  if (flags.prompt.empty() == flags.requests.empty()) {
    throw Error(ErrorCode::kInput, flags.prompt.empty() ? "run: expected a PROMPT or --requests FILE, found neither"
                                                        : "run: expected a PROMPT or --requests FILE, found both");
  }
  if (!flags.requests.empty() && !flags.images.empty()) {
    throw Error(ErrorCode::kInput, "run: -i goes with a PROMPT; with --requests every line names its own images");
  }
  watch_interrupts();
  const std::unique_ptr<Engine> engine = load_engine(flags.model);
  if (flags.requests.empty()) {
    run_one(*engine, flags, mode);
  } else {
    run_requests(*engine, flags, mode);
  }
}

}  // namespace

void add_run_command(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "answer a question about pictures, or a file of questions");
  add_model_flags(*command, flags->model);
  add_generate_flags(*command, flags->generate);
  command->add_option("PROMPT", flags->prompt, "the question");
  command
      ->add_option("-i,--image", flags->images,
                   "a picture: JPEG, PNG, WebP, BMP, GIF (one per use); stands before the text, or where "
                   "<image:N> says")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->add_option("--system", flags->system, "system message")->type_name("TEXT");
  command->add_flag("--raw", flags->raw,
                    "take the prompt as it is, image placeholders included, without the chat template");
  command->add_flag("--json", flags->json, "print one JSON object instead of the text");
  command
      ->add_option("--requests", flags->requests,
                   "JSON lines {id, prompt | messages, images, raw, max_tokens, ...} (- for stdin); one "
                   "JSON line out for each")
      ->type_name("FILE");
  command->add_option("--batch", flags->batch, "requests computed together, of those that have come")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->footer("Example: vlcache run -m models/tinydoc -i page.png \"What is the TOTAL?\"");
  command->callback([flags] { run(*flags); });
}

}  // namespace vlcache
