// `vlcache run`: one question, or a file of requests.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <new>
#include <optional>

#include "api/request_builder.h"
#include "api/result_json.h"
#include "base/error.h"
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
  Prompt prompt = prepare(engine, {.prompt = flags.prompt,
                                   .images = flags.media.images,
                                   .videos = videos,
                                   .order = flags.media.order(),
                                   .system = flags.system,
                                   .raw = flags.raw,
                                   .pdf_text = *fields.pdf_text,
                                   .image_options = image_options(fields)});
  if (!*fields.query_aware && prompt.spans.empty()) {
    std::fprintf(stderr, "--query-aware off: the prompt has no image; the policy acts after the whole prompt\n");
  }
  warn_of_small_budget(flags.model, prompt.n_tokens());
  Request request = builder.request(std::move(prompt), fields);
  request.callbacks.cancelled = interrupted;
  request.callbacks.on_prefill = [&](int32_t done, int32_t total) { bar.update(done, total); };
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
  if (*fields.explain) std::fprintf(stderr, "%s\n", explanation(result, engine.kv().totals(), builder.reuse()).c_str());
  if (interrupted()) throw Interrupted();
}

// Requests from a file or a client, at most --batch at once; when one has ended, the queued request starts that has
// most of its prompt computed. Every line gets its answer, in the order of the lines.
class RequestQueue {
 public:
  // fields: what lines leave out.
  RequestQueue(Engine& engine, const RunFlags& flags, RequestFields fields, RequestBuilder& builder,
               TierWarnings& warnings)
      : scheduler_(engine, {.max_running = flags.batch}),
        engine_(engine),
        builder_(builder),
        warnings_(warnings),
        places_(flags.batch),
        lookahead_(flags.lookahead),
        source_(flags.requests, interrupted),
        default_question_{
            .prompt = "", .images = {}, .videos = {}, .order = "", .system = flags.system, .raw = flags.raw},
        default_fields_(std::move(fields)) {}

  void run() {
    while (true) {
      print_answers();
      const bool more = read_requests();
      if (!scheduler_.step() && !more && lines_.empty()) return;
    }
  }

 private:
  // A line in progress: its request, or the reason why there is none.
  struct Line {
    nlohmann::ordered_json id;
    RequestId request = 0;  // 0: it has ended, with an answer or an error
    nlohmann::ordered_json answer;
    std::optional<std::string> error;
    bool explain = false;
    std::optional<std::vector<int32_t>> prompt_tokens;  // with return_token_ids
  };

  // Fills the free slots with the lines available, and reads one line further ahead: running requests wait for the
  // images of one at most. Waits for a line only when there is nothing else to do. Returns false at the end of the
  // input.
  bool read_requests() {
    std::string text;
    while (n_taken_ < places_ + lookahead_) {
      const bool idle = n_taken_ == 0 && lines_.empty(), ahead = n_taken_ >= places_;
      if (!source_.next(text, /*wait=*/idle)) return !idle;
      if (text.find_first_not_of(" \t\r") != std::string::npos) add(text);
      if (ahead) break;
    }
    return true;
  }

  void add(const std::string& text) {
    Line& line = lines_.emplace_back();
    try {
      RequestLine read = read_request(text, default_question_, default_fields_);
      line.id = std::move(read.id);
      if (!read.question) throw Error(ErrorCode::kInput, read.error);
      line.explain = *read.fields.explain;
      read.question->pdf_text = *read.fields.pdf_text;
      read.question->image_options = image_options(read.fields);
      Request request = builder_.request(prepare(engine_, *read.question), read.fields);
      request.callbacks.cancelled = interrupted;
      if (*read.fields.return_token_ids) line.prompt_tokens = request.prompt.tokens;
      line.request = scheduler_.add(std::move(request));
      ++n_taken_;
    } catch (const Error& e) {
      line.error = e.what();
    } catch (const std::bad_alloc&) {
      line.error = "out of memory: the machine does not give what this request needs";
    }
  }

  void print_answers() {
    for (Line& line : lines_) {
      if (line.request == 0 || !scheduler_.done(line.request)) continue;
      GenerateResult result = scheduler_.remove(line.request);
      line.request = 0;
      --n_taken_;
      warnings_.tell();
      if (result.error) {
        line.error = result.error->what();
      } else {
        line.answer = result_json(result, engine_.kv().totals());
        if (line.prompt_tokens) line.answer["prompt_token_ids"] = *line.prompt_tokens;
        line.answer["weights"] = weights_json(engine_);
        if (line.explain)
          std::fprintf(stderr, "%s\n", explanation(result, engine_.kv().totals(), builder_.reuse()).c_str());
      }
    }
    for (; !lines_.empty() && lines_.front().request == 0; lines_.pop_front()) {
      Line& line = lines_.front();
      nlohmann::ordered_json object{{"id", line.id}};
      if (line.error) {
        object["error"] = *line.error;
      } else {
        object.update(line.answer);
      }
      print_line(object);
    }
  }

  Scheduler scheduler_;
  Engine& engine_;
  RequestBuilder& builder_;
  TierWarnings& warnings_;
  int places_, lookahead_, n_taken_ = 0;  // lines that run or are queued
  LineSource source_;
  Question default_question_;
  RequestFields default_fields_;
  std::deque<Line> lines_;
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
  const std::vector<VideoPath> videos = probed_videos(flags.media.videos, checkpoint);
  TierWarnings warnings;
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint, {&policy, 1}, &warnings);
  reuse.open_counts(*engine, disk_folder(flags.model.cache), /*compares=*/false);
  std::fputs(special_tokens_text(*engine, given).c_str(), stderr);
  RequestBuilder builder(*engine, reuse, &checkpoint);
  const RequestFields fields = defaults_for(*engine, given, Front::kRun);
  if (flags.requests.empty()) {
    run_one(*engine, flags, videos, fields, builder);
  } else {
    warn_of_small_budget(flags.model, 0);
    RequestQueue(*engine, flags, fields, builder, warnings).run();
    if (interrupted()) throw Interrupted();
  }
  std::fflush(stdout);  // the answer comes before prefixes are saved for the next run
  engine->kv().save_prefixes(Clock::now() + kSaveTime);
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
           "...}, -: standard input; prints one JSON line per answer (default: none)")
      .value_name("FILE");
  command.add("--batch", flags->batch, "Maximum number of --requests computed together").range(1, 4096).show_default();
  command
      .add("--lookahead", flags->lookahead,
           "Lines of --requests read ahead of the batch: the line with most of its prompt cached starts next; answers "
           "keep the order of the lines")
      .range(0, 4096)
      .show_default();
  command.footer("Example: vlcache run -m models/tinydoc -i page.png \"What is the TOTAL?\"");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
