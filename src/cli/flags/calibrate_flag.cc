#include "cli/flags/calibrate_flag.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "api/request_builder.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/sha256.h"
#include "cli/flags/command.h"
#include "cli/flags/request.h"
#include "cli/terminal/line_source.h"
#include "engine/scheduler/scheduler.h"
#include "io/document/page_selection.h"
#include "io/video/video_file.h"

namespace vlcache {
namespace {

// Fewer tokens show too little of what a model's inputs are like.
constexpr int64_t kFewTokens = 1000;

struct CalibrationLine {
  std::string where;  // FILE:LINE
  Question question;
};

// What `read` returns; its errors begin with the line.
template <typename Read>
auto at_line(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const Error& e) {
    throw Error(e.code(), "--calibrate: " + where + ": " + e.what());
  }
}

Question question_of(const std::string& text, const std::filesystem::path& folder) {
  static const RequestFields defaults = default_fields({}, {}, Front::kRun);
  RequestLine line = read_request(text, {.prompt = "", .images = {}, .folder = folder}, defaults);
  if (!line.question) throw Error(ErrorCode::kInput, line.error);
  line.question->pdf_text = *line.fields.pdf_text;
  line.question->image_options = image_options(line.fields);
  return *std::move(line.question);
}

// Adds the files that a question names, by their contents.
void add_media(const Question& question, Sha256& hash) {
  const auto add = [&](const auto& bytes) {
    if (bytes == nullptr) return;
    hash.add(std::ssize(*bytes));
    hash.add(std::as_bytes(std::span(*bytes)));
  };
  for (const std::string& path : question.images) add(read_encoded_image(split_pages(path).path).bytes);
  for (const VideoPath& video : question.videos) {
    for (const std::string& frame : video.frames) add(read_encoded_image(frame).bytes);
    if (!video.frames.empty()) continue;
    const EncodedVideo encoded = load_video(video.video.path);
    add(encoded.clip);
    for (const auto& frame : encoded.frames) add(frame);
  }
}

// Computes the prompt of a request, every token of it in all layers. Returns its tokens.
int64_t compute_prompt(Engine& engine, const Question& question, const std::function<void(double share)>& progress) {
  Request request;
  request.policy = parse_policy("full");
  request.prompt = prepare(engine, question);
  const int64_t n_tokens = request.prompt.n_tokens();
  request.options.max_tokens = 0;
  request.callbacks.cancelled = interrupted;
  request.callbacks.on_prefill = [&](int32_t done, int32_t total) { progress(double{1} * done / total); };
  request.callbacks.on_logits = [](int32_t, const Tensor&) {};  // without them the last layer drops most rows
  generate(engine, std::move(request));
  if (interrupted()) throw Interrupted();
  return n_tokens;
}

void run_calibration(Engine& engine, const EngineOptions& options, const std::string& file,
                     const std::vector<CalibrationLine>& lines) {
  const auto say = [&](const std::string& text) {
    if (options.packed.say) options.packed.say(text);
  };
  const auto begin = Clock::now();
  say(format("calibration: computing %zu prompts of %s", lines.size(), file.c_str()));
  constexpr int64_t kParts = 1000;  // of a line, in the progress
  int64_t n_tokens = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    n_tokens += at_line(lines[i].where, [&] {
      return compute_prompt(engine, lines[i].question, [&](double share) {
        const int64_t done = static_cast<int64_t>(i) * kParts + static_cast<int64_t>(share * kParts);
        if (options.progress) options.progress(done, std::ssize(lines) * kParts);
      });
    });
  }
  say(format("calibration: %lld tokens in %.1f s", static_cast<long long>(n_tokens), ms_since(begin) / 1000));
  if (n_tokens >= kFewTokens) return;
  say(
      format("vlcache: warning: --calibrate %s: %lld tokens are few, answers may become worse; expected at least %lld, "
             "of prompts like future ones",
             file.c_str(), static_cast<long long>(n_tokens), static_cast<long long>(kFewTokens)));
}

}  // namespace

Flag add_calibrate(const Command& command, std::string& value) {
  return command
      .add("--calibrate", value,
           "File of sample prompts for --weights int4 and int4+, as JSON lines of `run --requests`: the model computes "
           "them before quantisation, which then weighs errors by the inputs it measured (default: none; all inputs "
           "weigh the same)")
      .value_name("FILE")
      .group("Machine")
      .share_environment();
}

Calibration calibration(const std::string& file, const std::string& weights) {
  if (file.empty()) return {};
  if (weights != "int4" && weights != "int4+") {
    throw Error(ErrorCode::kInput,
                "--calibrate with --weights " + weights + " has no effect: expected --weights int4 or int4+ beside it");
  }
  if (file == "-") throw Error(ErrorCode::kInput, "--calibrate: expected a file, which every start reads, found '-'");
  auto lines = std::make_shared<std::vector<CalibrationLine>>();
  Sha256 hash;
  std::string text;
  LineSource source(file, interrupted);
  for (int64_t number = 1; source.next(text, /*wait=*/true); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    CalibrationLine& line = lines->emplace_back();
    line.where = file + ":" + std::to_string(number);
    at_line(line.where, [&] {
      line.question = question_of(text, std::filesystem::path(file).parent_path());
      hash.add(std::ssize(text));
      hash.add(std::as_bytes(std::span(text)));
      add_media(line.question, hash);
    });
  }
  if (lines->empty()) throw Error(ErrorCode::kInput, "--calibrate: " + file + ": expected requests, found no line");
  return {.digest = hex(hash.finish()), .run = [file, lines](Engine& engine, const EngineOptions& options) {
            run_calibration(engine, options, file, *lines);
          }};
}

}  // namespace vlcache
