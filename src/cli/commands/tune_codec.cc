// `vlcache tune codec`: whether codes of fewer bits instead of a model's KV give the same answers.
#include <algorithm>
#include <cstdio>
#include <map>

#include "analysis/codec_tuner.h"
#include "base/error.h"
#include "base/format.h"
#include "cli/commands/reuse_measuring.h"
#include "cli/flags/codec_flags.h"
#include "cli/flags/command.h"
#include "cli/terminal/progress.h"
#include "ops/factory.h"

namespace vlcache {
namespace {

constexpr int64_t kIsaTokens = 500;  // measured on every lower instruction set; their distributions stay in memory

struct CodecFlags {
  ModelFlags model;
  std::string data, output;
  double margin = KvCodecPlan{}.margin;
  int64_t n_tokens = 2400;
  int max_tokens = 64;
};

struct Compared {
  TokenDivergences divergences;

  void add(const TokenDivergences& more) {
    divergences.kl.insert(divergences.kl.end(), more.kl.begin(), more.kl.end());
    divergences.n_same_top += more.n_same_top;
  }
  int64_t n() const { return std::ssize(divergences.kl); }
  CodecEvidence evidence() const {
    return {.tokens = {.n = n(), .n_changed = n() - divergences.n_same_top}, .kl = figures(divergences).mean};
  }
};

// The measurement: the texts one by one under each codec and each way of the noise floor, until there are enough
// tokens.
class CodecMeasuring {
 public:
  CodecMeasuring(const CodecFlags& flags, const Checkpoint& checkpoint, Engine& engine)
      : flags_(flags), checkpoint_(checkpoint), engine_(engine) {
    const int32_t chunk = other_chunk(flags.model);
    ways_ = {{format("chunks of %d", chunk), {.codec = {}, .prefill_chunk = chunk}},
             {format("batches of %zu", kTogether), {.codec = {}, .n_together = kTogether}}};
    for (const KvCodec codec : coded_codecs(engine.model().config().text)) {
      codecs_.emplace_back(codec, CodecTuner::Way{.codec = codec});
    }
  }

  // Throws Interrupted.
  void measure(std::span<const EvalSample> samples) {
    for (const EvalSample& sample : samples) {
      if (n_tokens_ >= flags_.n_tokens) break;
      measure(sample);
    }
    on_lower_instruction_sets();
  }
  int64_t n_tokens() const { return n_tokens_; }
  int64_t n_texts() const { return n_texts_; }
  const std::vector<std::pair<KvCodec, CodecTuner::Way>>& codecs() const { return codecs_; }
  CodecEvidence evidence(KvCodec codec) const { return compared_.at(std::string(kv_codec_name(codec))).evidence(); }
  std::map<std::string, CodecEvidence> floor() const {
    std::map<std::string, CodecEvidence> floor;
    for (const auto& [name, way] : ways_) floor[name] = compared_.at(name).evidence();
    return floor;
  }

 private:
  struct Kept {
    const EvalSample* sample;
    CodecTuner::Text text;
  };

  void compare(CodecTuner& tuner, const std::string& name, const Prompt& prompt, const CodecTuner::Text& text,
               const CodecTuner::Way& way) {
    if (interrupted()) throw Interrupted();
    compared_[name].add(tuner.compare(prompt, text, way));
  }

  void measure(const EvalSample& sample) {
    progress_.update("measuring", std::min(n_tokens_, flags_.n_tokens), flags_.n_tokens);
    if (interrupted()) throw Interrupted();
    CodecTuner tuner(engine_, flags_.max_tokens);
    Prompt prompt;
    CodecTuner::Text text;
    try {
      prompt = tuner.prompt(sample);
      text = tuner.read(prompt);
    } catch (const Error& error) {
      progress_.pause();
      std::fprintf(stderr, "question %s is left out: %s\n", sample.id.c_str(), error.what());
    }
    if (text.tokens.empty()) return;
    for (const auto& [name, way] : ways_) compare(tuner, name, prompt, text, way);
    for (const auto& [codec, way] : codecs_) compare(tuner, std::string(kv_codec_name(codec)), prompt, text, way);
    const int64_t n = std::ssize(text.tokens);
    n_tokens_ += n, ++n_texts_;
    if (n_kept_ >= kIsaTokens) return;
    n_kept_ += n;
    kept_.push_back({.sample = &sample, .text = std::move(text)});
  }

  void on_lower_instruction_sets() {
    for (const std::string_view isa : lower_instruction_sets(flags_.model.backend, {.max_isa = flags_.model.max_isa})) {
      const std::string way(isa);
      progress_.update("loading for " + way, 0, 1);
      EngineOptions options = engine_options(flags_.model);
      options.backend_options.max_isa = isa;
      const std::unique_ptr<Engine> engine = Engine::load(checkpoint_, options);
      CodecTuner tuner(*engine, flags_.max_tokens);
      ways_.emplace_back(way, CodecTuner::Way());
      for (size_t i = 0; i < kept_.size(); ++i) {
        progress_.update("measuring " + way, static_cast<int64_t>(i), std::ssize(kept_));
        compare(tuner, way, tuner.prompt(*kept_[i].sample), kept_[i].text, {});
      }
    }
  }

  const CodecFlags& flags_;
  const Checkpoint& checkpoint_;
  Engine& engine_;
  Progress progress_;
  std::vector<std::pair<std::string, CodecTuner::Way>> ways_;
  std::vector<std::pair<KvCodec, CodecTuner::Way>> codecs_;
  std::map<std::string, Compared> compared_;
  std::vector<Kept> kept_;
  int64_t n_tokens_ = 0, n_texts_ = 0, n_kept_ = 0;
};

void check_enough(const CodecMeasuring& measuring, const CodecRule& rule) {
  if (measuring.n_tokens() >= rule.fewest_tokens) return;
  const std::string found =
      format("%lld tokens read codes, in %lld texts", static_cast<long long>(measuring.n_tokens()),
             static_cast<long long>(measuring.n_texts()));
  const std::string more =
      measuring.n_texts() == 0
          ? "prompts of more than 256 tokens"
          : format("about %lld more questions",
                   static_cast<long long>(rule.fewest_tokens * measuring.n_texts() / measuring.n_tokens() + 1 -
                                          measuring.n_texts()));
  throw Error(ErrorCode::kInput, "tune codec: " + found + ", and " + std::to_string(rule.fewest_tokens) +
                                     " are needed: --data with " + more + ", or longer answers (--max-tokens)");
}

void tune_codec(const CodecFlags& flags) {
  watch_interrupts();
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  const std::filesystem::path path =
      flags.output.empty() ? checkpoint.companion(kKvCodecPlanName) : std::filesystem::path(flags.output);
  make_folder_of(path);  // before anything is computed
  const std::vector<EvalSample> samples =
      load_dataset(flags.data, {.metric = Metric::kExact, .answers = Answers::kOptional}).samples;
  const ExitAfterInterrupt exit("interrupted");
  ModelFlags values = flags.model;
  values.cache = {};
  const DType dtype = compute_dtype(values, checkpoint);
  values.kv_codec = kv_codec_name(value_codec(dtype));  // whatever an earlier measurement says
  const std::unique_ptr<Engine> engine = load_engine(values, checkpoint);
  CodecFlags measured = flags;
  measured.model = values;
  CodecMeasuring measuring(measured, checkpoint, *engine);
  measuring.measure(samples);
  const CodecRule rule(flags.margin);
  check_enough(measuring, rule);
  KvCodecPlan plan{.model = checkpoint.fingerprint(),
                   .weights = weights_form(values, checkpoint),
                   .dtype = std::string(dtype_name(dtype)),
                   .margin = flags.margin,
                   .codec = value_codec(dtype),
                   .evidence = {},
                   .floor = measuring.floor(),
                   .refused = {}};
  for (const auto& [codec, way] : measuring.codecs()) {
    const CodecEvidence evidence = measuring.evidence(codec);
    const CodecVerdict verdict = judge(evidence, plan.floor, rule);
    std::printf("%s: %s\n", codec_words(kv_codec_name(codec), evidence, verdict, rule).c_str(),
                verdict.yes ? "within the noise" : "not within the noise");
    if (verdict.yes) {
      plan.codec = codec, plan.evidence = evidence;  // the last is the one of fewest bits
    } else {
      plan.refused[std::string(kv_codec_name(codec))] = evidence;
    }
  }
  write_file(path, kv_codec_plan_json(plan));
  std::printf("--kv-codec auto is %s for this model and these weights (%s)\n",
              std::string(kv_codec_name(plan.codec)).c_str(), path.string().c_str());
}

}  // namespace

void add_tune_codec_command(const Command& tune_command) {
  auto flags = std::make_shared<CodecFlags>();
  const Command command =
      tune_command.add_command("codec", "Measure whether KV in fewer bits gives the same answers, for --kv-codec auto");
  add_model_flags(command, flags->model, {.policy = false});
  command.remove(command.flag("--kv-codec"));
  command.remove(command.flag("--kv-dtype"));
  command
      .add("--data", flags->data,
           "JSON lines of questions, in the format of `eval --data`; right answers are not needed")
      .value_name("FILE.jsonl")
      .required();
  command
      .add("--tokens", flags->n_tokens, "Number of tokens to measure, of prompts' ends and of answers; at least 2000")
      .range(2000, 1 << 20)
      .show_default();
  command
      .add("--margin", flags->margin,
           "Tolerated share of likeliest tokens that change, above numerical noise; compared with the upper 95 % bound "
           "of the measurement")
      .range(0.0001, 1.0)
      .show_default();
  command.add("-n,--max-tokens", flags->max_tokens, "Maximum number of tokens of an answer")
      .range(1, 4096)
      .show_default();
  command.add("-o,--output", flags->output, "File of the result (default: kv_codec.json in the model's folder)")
      .value_name("FILE");
  command.footer("Example: vlcache tune codec -m models/tinydoc --data models/tinydoc/demo/questions.jsonl");
  command.run([flags] { tune_codec(*flags); });
}

}  // namespace vlcache
