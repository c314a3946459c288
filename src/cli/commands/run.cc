// `vlcache run`: one question, or a file of requests.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "api/request_builder.h"
#include "api/result_json.h"
#include "base/error.h"
#include "cli/commands/batch_requests.h"
#include "cli/flags/batch_line.h"
#include "cli/flags/command.h"
#include "cli/flags/generate_flags.h"
#include "cli/flags/media_flags.h"
#include "cli/flags/request.h"
#include "cli/terminal/answer_printer.h"
#include "cli/terminal/line_source.h"
#include "cli/terminal/progress.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

struct RunFlags {
  ModelFlags model;
  GenerateFlags generate;
  std::string prompt;
  MediaFlags media;
  std::string system;
  bool raw = false, json = false, plain = false;
  std::string requests;
  int batch = 1, lookahead = 0;
};

// How few rows enter products with quantised matrices; with dense ones, the compute dtype.
std::string_view activations_name(const Model& model) {
  const bool quantised = std::ranges::any_of(model.weights().matrices, &LoadedMatrix::quantised);
  if (!quantised || model.compute_dtype() == DType::kF32) return dtype_name(model.compute_dtype());
  return model.activation_bits() == ActivationBits::k8 ? "int8" : "int15";
}

// What --weights made of the model.
nlohmann::ordered_json weights_json(const Engine& engine) {
  const WeightForms& forms = engine.options().weights;
  return {{"form", weight_choice_name(forms.text)},
          {"vision_form", weight_choice_name(forms.vision)},
          {"activations", activations_name(engine.model())},
          {"bytes", engine.model().weight_bytes()},
          {"packed_file", packed_use_name(engine.model().packed_file())},
          {"shared", engine.model().shares_weights()}};
}

void print_line(const nlohmann::ordered_json& json) {
  const std::string line = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  // A reader of a stream wants each answer when it is complete; without a reader or disk space, continuing is
  // pointless.
  if (std::fflush(stdout) != 0) throw Error(ErrorCode::kIo, "writing to standard output failed (is the disk full?)");
}

void run_one(Engine& engine, const RunFlags& flags, const std::vector<VideoPath>& videos, const RequestFields& fields,
             RequestBuilder& builder) {
  ProgressBar bar("reading the prompt");
  bar.begin();
  Prompt prompt = prepare(engine, {.prompt = flags.prompt,
                                   .images = flags.media.images,
                                   .videos = videos,
                                   .order = flags.media.order(),
                                   .system = flags.system,
                                   .raw = flags.raw,
                                   .pdf_text = *fields.pdf_text,
                                   .image_options = image_options(fields)});
  bar.clear();
  if (!*fields.query_aware && prompt.spans.empty()) {
    std::fprintf(stderr, "--query-aware off: the prompt has no image; the policy acts after the whole prompt\n");
  }
  warn_of_small_budget(flags.model, prompt.n_tokens());
  Request request = builder.request(std::move(prompt), fields);
  request.callbacks.cancelled = interrupted;
  request.callbacks.on_progress = [&](const PromptProgress& p) { bar.show(p.share, p.seconds_left); };
  AnswerPrinter printer({.plain = flags.plain});
  request.callbacks.on_text = [&](std::string_view text) {
    bar.clear();
    if (!flags.json) printer.add(text);
  };
  const GenerateResult result = generate(engine, std::move(request));
  bar.clear();
  if (flags.json) {
    nlohmann::ordered_json json = result_json(result, engine.kv().totals());
    json["weights"] = weights_json(engine);
    print_line(json);
  } else {
    printer.finish();
  }
  std::fprintf(stderr, "%s\n", summary(result).c_str());
  if (*fields.explain) Explainer(builder.reuse()).print(result, engine.kv().totals());
  if (interrupted()) throw Interrupted();
}

// Requests from a file or a client, at most --batch at once; when one has ended, the queued request starts that has
// most of its prompt computed. Every line gets its answer, in the order of the lines.
class RequestQueue {
 public:
  // fields: what lines leave out.
  RequestQueue(Engine& engine, const RunFlags& flags, LineSource& source, RequestFields fields, RequestBuilder& builder,
               TierWarnings& warnings)
      : scheduler_(engine, {.max_running = flags.batch}),
        engine_(engine),
        builder_(builder),
        warnings_(warnings),
        places_(flags.batch),
        lookahead_(flags.lookahead),
        requests_(flags.requests),
        source_(source),
        default_question_{.prompt = "",
                          .images = {},
                          .videos = {},
                          .order = "",
                          .system = flags.system,
                          .raw = flags.raw,
                          .folder = std::filesystem::path(flags.requests).parent_path()},
        default_fields_(std::move(fields)),
        batch_(engine, builder, default_fields_,
               std::filesystem::path(flags.model.model_dir).lexically_normal().filename()) {}

  // Returns how many lines failed. Throws Error(kInput) for a file without a request; a client may send none.
  int64_t run() {
    while (true) {
      print_answers();
      const bool more = read_requests();
      if (!scheduler_.step() && !more && lines_.empty()) break;
    }
    if (n_lines_ == 0 && requests_ != "-" && !interrupted()) {
      throw Error(ErrorCode::kInput, "--requests: " + requests_ + ": expected requests, found no line");
    }
    if (n_failed_ > 0) {
      std::fprintf(stderr, "run: %lld of %lld lines failed\n", static_cast<long long>(n_failed_),
                   static_cast<long long>(n_lines_));
    }
    return n_failed_;
  }

 private:
  // A line in progress: its requests, or the reason why there are none.
  struct Line {
    int64_t number = 0;               // from 1
    nlohmann::ordered_json id;        // a batch's line: its custom_id
    std::vector<RequestId> requests;  // that run or are queued; several in a batch's line alone
    nlohmann::ordered_json answer;
    std::optional<Error> error;
    bool explain = false;
    std::optional<std::vector<int32_t>> prompt_tokens;  // with return_token_ids
    // A batch's line alone has these: its results and their writer, or its error as it is printed.
    bool of_batch = false;
    std::unique_ptr<AnswerStyle> style;
    std::map<RequestId, GenerateResult> results;
    nlohmann::ordered_json failure;
  };

  // Fills the free slots with the lines available, and reads one line further ahead: running requests wait for the
  // images of one at most. Waits for a line only when there is nothing else to do. Returns false at the end of the
  // input.
  bool read_requests() {
    std::string text;
    while (n_taken_ < places_ + lookahead_) {
      const bool idle = n_taken_ == 0 && lines_.empty(), ahead = n_taken_ >= places_;
      if (!source_.next(text, /*wait=*/idle)) return !idle;
      ++number_;
      if (text.find_first_not_of(" \t\r") != std::string::npos) add(text);
      if (ahead) break;
    }
    return true;
  }

  void add(const std::string& text) {
    Line& line = lines_.emplace_back();
    line.number = number_;
    try {
      if (std::optional<BatchLine> batch = read_batch_line(text)) return add_batch(*std::move(batch), line);
      RequestLine read = read_request(text, default_question_, default_fields_);
      line.id = std::move(read.id);
      if (!read.question) throw Error(ErrorCode::kInput, read.error);
      line.explain = *read.fields.explain;
      read.question->pdf_text = *read.fields.pdf_text;
      read.question->image_options = image_options(read.fields);
      Request request = builder_.request(prepare(engine_, *read.question), read.fields);
      if (*read.fields.return_token_ids) line.prompt_tokens = request.prompt.tokens;
      queue(std::move(request), line);
    } catch (const Error& e) {
      line.error = e;
      if (line.of_batch) line.failure = batch_failure(line.id, e);
    } catch (const nlohmann::json::exception& e) {  // a field of an unexpected type, in the body of a batch's line
      line.error = Error(ErrorCode::kInput, (line.of_batch ? "body: " : "request: ") + std::string(e.what()));
    } catch (const std::bad_alloc&) {
      line.error = Error(ErrorCode::kMemory, "out of memory: the machine does not give what this request needs");
    }
  }

  void add_batch(BatchLine given, Line& line) {
    line.of_batch = true;
    line.id = std::move(given.custom_id);
    if (!given.error.empty()) throw Error(ErrorCode::kInput, given.error);
    BatchRequest request = batch_.read(std::move(given));
    line.style = std::move(request.style);
    for (Request& one : request.requests) queue(std::move(one), line);
  }

  void queue(Request request, Line& line) {
    request.callbacks.cancelled = interrupted;
    line.requests.push_back(scheduler_.add(std::move(request)));
    ++n_taken_;
  }

  // Removes the requests that are done.
  void take_results(Line& line) {
    std::erase_if(line.requests, [&](RequestId id) {
      if (!scheduler_.done(id)) return false;
      GenerateResult result = scheduler_.remove(id);
      --n_taken_;
      warnings_.tell();
      if (result.error) {
        line.error = result.error;
      } else if (!line.of_batch) {
        line.answer = result_json(result, engine_.kv().totals());
        if (line.prompt_tokens) line.answer["prompt_token_ids"] = *line.prompt_tokens;
        line.answer["weights"] = weights_json(engine_);
        if (line.explain) explainer_.print(result, engine_.kv().totals());
      }
      if (line.of_batch) line.results.emplace(id, std::move(result));
      return true;
    });
  }

  nlohmann::ordered_json answer_of(Line& line) {
    if (!line.failure.is_null()) return std::move(line.failure);
    if (line.of_batch) {
      std::vector<GenerateResult> results;
      for (auto& [id, result] : line.results) results.push_back(std::move(result));
      return line.error ? batch_failure(line.id, *line.error) : batch_answer(line.id, line.style->whole(results));
    }
    nlohmann::ordered_json answer{{"id", line.id}};
    if (line.error) {
      answer["error"] = "line " + std::to_string(line.number) + ": " + line.error->what();
    } else {
      answer.update(line.answer);
    }
    return answer;
  }

  void print_answers() {
    for (Line& line : lines_) take_results(line);
    for (; !lines_.empty() && lines_.front().requests.empty(); lines_.pop_front()) {
      ++n_lines_;
      if (lines_.front().error) ++n_failed_;
      print_line(answer_of(lines_.front()));
    }
  }

  Scheduler scheduler_;
  Engine& engine_;
  RequestBuilder& builder_;
  Explainer explainer_{builder_.reuse()};
  TierWarnings& warnings_;
  int places_, lookahead_, n_taken_ = 0;  // requests that run or are queued
  const std::string requests_;            // path
  LineSource& source_;
  Question default_question_;
  RequestFields default_fields_;
  BatchReader batch_;
  std::deque<Line> lines_;
  int64_t number_ = 0;                  // the last line read
  int64_t n_lines_ = 0, n_failed_ = 0;  // that have been answered
};

void run(const RunFlags& flags) {
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  const PolicyPtr policy = chosen_policy(flags.model, checkpoint);
  const RequestFields given = given_fields(flags.generate, flags.model);
  ReuseChoice reuse = reuse_choice(flags.generate, given, flags.model, checkpoint);
  if (flags.prompt.empty() == flags.requests.empty()) {
    throw Error(ErrorCode::kInput, flags.prompt.empty() ? "run: expected a PROMPT or --requests FILE, found neither"
                                                        : "run: expected a PROMPT or --requests FILE, found both");
  }
  if (!flags.requests.empty() && !(flags.media.images.empty() && flags.media.videos.empty())) {
    throw Error(ErrorCode::kInput,
                "run: -i and -v go with a PROMPT; with --requests every line names its own images and videos");
  }
  watch_interrupts();
  std::optional<LineSource> source;  // opened before the model is read
  if (!flags.requests.empty()) source.emplace(flags.requests, interrupted);
  const std::vector<VideoPath> videos = probed_videos(flags.media.videos, checkpoint);
  TierWarnings warnings;
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint, {&policy, 1}, &warnings);
  reuse.open_counts(*engine, disk_folder(flags.model.cache), /*compares=*/false);
  std::fputs(special_tokens_text(*engine, given).c_str(), stderr);
  RequestBuilder builder(*engine, reuse, &checkpoint);
  const RequestFields fields = defaults_for(*engine, given, Front::kRun);
  int64_t n_failed = 0;
  if (flags.requests.empty()) {
    run_one(*engine, flags, videos, fields, builder);
  } else {
    warn_of_small_budget(flags.model, 0);
    n_failed = RequestQueue(*engine, flags, *source, fields, builder, warnings).run();
    if (interrupted()) throw Interrupted();
  }
  std::fflush(stdout);  // the answer comes before prefixes are saved for the next run
  engine->kv().save_prefixes(Clock::now() + kSaveTime);
  if (n_failed > 0) throw LinesFailed();
}

}  // namespace

void add_run_command(const Command& app) {
  auto flags = std::make_shared<RunFlags>();
  const Command command = app.add_command("run", "Answer a question about images, or a file of questions");
  add_model_flags(command, flags->model);
  add_generate_flags(command, flags->generate, Front::kRun);
  command.add("PROMPT", flags->prompt, "Question to the model (default: --requests)");
  add_media_flags(command, flags->media, "It is placed before the text, or at <image:N> (<video:N>) in the prompt");
  command.add("--system", flags->system, "System message (default: none)").value_name("TEXT").group("Basic");
  command.add("--raw", flags->raw, "Use the prompt as given, image placeholders included, without the chat template");
  command.add("--json", flags->json, "Print one JSON object instead of the text");
  command.add("--plain", flags->plain,
              "Print the answer as the model wrote it, without colours and formatting, on a terminal as well");
  command
      .add("--requests", flags->requests,
           "File of requests as JSON lines {id, prompt | messages, images, videos, raw, kv, kv_budget, max_tokens, "
           "...}, questions for `eval --data`, or lines of an OpenAI batch {custom_id, url, body}, -: standard input; "
           "prints one JSON line per "
           "answer, and exits with 1 if a line failed (default: none)")
      .value_name("FILE");
  command.add("--batch", flags->batch, "Maximum number of --requests computed together").range(1, 4096).show_default();
  command
      .add("--lookahead", flags->lookahead,
           "Lines of --requests read ahead of the batch: the line with most of its prompt cached starts next; answers "
           "keep the order of the lines")
      .range(0, 4096)
      .show_default();
  command.footer("Example: vlcache run -m models/tinydoc -i models/tinydoc/demo/invoice.png \"What is the TOTAL?\"");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
