#include "cli/flags/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "api/kv_codec_choice.h"
#include "api/request_fields.h"
#include "base/byte_size.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/os/machine.h"
#include "base/os/signals.h"
#include "base/os/threads.h"
#include "cli/flags/calibrate_flag.h"
#include "cli/flags/codec_flags.h"
#include "cli/flags/model_path.h"
#include "cli/flags/packed_flags.h"
#include "cli/terminal/progress.h"
#include "engine/memory_plan.h"
#include "engine/scheduler/image_selection.h"

namespace vlcache {
namespace {

std::atomic<bool> g_interrupted{false};

void on_interrupt(int signal) {
  g_interrupted = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

bool interrupted() { return g_interrupted; }

void watch_interrupts() {
  g_interrupted = false;
  handle_signal(SIGINT, on_interrupt, /*restarts=*/true);
  handle_signal(SIGTERM, on_interrupt, /*restarts=*/true);
}

ExitAfterInterrupt::ExitAfterInterrupt(std::string message)
    : message_(std::move(message)), thread_([this] {
        constexpr auto kLook = std::chrono::milliseconds(50), kGrace = std::chrono::milliseconds(500);
        while (!over_ && !interrupted()) std::this_thread::sleep_for(kLook);
        const auto by = Clock::now() + kGrace;
        while (!over_ && Clock::now() < by) std::this_thread::sleep_for(kLook);
        if (over_) return;
        std::fprintf(stderr, "\n%s\n", message_.c_str());
        std::_Exit(130);
      }) {}

ExitAfterInterrupt::~ExitAfterInterrupt() {
  over_ = true;
  thread_.join();
}

void add_model_dir(const Command& command, std::string& model_dir, std::string& tokenizer_dir) {
  command
      .add("-m,--model", model_dir,
           "Model folder (Hugging Face snapshot), or ORG/NAME of a model in the local Hugging Face cache; nothing is "
           "downloaded")
      .value_name("DIR")
      .group("Basic")
      .transform(model_path)
      .required()
      .share_environment();
  command
      .add("--tokenizer", tokenizer_dir,
           "Folder of the tokenizer and chat template (default: the model's; nanoVLM's checkpoints have none)")
      .value_name("DIR")
      .transform(model_path)
      .share_environment();
}

namespace {

void add_policy_flags(const Command& command, ModelFlags& flags) {
  const auto add = [&](const RequestField& field, std::string& value) {
    std::string help = field.help;
    if (!value.empty()) help.erase(help.rfind(" (default: "));  // this command has a default of its own
    Flag flag = command.add(field.flag, value, help);
    flag.value_name(field.value_name).group("Basic").share_environment();
    if (!value.empty()) flag.show_default();
    return flag;
  };
  add(request_field("kv"), flags.kv).transform(policy_text);
  add(request_field("kv_budget"), flags.kv_budget);
}

}  // namespace

void add_model_flags(const Command& command, ModelFlags& flags, const ModelFlagSet& set) {
  add_model_dir(command, flags.model_dir, flags.tokenizer_dir);
  command.flag("--model").required(set.needs_model);
  if (!set.needs_model) command.flag("--model").default_text("none, with --random-weights");
  command
      .add("--dtype", flags.dtype,
           "Data type of the computation and of weights that are not quantised; auto: the checkpoint's")
      .one_of({"auto", "f32", "bf16"})
      .show_default();
  command
      .add("--weights", flags.weights,
           "Storage of the language model's matrices. int8, int4, int4+ (int4, with 6 bits for the most sensitive "
           "matrices): quantised while loading; dense: in --dtype; bf16, f32: dense in that type; auto: as in the "
           "checkpoint, also if it is quantised")
      .one_of({"auto", "dense", "int8", "int4", "int4+", "bf16", "f32"})
      .show_default();
  command
      .add("--vision-weights", flags.vision_weights,
           "Storage of the vision encoder's matrices: dense, or int8 (quantised while loading); auto: as in the "
           "checkpoint")
      .one_of({"auto", "dense", "int8"})
      .show_default();
  add_calibrate(command, flags.calibrate);
  add_packed_cache(command, flags.packed_cache);
  add_packed_share(command, flags.packed_share);
  command
      .add("--activations", flags.activations,
           "Precision of inputs in products with quantised weights: int8 is faster for prompts on CPUs with VNNI but "
           "without AMX, and less exact; auto: at least 15 bits")
      .one_of({"auto", "int8"})
      .show_default();
  add_codec_flags(command, flags);
  if (set.policy) add_policy_flags(command, flags);
  command
      .add("--kv-memory", flags.kv_memory,
           "Memory limit of the KV cache of running requests: 512MiB, or a number of GiB (0: 3/4 of the memory that "
           "the machine or cgroup grants and the weights and --cache-ram leave)")
      .value_name("BYTES")
      .show_default();
  command
      .add("--cache-ram", flags.cache_ram,
           "Memory limit of the cache across requests (KV of prompts and images, embeddings): 512MiB, or a number of "
           "GiB; 0 turns it off (default: 1/4 of the memory that the machine or cgroup grants)")
      .value_name("BYTES");
  add_cache_flags(command, flags.cache);
  command.add("-t,--threads", flags.threads, "Compute threads (0: one per CPU that affinity and cgroup grant)")
      .range(0, 1024)
      .show_default();
  command.add("--prefill-chunk", flags.prefill_chunk, "Maximum prompt tokens computed in one step")
      .range(1, 1 << 20)
      .show_default();
  command
      .add("--shared-attention", flags.shared_attention,
           "Read KV that several requests have in common once for all of them; off: each request reads it alone, so "
           "that the roundings of its answer do not depend on other requests")
      .one_of({"on", "off"})
      .show_default();
  command.add("--special-tokens-in-text", flags.special_tokens_in_text,
              "Treat special tokens and image markers in the text of messages as such, like transformers does; without "
              "the flag they are plain text");
  command
      .add("--backend", flags.backend,
           "Implementation of the operations: cpu, or ref (slow scalar reference); auto: cpu")
      .one_of({"auto", "cpu", "ref"})
      .show_default();
  command.add("--max-isa", flags.max_isa, "Highest CPU instruction set to use; auto: the highest that this CPU has")
      .one_of({"auto", "scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_bf16"})
      .show_default();
  for (const char* name : {"--dtype", "--weights", "--vision-weights", "--activations", "--kv-codec", "--kv-dtype",
                           "--kv-memory", "--cache-ram", "--threads", "--prefill-chunk", "--shared-attention",
                           "--special-tokens-in-text", "--backend", "--max-isa"}) {
    command.flag(name).group("Machine").share_environment();
  }
}

namespace {

int64_t bytes_of(const char* flag, const std::string& value) {
  const std::optional<int64_t> bytes = parse_bytes(value, /*bare_unit=*/int64_t{1} << 30);
  if (bytes) return *bytes;
  throw Error(ErrorCode::kInput,
              std::string(flag) + ": expected bytes such as 512MiB, or a number of GiB, found '" + value + "'");
}

}  // namespace

std::optional<DType> asked_dtype(const ModelFlags& flags) {
  if (flags.dtype == "auto") return std::nullopt;
  return flags.dtype == "f32" ? DType::kF32 : DType::kBF16;
}

WeightForms weight_forms(const ModelFlags& flags) {
  const auto choice = [](const std::string& name) {
    for (const WeightChoice known :
         {WeightChoice::kAuto, WeightChoice::kInt8, WeightChoice::kInt4, WeightChoice::kInt4Plus}) {
      if (name == weight_choice_name(known)) return known;
    }
    return WeightChoice::kDense;  // by the name of its dtype, too
  };
  WeightForms forms{.text = choice(flags.weights), .vision = choice(flags.vision_weights)};
  if (flags.weights == "bf16") forms.dense = DType::kBF16;
  if (flags.weights == "f32") forms.dense = DType::kF32;
  return forms;
}

namespace {

ActivationBits activation_bits(const ModelFlags& flags) {
  return flags.activations == "int8" ? ActivationBits::k8 : ActivationBits::k15;
}

}  // namespace

std::string weights_form(const ModelFlags& flags, const Checkpoint& checkpoint) {
  return Model::weights_form(checkpoint, weight_forms(flags), activation_bits(flags),
                             calibration(flags.calibrate, flags.weights).digest);
}

EngineOptions engine_options(const ModelFlags& flags) {
  set_threads(flags.threads > 0 ? flags.threads : usable_cpus());
  EngineOptions options;
  options.backend = flags.backend;
  options.backend_options.max_isa = flags.max_isa;
  options.backend_options.activation_bits = activation_bits(flags);
  options.weights = weight_forms(flags);
  options.calibration = calibration(flags.calibrate, flags.weights);
  options.packed = packed_cache(flags.packed_cache);
  options.packed.share = flags.packed_share;
  if (flags.packed_share && flags.packed_cache == "off") {
    throw Error(ErrorCode::kInput, "--packed-share with --packed-cache off: there is no file to share; leave out one");
  }
  options.dtype = asked_dtype(flags);
  options.kv_codec = joined_kv_codec(flags.kv_codec, flags.kv_dtype);
  static std::atomic<bool> told{false};
  const std::string note = parse_kv_codec(flags.kv_codec).note;
  if (!note.empty() && !told.exchange(true)) std::fprintf(stderr, "vlcache: note: %s\n", note.c_str());
  options.prefill_chunk = flags.prefill_chunk;
  options.share_attention = flags.shared_attention == "on";
  options.special_tokens_in_text = flags.special_tokens_in_text;
  options.kv_memory_bytes = bytes_of("--kv-memory", flags.kv_memory);
  options.tiers = open_tiers(flags.cache);
  if (const std::string warning = disk_folder_warning(flags.cache); !warning.empty()) {
    std::fprintf(stderr, "vlcache: warning: %s\n", warning.c_str());
  }
  options.cache_admit = flags.cache.admit;
  options.save_prefixes = prefix_saving(flags.cache);
  options.first_use_bytes = bytes_of("--cache-first-use", flags.cache.first_use);
  options.cache_form = image_form(flags.cache);
  if (!flags.cache_ram.empty() && bytes_of("--cache-ram", flags.cache_ram) > usable_memory()) {
    std::fprintf(stderr,
                 "vlcache: warning: --cache-ram %s is more than the %.1f GB of memory that this machine grants\n",
                 flags.cache_ram.c_str(), static_cast<double>(usable_memory()) / 1e9);
  }
  options.cache_bytes =
      flags.cache_ram.empty() ? default_cache_bytes(usable_memory()) : bytes_of("--cache-ram", flags.cache_ram);
  return options;
}

EngineOptions engine_options(const ModelFlags& flags, const Checkpoint& checkpoint) {
  EngineOptions options = engine_options(flags);
  const PlannedCodec planned = planned_codec(flags, checkpoint);
  options.auto_codec = planned.codec;
  if (!options.kv_codec && !planned.fault.empty()) {
    std::fprintf(stderr, "vlcache: warning: KV is kept as values, because %s is not followed: %s\n",
                 std::string(kKvCodecPlanName).c_str(), planned.fault.c_str());
  }
  return options;
}

void make_folder_of(const std::filesystem::path& path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    throw Error(ErrorCode::kIo,
                path.string() + ": its folder cannot be made: " + error.message() + "; name another path");
  if (std::filesystem::is_directory(path, error)) {
    throw Error(ErrorCode::kInput, path.string() + ": expected the name of a file; this is a folder");
  }
  const bool exists = std::filesystem::exists(path, error);
  if (exists && !std::filesystem::is_regular_file(path, error)) return;  // a device or a pipe
  const File tried(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!tried) throw Error(ErrorCode::kIo, errno_text(path.string() + ": cannot be written") + "; name another path");
  if (!exists) unlink(path.c_str());
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  make_folder_of(path);
  std::ofstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kIo, errno_text(path.string() + ": cannot be written"));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) throw Error(ErrorCode::kIo, path.string() + ": writing failed (is the disk full?)");
}

void warn_of_small_budget(const ModelFlags& flags, int32_t n_prompt) {
  if (flags.kv_budget.empty()) return;
  const std::string note = small_budget_note(flags.kv_budget, n_prompt);
  if (!note.empty()) std::fprintf(stderr, "--kv-budget %s\n", note.c_str());
}

std::string policy_text(const std::string& given) try {
  std::string present = with_present_names(given);
  static std::atomic<bool> told{false};
  if (present != given && !told.exchange(true)) {
    std::fputs("vlcache: note: the policy vlcache is now called vl-cache; the old name still works\n", stderr);
  }
  return present;
} catch (const Error&) {
  return given;  // parse_policy reports the fault
}

PolicyPtr chosen_policy(const ModelFlags& flags, const Checkpoint& checkpoint) {
  PolicyPtr policy = parse_policy(flags.kv, flags.kv_budget, &checkpoint);
  if (is_auto(flags.kv, flags.kv_budget)) {
    std::fprintf(stderr, "KV policy: %s (%s)\n", policy->name().c_str(), std::string(auto_reason()).c_str());
  }
  return policy;
}

namespace {

// Codes that take more memory than in the file are no surprise for later.
void tell_of_widened(const Engine& engine) {
  const StoredCodes& stored = engine.model().weights().stored;
  if (stored.n_widened == 0 || engine.options().weights.text != WeightChoice::kAuto) return;
  const double times = static_cast<double>(stored.widened_bytes) / static_cast<double>(stored.widened_bytes_stored);
  std::fprintf(
      stderr,
      "weights: %lld of %lld quantised matrices (%s) are kept as %s, in %.1f times the file's bytes: no packed "
      "form holds them. --weights int8 or int4 quantise them again\n",
      static_cast<long long>(stored.n_widened), static_cast<long long>(stored.n_widened + stored.n_kept),
      stored.format.c_str(), dtype_name(engine.model().compute_dtype()).data(), times);
}

// Keys of the checkpoint's defaults that would change answers.
void tell_of_unapplied(const Engine& engine) {
  std::string keys;
  for (const std::string& key : engine.model().config().generation.not_applied)
    keys += (keys.empty() ? "" : ", ") + key;
  if (!keys.empty()) std::fprintf(stderr, "generation_config.json: not applied: %s\n", keys.c_str());
}

}  // namespace

std::unique_ptr<Engine> load_engine(const ModelFlags& flags, const Checkpoint& checkpoint,
                                    std::span<const PolicyPtr> policies, TierWarnings* warnings) {
  if (!policies.empty()) {
    const ModelConfig config = Model::read_config(checkpoint);
    const std::optional<KvCodec> codec = joined_kv_codec(flags.kv_codec, flags.kv_dtype);
    for (const PolicyPtr& policy : policies) {
      check_suits(config, *policy);
      if (codec) check_codec_suits(*codec, *policy);
    }
  }
  EngineOptions options = engine_options(flags, checkpoint);
  for (const PolicyPtr& policy : policies) {
    if (options.kv_codec || !options.auto_codec || policy->capacity() == 0) continue;
    std::fprintf(stderr, "KV of %s is kept as values: it reserves its slots\n", policy->name().c_str());
    if (policies.size() > 1) options.auto_codec.reset();  // all are compared under one form
  }
  TierWarnings at_start;
  (warnings != nullptr ? *warnings : at_start).watch(options.tiers);
  ProgressBar bar("loading");
  options.progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
  options.packed.say = [&, say = options.packed.say](const std::string& line) {
    bar.clear();
    say(line);
  };
  std::unique_ptr<Engine> engine = Engine::load(checkpoint, options);
  bar.clear();
  tell_of_widened(*engine);
  tell_of_unapplied(*engine);
  return engine;
}

}  // namespace vlcache
